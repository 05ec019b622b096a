"""An `Explanation` as JSON, and back: its types say what stands where.

In: an explanation. Out: text; and of text, the explanation. Data of another format is refused.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from litz.errors import ParseError
from litz.explanation.explanation import FORMAT, Explanation


def to_json(explanation: Explanation) -> str:
    return json.dumps(_plain(explanation), separators=(",", ":"))


def from_json(text: str) -> Explanation:
    try:
        data = json.loads(text)
        found = data["format"], data["made"]["litz"]
    except (ValueError, TypeError, KeyError) as error:
        raise ParseError(f"this is not the data of a page of Litz: {error}") from error
    if found[0] != FORMAT:
        raise ParseError(
            f"the page was made by Litz {found[1]}, in format {found[0]}; this Litz reads format {FORMAT}",
            hint="make the page anew, or read it with the Litz that made it",
        )
    return _built(Explanation, data)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, tuple):
        return value if not value or isinstance(value[0], int) else [_plain(one) for one in value]
    return value


def _built(kind: Any, data: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        (kind,) = (one for one in get_args(kind) if one is not type(None))
        return _built(kind, data)
    if origin is tuple:
        args = get_args(kind)
        if args[-1] is Ellipsis:
            return tuple(data) if args[0] in (int, str) else tuple(_built(args[0], one) for one in data)
        return tuple(_built(arg, one) for arg, one in zip(args, data, strict=True))
    if isinstance(data, Mapping):
        hints = _hints(kind)
        return kind(**{name: _built(hints[name], one) for name, one in data.items()})
    return data


@lru_cache(maxsize=None)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


__all__ = ["from_json", "to_json"]
