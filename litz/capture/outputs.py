"""Sort a function's outputs by whose memory they are.

In: the outputs of a traced function and its inputs, as functional tensors. Out: an `Output` each, and the
tensors that the graph itself must return.

Outputs that share the memory of an intermediate are rebuilt, at run time, as views of one tensor that holds
all of it. That must be the tensor autograd knows as their base, or the gradient of one would not reach what
the others are views of; so the graph returns it even where the user does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from litz.capture.rebuild import read_as, toggled
from litz.errors import CaptureError
from litz.graph.signature import Output, ViewStep, Window
from litz.graph.sizes import likely
from litz.ops.sizes import symbolic_float, symbolic_size


def classify(
    outputs: list[Any],
    inputs: list[Any],
    primals: Sequence[Any],
    laid_out: Callable[[torch.Tensor, int], torch.Tensor],
    memory_of: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[Output], list[torch.Tensor]]:
    """`laid_out(tensor, position)` is the tensor with the strides the user expects of that output, `memory_of(tensor)`
    the value, unknown to autograd, of all the memory that it is a view of."""
    of_input = {_storage(w): i for i, w in reversed(list(enumerate(inputs))) if isinstance(w, FunctionalTensor)}
    itself = {id(w): i for i, w in enumerate(inputs)}
    shared = _shared(outputs, of_input, memory_of)
    found: list[Output] = []
    results: list[torch.Tensor] = []
    place: dict[int, int] = {}  # tensor -> its number among the results

    def own(out: torch.Tensor, owner: torch.Tensor, found: Output) -> Output:
        """The output with a result of its own to be differentiated, unless its gradient goes to the owner as that of a
        view does, and nowhere else."""
        if not out.requires_grad:
            return found
        steps, lazy = _steps_between(out, owner), out.is_conj() or out.is_neg() or owner.is_conj() or owner.is_neg()
        known = steps is not None and not any(isinstance(step, BackwardCFunction) for step in steps)
        if known and (lazy or not any(map(_gives_several, steps or ()))):
            return found
        if lazy:
            raise CaptureError("memory conjugated or negated by a bit has a backward of the user's own", stage="trace")
        results.append(out)
        return replace(found, through=len(results) - 1)

    for position, out in enumerate(outputs):
        if not isinstance(out, torch.Tensor):
            found.append(Output("plain", value=known(out)))
        elif id(out) in itself:
            found.append(Output("input", itself[id(out)]))
        elif _storage(out) in of_input:
            index = of_input[_storage(out)]
            found.append(own(out, inputs[index], _view("view", index, out, primals[index], position)))
        elif id(out) in place:
            found.append(_output("part", place[id(out)], out))
        elif _storage(out) in shared:
            base = shared[_storage(out)]
            if laid_out(out, position) is not out:
                raise CaptureError(
                    f"output {position} shares memory and is laid out otherwise than in eager", stage="trace"
                )
            index = place.setdefault(id(base), len(results))
            if index == len(results):
                results.append(toggled(base, base.is_conj(), base.is_neg()))
            if base is out:
                found.append(_output("fresh", index, out))
            else:
                found.append(own(out, base, _view("part", index, out, base, position)))
        else:
            place[id(out)] = len(results)
            result = laid_out(out, position)
            results.append(toggled(result, result.is_conj(), result.is_neg()))
            found.append(_output("fresh", place[id(out)], result))
    return found, results


def _shared(
    outputs: list[Any], of_input: dict[int, int], memory_of: Callable[[torch.Tensor], torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Storages of intermediates that several outputs share -> the tensor to return for all of them."""
    members: dict[int, dict[int, torch.Tensor]] = {}
    for out in outputs:
        if isinstance(out, FunctionalTensor) and _storage(out) not in of_input:
            members.setdefault(_storage(out), {})[id(out)] = out
    return {storage: _base(list(group.values()), memory_of) for storage, group in members.items() if len(group) > 1}


