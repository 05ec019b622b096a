"""The strides and types that eager's kernels give their results, where fakes say others.

In: an operator, its arguments and its fake result. Out: the result as eager lays it out. What is seen of a compiled
function (`stride()`, `view`, what the next graph is guarded on) is then what eager shows.

Most fakes are right. `tests/layout/test_strides.py` walks torch's operator database, laid out in several ways, and
names those that are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from litz.graph.sizes import is_dense, likely, sizes

aten = torch.ops.aten
FLASH_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_CHANNELS_LAST = {torch.channels_last: 4, torch.channels_last_3d: 5}  # and the rank it is of
Rule = Callable[[Sequence[Any], torch.Tensor], Sequence[Any]]  # the arguments and the fake result -> strides


def _iterated(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """As the loop over elements orders the operands' dimensions: the first operand that tells two apart decides."""
    operands = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
    shaped = [t for t in operands if t.dim()] or operands
    met = [_as_computed(t, operands, result) for t in shaped]
    if len(shaped) < len(operands):  # with a number beside it, not even one operand is taken to lie as the result does
        met.append(torch.empty((), device="meta"))
    return compute_elementwise_output_strides(*(t.expand(result.shape) for t in met))


def _as_computed(operand: torch.Tensor, operands: Sequence[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
    """The operand as the loop meets it: on a CPU one of another type is cast before, and that copy has no gaps, and no
    element twice; otherwise it lies as the operand does."""
    condition = operand is operands[0] and operand.dtype is torch.bool and len(operands) > 2
    if operand.device.type != "cpu" or condition:
        return operand
    common = functools.reduce(torch.promote_types, (t.dtype for t in operands if t.dim()))
    common = torch.promote_types(common, result.dtype) if result.dtype.is_floating_point else common
    order = sorted(range(operand.dim()), key=lambda dim: likely(operand.stride(dim)), reverse=True)
    if operand.dtype is common or is_dense(operand, order):
        return operand
    return torch.empty_like(operand, device="meta")


def _wraps_a_number(func: Any, args: Sequence[Any]) -> bool:
    """Whether a number among the arguments is made a tensor, which then is an operand."""
    if "scalar" in func._overloadname.lower():
        return func not in (aten.pow.Tensor_Scalar, aten.lerp.Scalar)
    given = zip(func._schema.arguments, args, strict=False)
    return any(isinstance(value, (bool, int, float, complex)) and "Tensor" in str(spec.type) for spec, value in given)


def _alike(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any] | None:
    """The strides where the operands all have the result's shape and lie alike: the loop then looks for no order, and
    where a size is 1, "alike" is said of tensors whose strides are not the same."""
    operands = [value for value in args if isinstance(value, torch.Tensor)]
    if not operands or any(sizes(t.shape) != sizes(result.shape) for t in operands):
        return None
    if all(t.is_contiguous() for t in operands):
        return _contiguous(args, result)
    if result.dim() == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in operands):
        return torch.empty(result.shape, device="meta").to(memory_format=torch.channels_last).stride()
    first = operands[0].stride()
    order = sorted(range(result.dim()), key=lambda dim: first[dim], reverse=True)
    return first if all(t.stride() == first and is_dense(t, order) for t in operands) else None


def _contiguous(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    return torch.empty(result.shape, device="meta").stride()


def _like(position: int) -> Rule:
    """Those of a new tensor like the argument: of one without gaps the very same, where sizes are 1 too."""

    def rule(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
        given = args[position]
        order = sorted(range(given.dim()), key=lambda dim: likely(given.stride(dim)), reverse=True)
        return given.stride() if is_dense(given, order) else torch.empty_like(given, device="meta").stride()

    return rule


def _suggested(position: int) -> Rule:
    """Channels last if the argument is, and else contiguous."""

    def rule(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
        layout = suggest_memory_format(args[position])
        return torch.empty(result.shape, device="meta").to(memory_format=layout).stride()

    return rule


def _normalised(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Contiguous, or else channels last, if the argument can be called that: where sizes are 1, more can be called that
    than is suggested."""
    x, new = args[0], torch.empty(result.shape, device="meta")
    layouts = [layout for layout, rank in _CHANNELS_LAST.items() if rank == x.dim()]
    if x.is_contiguous():
        return new.stride()
    whole = [layout for layout in layouts if x.is_contiguous(memory_format=layout)]
    return new.to(memory_format=whole[0] if whole else suggest_memory_format(x)).stride()


def _unpooled(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Only kernels for CPUs keep channels last."""
    return (_suggested(0) if result.device.type == "cpu" else _contiguous)(args, result)


def _rolled(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """A dimension is rolled by joining its two parts. Where one is empty, the join forgets about channels last; whether
    it is is asked of a shift known only at run time where that matters."""
    x, shifts, dims = args[0], args[1], args[2] if len(args) > 2 else ()
    if suggest_memory_format(x) is torch.contiguous_format or not dims:
        return _contiguous(args, result)
    if any(shift % x.shape[dim] == 0 for shift, dim in zip(shifts, dims, strict=True)):
        return _contiguous(args, result)
    return _suggested(0)(args, result)


def _indexed(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """As the loop over elements orders what is read, with no stride along the indexed dimensions, and the indices.
    Fakes forget the indices."""
    x, indices = args[0], args[1]
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    given = torch.broadcast_tensors(*(index for index in indices if index is not None))
    if dims != list(range(dims[0], dims[-1] + 1)):  # not side by side: their dimensions come first
        x = x.permute(*dims, *(dim for dim in range(x.dim()) if dim not in dims))
        dims = list(range(len(dims)))
    before, after, rank = dims[0], x.dim() - dims[-1] - 1, given[0].dim()
    read = [*x.stride()[:before], *[0] * rank, *x.stride()[dims[-1] + 1 :]]
    operands = [torch.empty_strided(result.shape, read, device="meta")]
    for index in given:
        alone = torch.empty_strided(index.shape, index.stride(), device="meta")
        operands.append(alone.reshape(*[1] * before, *index.shape, *[1] * after).expand(result.shape))
    return compute_elementwise_output_strides(*operands)


def _transform(sizes: Sequence[Any], strides: Sequence[Any], dims: Sequence[int]) -> list[Any]:
    """Strides of a Fourier transform over those dimensions, of a tensor that lies like that, by MKL: the transformed
    dimensions inside, as they are given, the others around them as they lay."""
    others = sorted((d for d in range(len(sizes)) if d not in dims), key=lambda d: strides[d], reverse=True)
    found, step = [0] * len(sizes), 1
    for d in reversed([*others, *dims]):
        found[d], step = step, step * sizes[d]
    return found


def _fourier(kind: str) -> Rule:
    """The fakes of torch 2.11 have the dimensions in another order."""

    def rule(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
        x, dims = args[0], [d % args[0].dim() for d in args[1]]
        if x.device.type != "cpu" or not dims or not torch.backends.mkl.is_available():
            return result.stride()
        strides = x.stride()
        outer = sorted(dims if kind == "complex to complex" else dims[:-1], key=lambda d: strides[d], reverse=True)
        if kind == "complex to complex":
            return _transform(result.shape, strides, outer)
        if kind == "real to complex":
            return _transform(result.shape, strides, [*outer, dims[-1]])
        if outer:
            strides = _transform(x.shape, strides, outer)
        return _transform(result.shape, strides, dims[-1:])

    return rule


def _written_over(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """A copy with the strides of what is copied, where these keep its elements apart."""
    steps = zip(args[0].shape, args[0].stride(), strict=True)
    together = any(likely(step) == 0 and likely(size) > 1 for size, step in steps)
    return _contiguous(args, result) if together else result.stride()


def _angled(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """Of complex numbers, whose kernel is given a result of another type to make anew."""
    if args[0].is_complex():
        return _contiguous(args, result)
    lying = _alike(args, result) if _has_one(result) else None
    return _iterated(args, result) if lying is None else lying


def _threshold_backward(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """The input comes first, and then its gradient."""
    return result.stride() if _plain(args, result) else _iterated((args[1], args[0]), result)


def _soft_margin_backward(args: Sequence[Any], result: torch.Tensor) -> Sequence[Any]:
    """What is made of the target alone comes first."""
    return _iterated((torch.empty_like(args[2], device="meta"), torch.empty_like(args[0], device="meta")), result)


def _table(rule: Rule, *operators: str) -> dict[Any, Rule]:
    packets = [getattr(aten, name) for name in operators if hasattr(aten, name)]
    return {getattr(packet, overload): rule for packet in packets for overload in packet.overloads()}


_RULES: dict[Any, Rule] = {
    **_table(
        _contiguous, "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "log_sigmoid_forward",
        "_log_softmax_backward_data", "native_layer_norm_backward", "glu_backward", "masked_fill", "isin",
        "_log_softmax", "native_layer_norm", "tril", "triu", "diag_embed",
    ),
    aten.pow.Scalar: _contiguous,
    # Draws into tensors of their own.
    **_table(_contiguous, "poisson", "_standard_gamma", "rrelu_with_noise", "rrelu_with_noise_functional"),
    **dict.fromkeys((aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor), _contiguous),
    **_table(
        _like(0), "binary_cross_entropy", "huber_loss", "log_sigmoid_backward", "deg2rad", "rad2deg", "nan_to_num",
        "hardtanh", "_conj_physical", "frexp", "index_put", "_unsafe_masked_index_put_accumulate",
    ),
    **_table(_like(1), "binary_cross_entropy_backward"),
    **_table(
        _normalised, "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
    ),
    **_table(
        _suggested(0), "channel_shuffle", "replication_pad3d", "reflection_pad3d", "upsample_bilinear2d",
        "upsample_bicubic2d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_trilinear3d",
        "upsample_nearest3d", "_upsample_nearest_exact3d",
    ),
    **_table(_unpooled, "max_unpool2d"),
    **_table(_written_over, "as_strided_scatter"),
    **_table(_rolled, "roll"),
    aten._fft_c2c.default: _fourier("complex to complex"),
    aten._fft_r2c.default: _fourier("real to complex"),
    aten._fft_c2r.default: _fourier("complex to real"),
    aten.index.Tensor: _indexed,
    aten._unsafe_index.Tensor: _indexed,
    **_table(
        _suggested(1), "native_batch_norm_backward", "native_group_norm_backward", "replication_pad2d_backward",
        "replication_pad3d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    ),
    **_table(_iterated, "native_dropout_backward", "floor_divide"),
    **_table(_threshold_backward, "threshold_backward"),
    **_table(_angled, "angle"),
    **_table(_soft_margin_backward, "soft_margin_loss_backward"),
}  # fmt: skip

# Loops over elements, though not called pointwise.
_ITERATED = {
    aten.hardtanh_backward.default, aten.elu_backward.default, aten.hardswish_backward.default,
    aten.hardsigmoid_backward.default, aten.softplus_backward.default,
}  # fmt: skip
# Called pointwise, and yet no loop over elements lays out what they give: their fakes are right.
_NOT_ITERATED = {aten.clone, aten.mvlgamma, aten.ldexp, aten.copy}


# Views whose fakes give sizes of one strides of their own; `contiguous` and the choice of a convolution's layout ask.
_VIEWED = {aten.view.default, aten._unsafe_view.default}


def as_eager_lays_out(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The fake result with the strides eager gives it: the result itself, where it has them."""
    if func in _VIEWED:
        return _as_eager_views(args[0], result) if _has_one(result) else result
    if func is FLASH_CPU:
        return _with_logarithms_like(args[0], result)
    first = next(iter(result), None) if isinstance(result, (tuple, list)) else result
    strides = eager_strides(func, args, first)
    if strides is None or first is None:
        return result
    if first is result:
        return _moved(first, strides)
    return type(result)(
        _moved(part, strides) if isinstance(part, FakeTensor) and part.shape == first.shape else part for part in result
    )


def _with_logarithms_like(query: torch.Tensor, result: Any) -> Any:
    """Attention keeps the logarithms of its sums in the type it adds in: the fake of torch 2.11 says float32 always."""
    out, logarithms = result
    if query.dtype is not torch.float64 or logarithms.dtype is torch.float64:
        return result
    return out, logarithms.to(torch.float64)


def rule_of(func: Any) -> Rule | None:
    """How an operator lays out its result, where there is a rule for that operator alone."""
    return _RULES.get(func)


def eager_strides(func: Any, args: Sequence[Any], result: Any) -> tuple[Any, ...] | None:
    """The strides that eager gives the result, where the fake has others."""
    if not isinstance(result, FakeTensor) or result.dim() < 2:
        return None
    rule = rule_of(func)
    if rule is None:
        if torch.Tag.pointwise not in func.tags and func not in _ITERATED:
            return None
        if not _has_one(result) and _plain(args, result):
            return None
        if func._schema.is_mutable or func.overloadpacket in _NOT_ITERATED:
            return None
        rule = _iterated
        if _wraps_a_number(func, args):
            args = (*args, torch.empty((), device="meta"))
    lying = _alike(args, result) if rule is _iterated and _has_one(result) else None
    strides = tuple(rule(args, result) if lying is None else lying)
    return None if sizes(result.stride()) == sizes(strides) else strides


def _as_eager_views(given: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """From the last dimension to the first: dimensions of the given tensor that are evenly spaced are one stretch, with
    those of size one before them; each is cut into dimensions of the view, and the sizes of one before those."""
    if view.dim() < 2 or not isinstance(view, FakeTensor) or 0 in map(likely, view.shape) or not given.dim():
        return view
    if any(likely(size) == 1 and not isinstance(size, int) for size in (*given.shape, *view.shape)):
        return view  # at another call it may not be
    strides: list[Any] = [1] * view.dim()
    at, step, stretch, cut = view.dim() - 1, given.stride(-1), 1, 1
    for dim in reversed(range(given.dim())):
        stretch = stretch * given.shape[dim]
        if dim and likely(given.shape[dim - 1]) == 1:
            continue
        if dim and likely(given.stride(dim - 1)) == likely(stretch) * likely(step):
            if sizes((given.stride(dim - 1),)) != sizes((stretch * step,)):
                return view  # they are the same at this call alone
            continue
        while at >= 0 and (likely(cut) < likely(stretch) or likely(view.shape[at]) == 1):
            strides[at] = cut * step
            cut = cut * view.shape[at]
            at -= 1
        if sizes((cut,)) != sizes((stretch,)):
            return view
        if dim:
            step, stretch, cut = given.stride(dim - 1), 1, 1
    if at >= 0 or sizes(strides) == sizes(view.stride()):
        return view
    with view.fake_mode:
        return given.as_strided(view.shape, strides, given.storage_offset())


def _has_one(result: torch.Tensor) -> bool:
    return any(isinstance(size, int) and size == 1 for size in result.shape)


def _moved(fake: FakeTensor, strides: Sequence[Any]) -> torch.Tensor:
    with fake.fake_mode:
        return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def _plain(args: Sequence[Any], result: torch.Tensor) -> bool:
    """Whether every operand lies as the result does, as nearly always: there is nothing to ask then."""
    strides = sizes(result.stride())
    return all(t.dim() == 0 or sizes(t.stride()) == strides for t in args if isinstance(t, torch.Tensor))
