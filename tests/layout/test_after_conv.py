"""Every operator of torch's database, on tensors that lie otherwise: what `ops/layout.py` says of it, tried in eager;
and what Litz gives for it after a convolution whose result it lays out channels last.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from litz.graph import lay_out
from litz.ops import coverage
from litz.ops.layout import why_it_sees_layouts
from tests.opinfo.check import check
from tests.opinfo.known import NOT_ON_CPU
from tests.opinfo.samples import Case, cases, differentiable, dtypes_of, has_gradients
from tests.opinfo.test_slice import ENTRIES

pytestmark = pytest.mark.long
SMALL = 4000  # elements in all of a sample's tensors


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All convolutions of images are laid out channels last, whether or not that pays; which ones."""
    turned: list[Any] = []

    def always(self: Any, node: Any, image: Any, *_: Any) -> bool:
        return image.meta["val"].dim() == 4 and not turned.append(node)  # type: ignore[func-returns-value]

    monkeypatch.setattr(lay_out._Pass, "_pays", always)
    return turned


def convolved(value: Any) -> Any:
    """The tensor itself, as the result of a convolution with ones. Laid out channels last, its first dimension is
    innermost in memory."""
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.float64):
        return value
    channels = _channels(value)
    if channels is None:
        return value
    image = value.reshape(1, channels, -1, 1)
    return F.conv2d(image, value.new_ones(channels, 1, 1, 1), groups=channels).view(value.shape)


def _channels(tensor: torch.Tensor) -> int | None:
    """The elements of the first dimension that has several, if others have, too."""
    several = [size for size in tensor.shape if size > 1]
    return several[0] if len(several) > 1 and tensor.layout is torch.strided and tensor.numel() else None


def after_conv(case: Case) -> Case:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(convolved, (args, kwargs))
        return case.call(*args, **kwargs)

    return replace(case, call=call)


def _suits(case: Case) -> bool:
    tensors = [t for t in case.tensors if t.dtype is torch.float32]
    return any(_channels(t) for t in tensors) and sum(t.numel() for t in tensors) <= SMALL


class _Recorded(TorchDispatchMode):
    """The calls of operators that are said not to see layouts, as they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if why_it_sees_layouts(func) is None and not func._schema.is_mutable:
            self.calls.append((func, *tree_map(_kept, (args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _otherwise(value: Any) -> Any:
    """The same tensor, its last dimension outermost in memory."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout is not torch.strided:
        return value
    return value.movedim(-1, 0).contiguous().movedim(0, -1)


# PyTorch's kernel refuses most layouts; the one that Litz generates takes any.
_PARTICULAR = {torch.ops.aten.native_group_norm.default}


def sees_no_layout(case: Case) -> None:
    """In eager, what is said not to see layouts gives the same elements for all of them."""
    with warnings.catch_warnings(), torch.no_grad(), _Recorded() as recorded:
        warnings.simplefilter("ignore")
        case.function(*case.tensors)
    for func, args, kwargs in recorded.calls:
        if "empty" in func.name():
            continue  # its elements are nothing
        want = tree_leaves(func(*args, **kwargs))
        try:
            got = tree_leaves(func(*tree_map(_otherwise, args), **tree_map(_otherwise, kwargs)))
        except RuntimeError as error:
            is_view = coverage.treatment(func) == "view" or func is torch.ops.aten._unsafe_view.default
            assert func in _PARTICULAR or (is_view and "view" in str(error)), f"{func}: {error}"
            continue
        for mine, theirs in zip(got, want, strict=True):
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


def suitable(every: Iterable[Case]) -> Case | None:
    """The first case with a tensor that can lie otherwise; if there is none, the first whose input can be made one.
    Drawing cases takes longer than compiling one: no more are drawn than it takes."""
    made: Case | None = None
    for case in every:
        if _suits(case):
            return case
        made = made or _of_images(case)
    return made


def _of_images(case: Case) -> Case | None:
    """The case on an image of the numbers that its first tensor has."""
    if not case.leaves:
        return None
    leaf = case.leaves[0]
    if case.operator.startswith("_segment_reduce"):
        return None  # its offsets count the elements it was drawn with
    if not isinstance(leaf, torch.Tensor) or leaf.dtype is not torch.float32 or leaf.dim() > 1 or not leaf.numel():
        return None
    image = leaf.detach().reshape(-1).repeat(-(-48 // leaf.numel()))[:48].reshape(2, 3, 2, 4)
    return replace(case, leaves=[image, *case.leaves[1:]])


SUITABLE = sorted(name for name, entry in ENTRIES.items() if "float32" in dtypes_of(entry) and name not in NOT_ON_CPU)
# Their samples lie in columns, which is how a convolution would lay them out.
_IN_COLUMNS = {"cholesky_inverse", "linalg.pinv.singular", "lu_unpack"}
# Nothing of theirs depends on what is convolved.
_UNREAD = {"expand_as"}


@pytest.mark.parametrize("name", SUITABLE)
def test_agrees_with_eager(name: str, turns: list[Any]) -> None:
    case = suitable(cases(ENTRIES[name], "float32", 12))
    if case is None:
        pytest.skip("it takes no tensor of several dimensions")
    result = check(after_conv(case))
    assert result.status in ("right", "eager", "known", "refused"), f"{case}: {result.status}: {result.message}"
    assert turns or result.status != "right" or name in _IN_COLUMNS | _UNREAD
    if result.status != "refused":
        sees_no_layout(case)


@pytest.mark.parametrize("name", [name for name in SUITABLE if has_gradients(ENTRIES[name], "float32")][1::6])
def test_gradients_agree_with_eager(name: str) -> None:
    """Every sixth operator: the programs of `programs.py` are differentiated, too."""
    case = suitable(differentiable(ENTRIES[name], "float32", 12))
    if case is None:
        pytest.skip("it takes no tensor of several dimensions")
    result = check(after_conv(case))
    assert result.status in ("right", "eager", "refused"), f"{case}: {result.status}: {result.message}"