def _base(group: list[torch.Tensor], memory_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The tensor whose memory is all of theirs, one that autograd knows if any is."""
    candidates = [_root(t) for t in sorted(group, key=lambda t: not t.requires_grad)]
    whole = next((t for t in candidates if _is_whole(t)), None)
    return memory_of(group[0]) if whole is None else whole


def _root(tensor: torch.Tensor) -> torch.Tensor:
    base = tensor._base if tensor._is_view() else None
    return tensor if base is None else base


def _is_whole(tensor: torch.Tensor) -> bool:
    return not torch._C._functionalization.get_view_meta_sequence(tensor.elem)  # type: ignore[attr-defined]


def _steps_between(view: torch.Tensor, owner: torch.Tensor) -> list[Any] | None:
    """The steps of autograd's that make the view of its owner, or None if it is no view of it to autograd."""
    owner = _root(owner)
    if _root(view) is not owner or not owner.requires_grad:
        return None
    end, todo, seen = owner.grad_fn, [view.grad_fn], []
    while todo:
        node = todo.pop()
        if node is None or node is end or node in seen:
            continue
        seen.append(node)
        todo += [following for following, _ in node.next_functions]
    return seen


def _gives_several(step: Any) -> bool:
    """Whether it makes several views at once: their gradients are put side by side, and not added."""
    return len(step._input_metadata) > 1


def _output(kind: str, index: int, out: torch.Tensor) -> Output:
    return Output(kind, index, None, out.requires_grad, None, out.is_conj(), out.is_neg())


def _view(kind: str, index: int, view: torch.Tensor, base: torch.Tensor, position: int) -> Output:
    dtype = None if base.dtype == view.dtype else view.dtype
    if dtype is not None and view.requires_grad and not base.is_complex():
        raise CaptureError(f"output {position} is memory of another tensor, read as another type", stage="trace")
    given = kind == "view"  # as the argument comes, bits included; results come without
    return Output(
        kind, index, window_on(base, view, dtype), view.requires_grad, None,
        view.is_conj() != (given and base.is_conj()), view.is_neg() != (given and base.is_neg()), dtype,
        _steps_to_repeat(base, view), unrecorded=view.requires_grad and view.grad_fn is None, apart=not view._is_view(),
    )  # fmt: skip


def _steps_to_repeat(base: torch.Tensor, view: torch.Tensor) -> tuple[ViewStep, ...]:
    """How the view is made, where the gradient of a window on the base would be another: elements of the base share
    memory, or a window was opened on a part of it, which may look beyond that part and has no gradient there."""
    if not view.requires_grad:
        return ()
    steps = _steps(base, view)
    beyond = any(step.target is torch.ops.aten.as_strided.default for step in steps[1:])
    return steps if beyond or (_may_overlap(base) and not isinstance(base, FunctionalTensor)) else ()


def _may_overlap(tensor: torch.Tensor) -> bool:
    """Whether one place in memory may be several elements. Autograd takes a window on such a tensor for one on its
    memory, and its gradient for the mean over the elements that are one place."""
    reach: Any = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pairs, key=lambda pair: tuple(map(likely, pair))):
        stride, size = _form(stride), _form(size)
        if size == 1:
            continue
        in_order = isinstance(stride, int) and isinstance(reach, int) and stride > reach
        if not in_order and stride != reach:
            return True
        reach = stride * size
    return False


def _form(size: Any) -> Any:
    """What it is, without asking for its value."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


class _Steps(TorchDispatchMode):
    """Writes down the operators that make a view."""

    def __init__(self, base: torch.Tensor):
        super().__init__()
        self.last: Any = base
        self.steps: list[ViewStep] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, (torch.Tensor, list, tuple)):  # and not an answer to a question
            self._choose(args[0])
            self.steps.append(ViewStep(func, tuple(pytree.tree_map(known, list(args[1:])))))
            self.last = made
        return made

    def _choose(self, used: torch.Tensor) -> None:
        """Of several results of the last step, the one that is used is it."""
        if isinstance(self.last, (list, tuple)):
            index = next(at for at, each in enumerate(self.last) if each is used)
            self.steps[-1] = replace(self.steps[-1], index=index)

    def finished(self, view: torch.Tensor) -> tuple[ViewStep, ...]:
        self._choose(view)
        return tuple(self.steps)


def _steps(base: torch.Tensor, view: torch.Tensor) -> tuple[ViewStep, ...]:
    if not isinstance(view, FunctionalTensor):
        return ()
    plain = torch._from_functional_tensor(base.elem) if isinstance(base, FunctionalTensor) else base
    with _Steps(plain) as recorder:
        made = _replayed(plain, view)
    return recorder.finished(made)


def window_on(base: torch.Tensor, view: torch.Tensor, dtype: torch.dtype | None = None) -> Window:
    """`dtype`: what the view reads the memory as, if not as what it is."""
    view = _on(base, view)
    base = base if dtype is None else read_as(dtype, base)
    offset = known(view.storage_offset()) - known(base.storage_offset())
    return Window(tuple(map(known, view.shape)), tuple(map(known, view.stride())), offset)


def known(value: Any) -> Any:
    """A number, or what it is made of: an expression in sizes, or a formula. A truth is asked for its value, and Dynamo
    compiles anew where that is another one."""
    if isinstance(value, torch.SymInt):
        made = symbolic_size(value)
        return made.int if made.is_int else made
    if isinstance(value, torch.SymFloat):
        return symbolic_float(value)
    return bool(value) if isinstance(value, torch.SymBool) else value


def _on(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """The view as one of `base`. What functionalisation says of it describes the latest value of its memory, which
    after a write is another tensor, laid out otherwise."""
    if isinstance(base, FunctionalTensor) or not isinstance(view, FunctionalTensor):
        return view
    return _replayed(base, view)


def _replayed(base: torch.Tensor, view: FunctionalTensor) -> torch.Tensor:
    steps = torch._C._functionalization.get_view_meta_sequence(view.elem)
    return torch._C._functionalization.apply_view_meta_sequence(base, steps)


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata
