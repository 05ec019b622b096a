"""Compile a function or module without Dynamo: called directly, traced as it runs.

In: a function of tensors in any containers, or a module. Out: a callable that behaves the same.

Dynamo reads bytecode and guards what it assumed. Here the function is run once on fake tensors for every
combination of the things a trace depends on, which are the key: layouts, types, who needs a gradient, which
arguments are the same tensor, plain values, and the modes of the thread. Python side effects happen at
tracing only, and branches on the values of tensors cannot be traced; both are Dynamo's business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.capture.backend import compile_or_leave
from litz.capture.modes import modes_now
from litz.loop.exact import exact
from litz.options import Options


def compile_directly(function: Callable[..., Any], **options: Any) -> Direct:
    """`options` are fields of `litz.Options`."""
    return Direct(function, Options.from_environment(options))


@dataclass(frozen=True)
class _Compiled:
    run: Callable[..., Any]
    outputs: list[Any]  # the structure of the results, known once traced


class Direct:
    def __init__(self, function: Callable[..., Any], options: Options):
        self.function, self.options = function, options
        self.module = function if isinstance(function, torch.nn.Module) else None
        self._compiled: dict[tuple, _Compiled] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        state = self._state()
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)] + list(state.values())
        plain = tuple(None if isinstance(x, torch.Tensor) else exact(x) for x in leaves)
        names, modes = _names((args, kwargs)), modes_now()
        key = (structure, names, plain, tuple(state), self._training(), modes, _described(tensors))
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                found = self._compiled[key] = self._compile(leaves, structure, tuple(state), tensors)
        return pytree.tree_unflatten(found.run(*tensors), found.outputs[0])

    def _compile(self, leaves: list[Any], structure: Any, names: tuple[str, ...], tensors: list[Any]) -> _Compiled:
        holes = [isinstance(x, torch.Tensor) for x in leaves]
        plain = [None if hole else x for x, hole in zip(leaves, holes, strict=True)]
        seen: list[Any] = []

        def flat(*given: Any) -> list[Any]:
            waiting = iter(given)
            args, kwargs = pytree.tree_unflatten(
                [next(waiting) if hole else x for x, hole in zip(plain, holes, strict=True)], structure
            )
            state = dict(zip(names, waiting, strict=True))
            result = self._run(state, args, kwargs)
            outputs, spec = pytree.tree_flatten(result)
            seen[:] = [spec]
            return outputs

        state = dict(enumerate(names, len(tensors) - len(names)))
        return _Compiled(compile_or_leave(flat, tensors, None, self.options, state=state), seen)

    def _run(self, state: dict[str, Any], args: Any, kwargs: Any) -> Any:
        if self.module is None:
            return self.function(*args, **kwargs)
        return torch.func.functional_call(self.module, state, args, kwargs, tie_weights=True)

    def _state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, a tied one once."""
        if self.module is None:
            return {}
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def _training(self) -> tuple[bool, ...]:
        return () if self.module is None else tuple(m.training for m in self.module.modules())


def _names(container: Any) -> tuple:
    """The keys of dictionaries: the structure, which has them too, calls 1 and True equal."""
    if isinstance(container, dict):
        return tuple((exact(key), _names(value)) for key, value in container.items())
    return tuple(map(_names, container)) if isinstance(container, (list, tuple)) else ()


def _described(tensors: Sequence[torch.Tensor]) -> tuple:
    first: dict[int, int] = {}
    return tuple(
        (
            first.setdefault(id(t), position), tuple(t.shape), t.stride() if t.layout is torch.strided else None,
            t.dtype, t.device, t.layout, type(t), t.requires_grad, t.is_leaf, t.is_inference(),
            t.is_conj(), t.is_neg(),
        )
        for position, t in enumerate(tensors)
    )  # fmt: skip


__all__ = ["Direct", "compile_directly"]
