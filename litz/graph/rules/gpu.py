"""Rules that pay on GPUs only; each checks the device of the tensors it would touch.

In: a functional ATen graph. Out: the same with activations as part of the product in front of them, and linear layers
whose result is transposed at once computed transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten


def on_gpu(match: Match) -> bool:
    return match.root.meta["val"].device.type == "cuda"


_LINEAR = call(
    aten.addmm.default,
    Arg("bias"),
    call(aten.view.default, Arg("x"), ..., users=ANY),
    call(aten.t.default, Arg("w"), users=ANY),
)


@rule(
    call(
        aten.clone.default,
        call((aten.transpose.int, aten.permute.default), call(aten.view.default, _LINEAR, ...), ..., name="turn"),
        ...,
        users=ANY,
    ),
    extra_check=on_gpu,
)
def linear_permute(match: Match) -> Any:
    """`linear(x)` turned and copied: `w @ x^T`, which is laid out so from the start."""
    x, turn = match["x"], match["turn"]
    value = x.meta["val"]
    if value.dim() != 3 or tuple(match.root.meta["val"].shape) != (
        value.shape[0],
        match["w"].meta["val"].shape[0],
        value.shape[1],
    ):
        return None
    if turn.meta["val"].stride(-1) == 1 or not match.root.meta["val"].is_contiguous():
        return None
    turned = match.call(aten.transpose.int, x, 1, 2)
    w = match.call(
        aten.expand.default,
        match.call(aten.unsqueeze.default, match["w"], 0),
        [value.shape[0], *match["w"].meta["val"].shape],
    )
    bias = match.call(aten.unsqueeze.default, match["bias"], -1)
    return match.call(aten.baddbmm.default, bias, w, turned)


# -- activations ------------------------------------------------------------------------------------
_ACTIVATIONS = (aten.relu.default, aten.gelu.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
# What reads all of a tensor from memory, however it was made.
_READS_MEMORY = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default}


@rule(call(_ACTIVATIONS, Arg("x"), ..., users=ANY), extra_check=on_gpu, any_size=True)
def activation_in_product(match: Match) -> Any:
    """What the library does on its way to memory would be a kernel of its own: unless one of ours reads it, which
    computes it for nothing."""
    is_gelu, product = match.root.target is aten.gelu.default, _product_in_front(match["x"])
    if product is None or not _is_taken(product, match.root):
        return None
    if is_gelu and match.root.kwargs.get("approximate") != "tanh":
        return match.miss("the library has the approximation of gelu by tanh alone")
    if not all(_reads_memory(reader) for reader in readers(match.root)):
        return match.miss("a kernel that reads it computes it as well")
    done = match.call(aten._addmm_activation.default, *product.args, use_gelu=is_gelu)
    return match.call(aten.view.default, done, list(match.root.meta["val"].shape))


def _product_in_front(node: Any) -> fx.Node | None:
    """The product that the node is, perhaps in another shape, if nobody else reads it."""
    while isinstance(node, fx.Node) and node.target in _VIEWS and len(node.users) == 1:
        node = node.args[0]
    found = isinstance(node, fx.Node) and node.target is aten.addmm.default and len(node.users) == 1
    return node if found and not node.kwargs else None


def _is_taken(product: fx.Node, activation: fx.Node) -> bool:
    """In float32 the library's gelu is coarser than float32 is."""
    exact = activation.target is aten.relu.default and product.meta["val"].dtype == torch.float32
    halves = product.meta["val"].dtype in (torch.bfloat16, torch.float16)
    return (exact or halves) and product.args[0].meta["val"].dim() == 1  # type: ignore[union-attr]


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """Who reads the node, itself or through views."""
    for user in node.users:
        if is_view(user):
            yield from readers(user)
        else:
            yield user


def _reads_memory(reader: fx.Node) -> bool:
    return reader.op == "output" or reader.target in _READS_MEMORY or "attention" in str(reader.target)


GPU: Rules = (activation_in_product, linear_permute)
