"""Indexing, scattering, creating, joining, padding, moving: where an element comes from and where it goes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from litz.compat import torch_version
from tests.ops.lowering import Case, case

FAKES_KEEP_STRIDES = torch_version() >= (2, 13, 0)  # torch 2.11's are contiguous after these operators

torch.manual_seed(1)
aten = torch.ops.aten
X = torch.randn(4, 5, 6)
TRANSPOSED = torch.randn(6, 5, 4).permute(2, 1, 0)
SLICED = torch.randn(8, 5, 13)[::2, :, 1:13:2]
INTS = torch.randint(-9, 9, (4, 5, 6))
HALF = torch.randn(4, 5, 6).bfloat16()
TABLE = torch.randn(10, 8)
I = torch.tensor([3, 0, 2])
NEGATIVE = torch.tensor([[-1], [2]])
ROWS, COLUMNS = torch.tensor([[0], [3]]), torch.tensor([1, -2, 4])
IMAGE = torch.randn(2, 4, 5, 6)
LAST = IMAGE.to(memory_format=torch.channels_last)
MANY, ROW = torch.randperm(9), torch.randn(20)
SCALAR = torch.tensor(1.5)
BAGGED = torch.tensor([3, 1, 7, 7, 0])
SORTED = torch.tensor([-7, -3, -3, 0, 2, 2, 2, 5, 8])


def _put(x, indices, values, accumulate=False):
    return aten.index_put(x, indices, values, accumulate)


def _set_slice(x, y):
    x = x.clone()
    x[:, 1:4:2] = y
    return x


def _set_mask(x):
    x = x.clone()
    x[x > 0] = 7.0
    return x


READ = [
    case("embedding", lambda w, i: F.embedding(i, w), TABLE, torch.randint(0, 10, (2, 3))),
    case("embedding-int32", lambda w, i: F.embedding(i, w), TABLE, torch.randint(0, 10, (2, 3)).int()),
    case("embedding-scalar", lambda w, i: F.embedding(i, w), TABLE, torch.tensor(4)),
    case("embedding-padding", lambda w, i: F.embedding(i, w, padding_idx=3), TABLE, torch.tensor([3, 1])),
    case("embedding-transposed", lambda w, i: F.embedding(i, w.t()), TABLE, torch.tensor([[3, 1], [0, 7]]).t()),
    case("embedding-bf16", lambda w, i: F.embedding(i, w), TABLE.bfloat16(), I),
    case("embedding-empty", lambda w, i: (F.embedding(i, w) * 2).sum(), TABLE, torch.zeros(0, dtype=torch.int64)),
    case("embedding_bag-max", lambda w, i, o: F.embedding_bag(i, w, o, mode="max"), TABLE, BAGGED,
         torch.tensor([0, 2, 2])),
    case("embedding_bag-sum-bf16", lambda w, i, o: aten._embedding_bag(w, i, o)[0], TABLE.bfloat16(), BAGGED,
         torch.tensor([0, 3])),
    case("embedding_bag-mean", lambda w, i, o: F.embedding_bag(i, w, o), TABLE, BAGGED, torch.tensor([0, 3]),
         calls=("aten::_embedding_bag_forward_only",)),
    case("index_select", lambda x, i: x.index_select(1, i), X, I),
    case("index_select-last", lambda x, i: x.index_select(-1, i), TRANSPOSED, I),
    case("index_select-scalar-index", lambda x, i: x.index_select(0, i), X, torch.tensor(2)),
    case("gather", lambda x, i: x.gather(1, i), X, torch.randint(0, 5, (4, 3, 6))),
    case("gather-smaller", lambda x, i: x.gather(-1, i), SLICED, torch.randint(0, 6, (2, 3, 9))),
    case("gather-labels", lambda x, i: x.gather(1, i.unsqueeze(1)), TABLE, torch.randint(0, 8, (10,))),
    case("searchsorted", lambda s, x: torch.searchsorted(s, x), TABLE.sort()[0], torch.randn(10, 5)),
    case("searchsorted-right", lambda s, x: torch.searchsorted(s, x, right=True), SORTED, INTS),
    case("searchsorted-int32", lambda s, x: torch.searchsorted(s, x, out_int32=True), SORTED, X.log()),
    case("searchsorted-sorter", lambda s, i, x: torch.searchsorted(s, x, sorter=i), TABLE[0], TABLE[0].argsort(), X),
    case("searchsorted-scalar", lambda s: torch.searchsorted(s, 2), SORTED),
    case("take", lambda x, i: x.take(i), TRANSPOSED, torch.tensor([[0, -1], [119, 17]])),
    case("index-rows", lambda x, i: x[i], X, I),
    case("index-middle", lambda x, i: x[:, i], X, NEGATIVE),
    case("index-last", lambda x, i: x[..., i], TRANSPOSED, I),
    case("index-adjacent", lambda x, r, c: x[r, c], X, ROWS, COLUMNS),
    case("index-adjacent-end", lambda x, r, c: x[:, r, c], SLICED, ROWS, COLUMNS),
    case("index-apart", lambda x, r, c: x[r, :, c], X, ROWS, COLUMNS),
    case("index-apart-4d", lambda x, r, c: x[:, r, :, c], IMAGE, torch.tensor([0, 3]), torch.tensor([1, 5])),
    case("index-all", lambda x, r, c, d: aten.index.Tensor(x, [r, c, d]), TRANSPOSED, ROWS, COLUMNS, torch.tensor([2])),
    case("index-int32", lambda x, i: aten.index.Tensor(x, [i]), X, I.int()),
    case("index-scalar", lambda x, i: aten.index.Tensor(x, [None, i]), X, torch.tensor(-1)),
    case("index-bool-values", lambda x, i: x[:, i] > 0, X, I),
    case("index-arange", lambda x, i: x[torch.arange(4), i], X, torch.tensor([0, 2, 4, 1])),
]  # fmt: skip

WRITE = [
    case("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, -2), X, torch.randn(4, 6)),
    case("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 4), X, torch.randn(4, 3, 6)),
    case("slice_scatter-step", lambda x, y: torch.slice_scatter(x, y, 2, 1, 6, 2), TRANSPOSED, torch.randn(4, 5, 3)),
    case("slice_scatter-all", lambda x, y: torch.slice_scatter(x, y, 0), X, torch.randn(4, 5, 6)),
    case("slice_scatter-negative", lambda x, y: torch.slice_scatter(x, y, -1, -2), X, torch.randn(4, 5, 2)),
    case("slice_scatter-nothing", lambda x, y: torch.slice_scatter(x, y, 0, 3, 3), X, torch.randn(0, 5, 6)),
    case("set-slice", _set_slice, X, torch.randn(6)),
    case("set-slice-transposed", _set_slice, TRANSPOSED, torch.randn(4, 1, 6)),
    case("set-mask", _set_mask, X),
    case("set-mask-rows", lambda x, m: _put(x, [m], torch.tensor(0.0)), X, torch.tensor([True, False, True, False])),
    case("set-mask-inner", lambda x, m: _put(x, [None, m], torch.tensor([2.0])), X, torch.rand(5, 6) > 0.5),
    case("diagonal_scatter", lambda x, y: torch.diagonal_scatter(x, y), torch.randn(4, 5), torch.randn(4)),
    case("diagonal_scatter-below", lambda x, y: torch.diagonal_scatter(x, y, -1, 1, 2), X, torch.randn(4, 4)),
    case("scatter-value", lambda x, i: x.scatter(1, i, 3.0), X, torch.randint(0, 5, (4, 2, 6))),
    case("scatter-src", lambda x, i, s: x.scatter(-1, i, s), X, torch.tensor([[[1, 5], [0, 2]]]), torch.randn(2, 3, 4)),
    case("scatter-one-hot", lambda i: torch.zeros(5, 7).scatter(1, i.unsqueeze(1), 1.0), torch.randint(0, 7, (5,))),
    case("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), X, torch.randint(0, 4, (3, 5, 6)), X * 2),
    case("scatter-many", lambda i: torch.zeros(20).scatter(0, i, 2.0), MANY),
    case("index_put-one", lambda x, v, i: _put(x, [None, i], v), X, torch.randn(6), torch.tensor([3])),
    case("index_put-apart", lambda x, v, r, c: _put(x, [r, None, c], v), X, X[:2, :3, :5], ROWS, COLUMNS),
    case("index_put-adjacent", lambda x, v, r, c: _put(x, [None, r, c], v), X, torch.randn(4, 2, 3), ROWS, COLUMNS),
    case("index_put-accumulate", lambda x, v, i: _put(x, [i], v, True), X, X[1:], torch.tensor([1, 1, -1])),
    case("index_put-many", lambda x, i: _put(x, [i], x[:9]), ROW, MANY),
    case("scatter-scalar", lambda x, i: x.scatter(0, i, 3.0), SCALAR, torch.tensor(0)),
    case("scatter_add-scalar", lambda x, i, s: x.scatter_add(0, i, s), SCALAR, MANY * 0, torch.randn(9)),
    case("gather-scalar", lambda x, i: x.gather(0, i), SCALAR, torch.tensor([0, 0])),
    case("index_select-scalar", lambda x, i: x.index_select(0, i), SCALAR, torch.tensor([0])),
    case("index_add-scalar", lambda x, i: x.index_add(0, i, x), SCALAR, torch.tensor(0)),
    case("put", lambda x, i, s: x.put(i, s), TRANSPOSED, MANY - 4, torch.randn(3, 3)),
    case("put-add", lambda x, i, s: x.put(i, s, True), X, MANY // 3, torch.randn(9)),
    case("scatter_reduce-sum", lambda x, i, s: x.scatter_reduce(1, i, s, "sum"), X,
         torch.randint(0, 5, (4, 9, 6)), torch.randn(4, 9, 6)),
    case("scatter_reduce-mean", lambda x, i, s: x.scatter_reduce(0, i, s, "mean", include_self=False),
         ROW, MANY // 2, torch.randn(9)),
    case("scatter_reduce-amax-bf16", lambda x, i, s: x.scatter_reduce(2, i, s, "amax"), HALF,
         torch.randint(0, 6, (4, 5, 9)), torch.randn(4, 5, 9).bfloat16()),
    case("index_reduce-prod", lambda x, i, s: x.index_reduce(1, i, s, "prod"), X, MANY % 5, torch.randn(4, 9, 6)),
    case("index_add-alpha", lambda x, i, s: x.index_add(1, i, s, alpha=2), X, MANY % 5, torch.randn(4, 9, 6)),
    case("index_copy", lambda x, i, s: x.index_copy(2, i, s), X, torch.tensor([4, 0]), torch.randn(4, 5, 2)),
    case("index_add", lambda x, i, s: x.index_add(1, i, s), TRANSPOSED, torch.tensor([4, 4]), torch.randn(4, 2, 6)),
    case("index_fill", lambda x, i: x.index_fill(1, i, -1.0), X, torch.tensor([0, -1])),
]  # fmt: skip

CREATE = [
    case("full", lambda: torch.full((2, 3), 1.5)),
    case("full-int", lambda: torch.full((2, 3), 7)),
    case("full-bool", lambda: torch.full((2,), True)),
    case("full-scalar", lambda: torch.full((), -2.0)),
    case("full_like-transposed", lambda x: torch.full_like(x, 3.0), TRANSPOSED),
    case("full_like-dtype", lambda x: torch.full_like(x, 3, dtype=torch.int64), X),
    case("zeros-ones", lambda: (torch.zeros(3), torch.ones(2, 2, dtype=torch.int32))),
    case("zeros_like-ones_like", lambda x: (torch.zeros_like(x), torch.ones_like(x)), LAST),
    case("new", lambda x: (x.new_zeros(2), x.new_ones((2, 1)), x.new_full((3,), 2.0)), HALF),
    case("empty-filled", lambda x: torch.empty_like(x).fill_(2.0), TRANSPOSED),
    case("new_empty-filled", lambda x: x.new_empty((2, 3)).fill_(2.0), X),
    case("scalar_tensor", lambda x: torch.where(x > 0, x, 0.0), X),
    case("fill-tensor", lambda x, y: aten.fill.Tensor(x, y), X, SCALAR),
    case("arange", lambda: torch.arange(7)),
    case("arange-start", lambda: torch.arange(2, 9)),
    case("arange-step", lambda: torch.arange(9, -3, -4)),
    case("arange-float", lambda: torch.arange(0.5, 3.1, 0.3)),
    case("arange-dtype", lambda: torch.arange(5, dtype=torch.float32)),
    case("arange-f64", lambda: torch.arange(0, 1, 0.1, dtype=torch.float64)),
    case("arange-i32", lambda: torch.arange(1, 5, dtype=torch.int32)),
    case("arange-int-of-floats", lambda: torch.arange(0.9, -2.9, -1.0, dtype=torch.int64)),
    case("arange-mask", lambda x: torch.arange(6) <= x, torch.tensor([[2], [4]])),
    case("linspace", lambda: torch.linspace(-1, 2, 7)),
    case("linspace-one", lambda: torch.linspace(3, 4, 1)),
    case("eye", lambda: (torch.eye(3), torch.eye(2, 4), torch.eye(3, dtype=torch.int64))),
    case("tril", lambda x: torch.tril(x), X),
    case("tril-diagonal", lambda x: torch.tril(x, -1), TRANSPOSED),
    case("triu", lambda x: torch.triu(x, 2), X),
    case("triu-below", lambda x: torch.triu(x, -1), INTS),
    case("tril-bool", lambda: torch.ones(4, 4, dtype=torch.bool).tril()),
    case("diag_embed", lambda x: torch.diag_embed(x), X),
    case("diag_embed-offset", lambda x: torch.diag_embed(x, -2, 0, 2), TRANSPOSED),
    case("zero", lambda x: aten.zero(x), TRANSPOSED, strides=FAKES_KEEP_STRIDES),
    case("tril-nan", lambda x: torch.tril(x / 0.0 * 0.0), X),
]  # fmt: skip

MOVE = [
    case("cat", lambda x, y: torch.cat([x, y, x], 1), X, torch.randn(4, 2, 6)),
    case("cat-negative", lambda x, y: torch.cat([x, y], -1), TRANSPOSED, SLICED),
    case("cat-channels_last", lambda x: torch.cat([x, x * 2], 1), LAST),
    case("cat-promotion", lambda x, y: torch.cat([x, y]), X, INTS),
    case("cat-empty", lambda x, e: torch.cat([e, x], 1), X, torch.empty(0)),
    case("cat-empty-part", lambda x: torch.cat([x[:, :0], x], 1), X),
    case("cat-one-dim", lambda x: torch.cat([x, x]), I),
    case("stack", lambda x, y: torch.stack([x, y], 1), X, TRANSPOSED),
    case("stack-last", lambda x, y: torch.stack([x, y], -1), X, X),
    case("stack-scalars", lambda x, y: torch.stack([x, y]), SCALAR, SCALAR),
    case("pad", lambda x: F.pad(x, (1, 2)), X),
    case("pad-two", lambda x: F.pad(x, (1, 0, 2, 3), value=1.5), TRANSPOSED),
    case("pad-crop", lambda x: F.pad(x, (-1, 2, 1, -2)), X),
    case("pad-crop-only", lambda x: F.pad(x, (-1, -1), value=3.0), X),
    case("pad-int", lambda x: F.pad(x, (2, 2), value=-7), INTS),
    case("pad-channels_last", lambda x: F.pad(x, (1, 1, 1, 1)), LAST),
    case("pad-bool", lambda x: F.pad(x > 0, (1, 1), value=True), X),
    case("pad-bf16", lambda x: F.pad(x, (1, 1), value=2.0), HALF),
    case("reflection-1d", lambda x: F.pad(x, (2, 3), mode="reflect"), X),
    case("reflection-2d", lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), LAST, strides=FAKES_KEEP_STRIDES),
    case("replication-1d", lambda x: F.pad(x, (2, 3), mode="replicate"), TRANSPOSED),
    case("replication-2d", lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"), IMAGE),
    case("replication-3d", lambda x: F.pad(x, (1, 2, 3, 0, 1, 1), mode="replicate"), IMAGE),
    case("circular", lambda x: F.pad(x, (1, 2, 1, 1), mode="circular"), IMAGE),
    case("flip", lambda x: x.flip((0, -1)), TRANSPOSED),
    case("roll", lambda x: x.roll((1, -2), (0, 2)), X),
    case("roll-twice", lambda x: x.roll((1, 3), (1, 1)), TRANSPOSED),
    case("roll-flat", lambda x: x.roll(7), X),
    case("roll-flat-transposed", lambda x: x.roll(-7), TRANSPOSED),
    case("roll-one-dim", lambda x: x.roll(-8), I),
    case("repeat", lambda x: x.repeat(2, 1, 3), X),
    case("repeat-more-dims", lambda x: x.repeat(3, 2, 1, 1), TRANSPOSED),
    case("repeat-scalar", lambda x: x.repeat(4), SCALAR),
    case("repeat_interleave", lambda x: x.repeat_interleave(2, 1), X),
    case("tile", lambda x: x.tile(2, 2), X),
    case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), IMAGE),
    case("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), torch.randn(2, 3, 4, 6)),
    case("channel_shuffle", lambda x: torch.channel_shuffle(x, 2), IMAGE),
    case("glu", lambda x: F.glu(x, -1), X),
    case("glu-middle", lambda x: F.glu(x, 1), LAST),
    case("permute_copy", lambda x: torch.permute_copy(x, (2, 0, 1)), SLICED),
    case("expand_copy", lambda x: torch.expand_copy(x[:, :1], (4, 3, 6)), X),
    case("slice_copy", lambda x: torch.slice_copy(x, 1, 1, 5, 2), TRANSPOSED),
    case("select_copy", lambda x: torch.select_copy(x, 1, -1), SLICED),
    case("view_copy", lambda x: torch.view_copy(x, (20, 6)), X),
    case("unsqueeze_copy", lambda x: torch.unsqueeze_copy(x, 1), X),
    case("squeeze_copy", lambda x: torch.squeeze_copy(x[:, :1]), X),
    case("transpose_copy", lambda x: torch.transpose_copy(x, 0, 2), X),
    case("diagonal_copy", lambda x: torch.diagonal_copy(x, 1, 1, 2), X),
    case("split_copy", lambda x: torch.split_copy(x, 2, 1), X),
    case("narrow_copy", lambda x: torch.narrow_copy(x, 2, 1, 3), TRANSPOSED),
    case("unsafe_split", lambda x: torch.unsafe_split(x, 2, 1), SLICED),
    case("unbind_copy", lambda x: torch.unbind_copy(x, 1), TRANSPOSED),
    case("views", lambda x: (x.unfold(1, 2, 2), x.diagonal(), x.unsqueeze(0), x.movedim(0, 1)), X),
    case("chunk", lambda x: x.chunk(3, -1), SLICED),
]  # fmt: skip

CASES: list[Case] = [*READ, *WRITE, *CREATE, *MOVE]
