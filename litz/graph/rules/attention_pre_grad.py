"""Attention before autograd: where its weights are dropped at random.

In: a torch-level graph. Out: the same with `scaled_dot_product_attention`, which autograd then differentiates
itself. On the CPU that operator has no fused form for it and draws the numbers eager would draw; on others it may
have one. A mask must be proved to leave a key in every row: the operator gives zeros in a row without, a softmax
NaN. So a mask that is learned stays as it is written. All other attention is left to the joint graph, where more is
known of its mask.

The one idea: the nodes from the product of queries and keys to the product with the values, taken as a
function, are traced to ATen, and read there like any other attention, whatever way they were spelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from litz.graph.alias import is_view
from litz.graph.editor import Editor, alike, same_layout
from litz.graph.match import Found, Miss
from litz.graph.mutation import disturbed, draws
from litz.graph.pattern import ANY, call
from litz.graph.rewrite import Match, Rules, metadata, rule
from litz.graph.rules.attention import arguments_of
from litz.graph.rules.attention_read import PRODUCTS, NoAttention, read
from litz.graph.trace_example import trace_example
from litz.graph.uniform import Constants

aten = torch.ops.aten

_TORCH_PRODUCTS = (torch.matmul, torch.bmm, torch.baddbmm, torch.functional.einsum, torch.einsum)
_MAKERS = (torch.zeros, torch.ones, torch.full, torch.tensor, torch.scalar_tensor, torch.arange)
_FAR = 16  # nodes between a softmax and what it is attention over


@rule(call((torch.matmul, torch.bmm, torch.functional.einsum), users=ANY), any_size=True)
def attention_pre_grad(match: Match) -> Any:
    for weights in match.root.all_input_nodes[:2]:
        after = _from_softmax(weights)
        if after is not None:
            return _replaced(match, after)
    return None


def _from_softmax(node: fx.Node) -> list[fx.Node] | None:
    """The softmax above and the nodes after it, up to this one; None if there is none on a straight way."""
    way = [node]
    for _ in range(8):
        if way[-1].target is torch.softmax:
            return way[::-1]
        above = way[-1].all_input_nodes
        if way[-1].op not in ("call_function", "call_method") or len(above) != 1:
            return None
        way.append(above[0])
    return None


def _replaced(match: Match, after: list[fx.Node]) -> Any:
    drops = [n for n in after if n.target is functional.dropout and n.args[2] and n.args[1]]
    scores = _to_product(after[0])
    if scores is None or len(drops) != 1:
        return None
    own = sorted({*scores, *after, match.root})
    inside = set(own)
    inputs = list(dict.fromkeys(i for n in own for i in n.all_input_nodes if i not in inside))
    (drop,) = drops
    if not isinstance(drop.args[1], float):
        return match.miss("the share that is dropped is not known", drop)
    seen = next((n for n in own[:-1] if not _is_made(n) and any(u not in inside for u in n.users)), None)
    if seen is not None:
        return match.miss("its result is also used outside of the attention", seen)
    writer = disturbed(own[0], match.root, inside)
    if writer is not None:
        return match.miss("it may write to what the attention reads", writer)
    other = _drawn_after(drop, match.root)
    if other is not None:
        return match.miss("it draws random numbers before the attention could", other)
    traced = _fused(match, own, inputs, drop)
    if traced is None:
        return None
    new = match.editor.inline(traced, inputs, match.root, match.root)
    # The new operator draws these numbers.
    drop.replace_all_uses_with(drop.args[0])  # type: ignore[arg-type]
    match.editor.graph.erase_node(drop)
    return new


def _to_product(softmax: fx.Node) -> set[fx.Node] | None:
    """The nodes from the nearest product above the softmax down to it."""
    below: dict[fx.Node, fx.Node] = {}
    level = [softmax]
    for _ in range(_FAR):
        further = []
        for node in level:
            for above in node.all_input_nodes:
                if above in below or above.op not in ("call_function", "call_method"):
                    continue
                below[above] = node
                if above.target in _TORCH_PRODUCTS:
                    return set(_way(above, softmax, below))
                further.append(above)
        level = further
    return None


def _way(node: fx.Node, end: fx.Node, below: dict[fx.Node, fx.Node]) -> Iterator[fx.Node]:
    while node is not end:
        yield node
        # Numbers made on the spot are part of it: a scale as a tensor of one element, say.
        node = below[node]
        yield from (i for i in node.all_input_nodes if _is_made(i))


def _is_made(node: fx.Node) -> bool:
    """Whether it is a tensor made of nothing, which can be made again."""
    return node.op == "call_function" and node.target in _MAKERS and not node.all_input_nodes


def _drawn_after(drop: fx.Node, root: fx.Node) -> fx.Node | None:
    node = drop.next
    while node is not root:
        if draws(node):
            return node
        node = node.next
    return None


def _fused(match: Match, own: list[fx.Node], inputs: list[fx.Node], drop: fx.Node) -> fx.GraphModule | None:
    """The attention as an ATen graph over `inputs` with the fused operator in it; None if it is no attention."""

    def function(*given: Any) -> Any:
        env = dict(zip(inputs, given, strict=True))
        for node in own:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            if node is drop:
                env[node] = args[0]
            elif node.op == "call_method":
                env[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return env[match.root]

    share = float(drop.args[1])  # type: ignore[arg-type]
    values = [node.meta.get("val") for node in inputs]
    number = {node: position for position, node in enumerate([*inputs, *own])}
    form = tuple(f"{n.target}{fx.node.map_arg((n.args, n.kwargs), lambda i: slice(number[i]))}" for n in own)
    key = ("attention_pre_grad", form, share, *(metadata(v) for v in values))
    # Each layer of a model is written alike: traced and read once, whatever the outcome.
    outcome = match.editor.example(key, lambda: _read(match, function, values, share))
    if isinstance(outcome, Miss):
        match.declined = outcome._replace(node=match.root)
        return None
    return outcome


def _read(match: Match, function: Any, values: list[Any], share: float) -> fx.GraphModule | Miss:
    traced = trace_example(function, values, match.editor.mode)
    (output,) = (n for n in traced.graph.nodes if n.op == "output")
    result: Any = output.args[0]
    if any(n.target is aten.copy_.default for n in traced.graph.nodes):
        return Miss(None, "it writes to its inputs", len(values))
    if not alike(result.meta["val"], match.root.meta["val"]):
        return Miss(None, "types are chosen by the place it runs in", len(values))
    product = result
    while product.target not in PRODUCTS and is_view(product) and isinstance(product.args[0], fx.Node):
        product = product.args[0]
    if product.target not in PRODUCTS:
        return Miss(None, "it does not end in a product with the values", len(values))
    inner = Match(match.rule, Found({}, {}, (product,)), Editor(traced), match.ctx, Constants(traced))
    try:
        arguments = arguments_of(inner, read(product, inner.uniform))
    except NoAttention as no:
        return Miss(None, no.why, no.matched + 1)
    if arguments is None:
        return inner.declined or Miss(None, "it is no attention", 1)
    masking = arguments.masking
    if not masking.sure:
        return Miss(None, "its mask is not proved to leave a key in every row", 1)
    given = (arguments.q, arguments.k, arguments.v, masking.bias, share, masking.causal)
    new = inner.call(functional.scaled_dot_product_attention, *given, scale=arguments.scale)
    # Without a fused form the result is laid out as the product was.
    new.meta["val"] = new.meta["val"].new_empty(new.meta["val"].shape)
    stands_for = result if same_layout(new.meta["val"], result.meta["val"]) else product
    if not same_layout(new.meta["val"], stands_for.meta["val"]):
        new = inner.call(aten.view.default, new, list(product.meta["val"].shape))
    stands_for.replace_all_uses_with(new)
    traced.graph.eliminate_dead_code()
    if any(_has_size(n) for n in traced.graph.nodes):
        return Miss(None, "its sizes are symbolic", len(values))
    return traced


def _has_size(node: fx.Node) -> bool:
    """Whether a size of the graph is written into the node: it would not hold for another."""
    given = tree_flatten((node.args, node.kwargs))[0]
    values = [g.meta.get("val") if isinstance(g, fx.Node) else g for g in given]
    return any(isinstance(value, torch.SymInt) for value in values)


ATTENTION_PRE_GRAD: Rules = (attention_pre_grad,)
