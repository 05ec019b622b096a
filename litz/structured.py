"""The structured trace of torch (`TORCH_TRACE=folder`), which `tlparse` reads: Litz's part in it.

In: a name and how to come by a text. Out: an artifact of the compile in the trace, while one is being written; else
nothing, and the text is not made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any


def is_traced() -> bool:
    logging = sys.modules.get("torch._logging._internal")
    # Without a folder torch has a handler too, until something is to be written; and pytest has one of its own.
    return logging is not None and any(getattr(h, "root_dir", None) for h in logging.trace_log.handlers)


def compile_id_now() -> Any:
    """Dynamo's number of the compile that is under way; a backward is compiled when that is over."""
    if not is_traced():
        return None
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


def trace_artifact(name: str, text: Callable[[], str], compile_id: Any, encoding: str = "string") -> None:
    if not is_traced():
        return
    from torch._guards import CompileContext, compile_context
    from torch._logging import trace_structured

    is_over = compile_id is not None and CompileContext.current_compile_id() is None
    with compile_context(CompileContext(compile_id)) if is_over else nullcontext():
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": name, "encoding": encoding},
            payload_fn=text,
            expect_trace_id=False,
        )


__all__ = ["compile_id_now", "is_traced", "trace_artifact"]
