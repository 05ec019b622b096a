"""Convolutions run channels last: the layout of the tensors between them is changed, and of nothing that can be seen.

In: a `Joint` whose tensors lie as eager's do. Out: the same one, edited in place: images are turned at the
first convolution, and what follows inherits that by eager's own stride rules. An operator that sees layouts
(`ops/layout.py`), a view that only eager's layout allows, and the user get eager's layout back, in a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from litz.context import Context
from litz.graph.alias import may_stand_for
from litz.graph.editor import Editor, is_channels_last, same_layout, same_place
from litz.graph.signature import Joint
from litz.graph.sizes import sizes
from litz.loop.dtype import from_torch
from litz.ops.int8 import INT8_CONVOLUTION
from litz.ops.layout import DRAWN, why_it_sees_layouts

aten = torch.ops.aten

# Convolutions: which arguments are images. The weight follows them.
_IMAGES = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1), INT8_CONVOLUTION: (0,)}
# Operators, beside pointwise ones, whose results are images like those they are given; and where these stand.
_OF_IMAGES = {
    aten.convolution.default: (0,),
    INT8_CONVOLUTION: (0,),
    aten._native_batch_norm_legit_no_training.default: (0,),
    aten.cudnn_batch_norm.default: (0,),
    aten._native_batch_norm_legit_functional.default: (0,),
    aten._native_batch_norm_legit.no_stats: (0,),
    aten.native_batch_norm_backward.default: (0, 1),
    aten.avg_pool2d.default: (0,),
    aten.avg_pool2d_backward.default: (0, 1),
    aten.max_pool2d_with_indices.default: (0,),
    aten.max_pool2d_with_indices_backward.default: (0, 1),
}


def lay_out(joint: Joint, ctx: Context) -> Joint:
    if any(node.target in _IMAGES for node in joint.graph.graph.nodes):
        _Pass(joint.graph, ctx).run()
    return joint


class _Pass:
    """One walk over the graph, in order."""

    def __init__(self, graph_module: fx.GraphModule, ctx: Context):
        self.ctx, self.graph_module, self.editor = ctx, graph_module, Editor(graph_module)
        self.lanes = ctx.target.lanes(4)
        # A library's convolutions in groups are as likely to lose by it.
        self.has_groups = any(_groups(node) != 1 for node in graph_module.graph.nodes if node.target in _IMAGES)
        self.eager: dict[fx.Node, Any] = {}  # what was computed anew: its value as eager has it
        self.moved: set[fx.Node] = set()  # of these, what lies otherwise now
        self.turned: dict[fx.Node, fx.Node] = {}  # copies that lie channels last
        self.restored: dict[fx.Node, fx.Node] = {}  # copies that lie as in eager

    def run(self) -> None:
        for node in list(self.graph_module.graph.nodes):
            if node.op == "output":
                self._give_back(node, self.eager)
            elif node.op == "call_function":
                self._visit(node)
        if self.turned:
            self._drop_needless_copies()
            self.graph_module.recompile()

    def _visit(self, node: fx.Node) -> None:
        turned = node.target in _IMAGES and self._turn(node)
        if not turned and self.moved.isdisjoint(node.all_input_nodes):
            return
        if why_it_sees_layouts(node.target) is not None:
            self._give_back(node, self.moved)
        elif node.target is not aten.copy_.default:  # whose result is the input it writes to
            self._recompute(node)

    def _turn(self, node: fx.Node) -> bool:
        """Whether the convolution is given images that were laid out channels last for it."""
        images = _IMAGES[node.target]
        plain = [i for i in images if not is_channels_last(node.args[i].meta["val"])]  # type: ignore[union-attr]
        if not plain or not self._pays(node, *(node.args[images[-1] :])):
            return False
        if not self.ctx.spend(f"channels last at {node.name}"):
            return False
        args = list(node.args)
        for position in plain:
            args[position] = self._channels_last(args[position], node)
        node.args = tuple(args)
        self.ctx.fired("channels_last", __file__, lay_out.__code__.co_firstlineno)
        return True

    def _channels_last(self, image: Any, before: fx.Node) -> fx.Node:
        if image not in self.turned:
            layout = {"memory_format": torch.channels_last}
            self.turned[image] = self.editor.call(aten.clone.default, (image,), layout, before, image)
            # Eager's backward reads the image as it is then.
            self.turned[image].meta["in_backward"] = True
        return self.turned[image]

    def _pays(self, node: fx.Node, image: fx.Node, weight: fx.Node, *rest: Any) -> bool:
        """Whether the target has it so; where Litz generates the window, whether that makes whole vectors of channels
        contiguous."""
        x, w = image.meta["val"], weight.meta["val"]
        if node.target is INT8_CONVOLUTION:
            return x.dim() == 4  # channels side by side are what is multiplied at once
        _stride, padding, _dilation, transposed, _output_padding, groups = rest[1:7]
        if transposed or x.dim() != 4 or from_torch(x.dtype) not in self.ctx.target.channels_last:
            return False
        if any(isinstance(size, torch.SymInt) for size in (*x.shape, *w.shape)):
            return False  # called as it is
        if not self.ctx.target.generates_products:
            # Of a gradient and its image, where one lies so, the library has the other lie so too.
            images = [node.args[i].meta["val"] for i in _IMAGES[node.target]]  # type: ignore[union-attr]
            return not self.has_groups or any(map(is_channels_last, images))
        # A window whose rows are whole vectors already (an image cut into patches) is read in place.
        if groups == 1 and w.shape[-1] % self.lanes == 0 and not any(padding):
            return False
        return w.shape[0] % self.lanes == 0

    def _recompute(self, node: fx.Node) -> None:
        before = node.meta["val"]
        if node.target is operator.getitem:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]  # type: ignore[union-attr, index]
        elif self._stays_channels_last(node):
            # Asking PyTorch how each lies would take as long as the trace did.
            several = isinstance(before, (tuple, list))
            found = tuple(self._turned(value) for value in (before if several else (before,)))
            node.meta["val"] = found if several else found[0]
        else:
            try:
                _ask_for_view(node)
                node.meta["val"] = self.editor.value(node.target, node.args, node.kwargs)
            except (RuntimeError, ValueError):
                # A view that only eager's layout allows.
                self._give_back(node, self.moved)
                node.meta["val"] = self.editor.value(node.target, node.args, node.kwargs)
        if node.target in DRAWN:
            node.meta["val"] = with_parts(node.meta["val"], before, DRAWN[node.target])
        self.eager[node] = before
        if not same_place(before, node.meta["val"]):
            self.moved.add(node)

    @staticmethod
    def _stays_channels_last(node: fx.Node) -> bool:
        """Whether the results are images like all those that it is computed from."""
        if node.target in _OF_IMAGES:
            images = [node.args[position] for position in _OF_IMAGES[node.target]]
        elif torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
            shape = sizes(node.meta["val"].shape)
            images = [n for n in node.all_input_nodes if sizes(n.meta["val"].shape) == shape]
        else:
            return False
        return all(is_channels_last(image.meta["val"]) for image in images)  # type: ignore[union-attr]

    def _turned(self, value: Any) -> Any:
        return channels_last_like(value) if isinstance(value, FakeTensor) and value.dim() == 4 else value

    def _give_back(self, node: fx.Node, which: Collection[fx.Node]) -> None:
        """The node reads, of those, copies that lie as in eager."""
        for moved in [n for n in node.all_input_nodes if n in which]:
            node.replace_input_with(moved, self.editor.restored(moved, self.eager, node, self.restored))

    def _drop_needless_copies(self) -> None:
        """Copies that give their argument the layout it has by now: of an image that the user turns himself."""
        for node in self.eager:
            x = node.args[0] if node.target is aten.clone.default else None
            if isinstance(x, fx.Node) and same_layout(x.meta["val"], node.meta["val"]) and may_stand_for(x, node):
                self.editor.replace(node, x, fresh=False)


def _groups(convolution: fx.Node) -> Any:
    if convolution.target is INT8_CONVOLUTION:
        return 1
    return convolution.args[8 if convolution.target is aten.convolution.default else 9]


def with_parts(value: Any, other: Any, places: Collection[int]) -> Any:
    """The value with those of its parts that stand in the places taken from the other."""
    if isinstance(value, torch.Tensor):
        return other if 0 in places else value
    return tuple(o if place in places else v for place, (v, o) in enumerate(zip(value, other, strict=True)))


def channels_last_like(fake: FakeTensor) -> FakeTensor:
    """The fake laid out channels last; made directly, since an operator under its mode takes several times as long."""
    n, c, h, w = fake.shape
    strides = (c * w * h, 1, c * w, c)
    return FakeTensor(
        fake.fake_mode, torch.empty_strided((n, c, h, w), strides, dtype=fake.dtype, device="meta"), fake.device
    )


def _ask_for_view(node: fx.Node) -> None:
    """Raises if the layout does not allow the view: fakes allow some that no tensor does, of images one row high."""
    if node.target is not aten.view.default:
        return
    image, shape = node.args[0].meta["val"], node.args[1]  # type: ignore[union-attr]
    if all(isinstance(number, int) for number in (*image.shape, *image.stride(), *shape)):  # type: ignore[misc]
        with unset_fake_temporarily():
            torch.empty_strided(image.shape, image.stride(), device="meta").view(shape)
