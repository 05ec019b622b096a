"""What can be proved about constants: uniform values, all-true and causal masks, and what must not be."""

from __future__ import annotations

import pytest
import torch

from litz.capture.joint import trace_joint
from litz.graph.uniform import Constants, compress, is_causal
from tests.graph.rewriting import capture, guards, symbolic

X = torch.randn(3, 8)
INDEX = torch.randint(0, 3, (5,))


def proved(function, *inputs) -> torch.Tensor | None:
    graph = capture(lambda *args: (function(*args),), inputs or [X])
    (output,) = [n for n in graph.graph.nodes if n.op == "output"]
    return Constants(graph).compact(output.args[0][0])


def grid(q: int, k: int):
    return torch.arange(q).unsqueeze(1), torch.arange(k).unsqueeze(0)


ALL_TRUE = {
    "ones": lambda x: torch.ones(4, 8, dtype=torch.bool),
    "arange": lambda x: torch.arange(8).unsqueeze(0) >= 0,
    "expanded": lambda x: (torch.arange(8) >= 0).expand(2, 1, 4, 8),
    "where": lambda x: torch.where(torch.arange(8) < 9, torch.ones(8), torch.zeros(8)) > 0,
    "and": lambda x: (torch.arange(8) >= 0) & torch.ones(3, 8, dtype=torch.bool),
    "or anything": lambda x: torch.ones_like(x, dtype=torch.bool) | (x > 0),
    "not": lambda x: torch.logical_not(torch.zeros(8, dtype=torch.bool)),
    "like anything": lambda x: torch.ones_like(x) > 0,
    "indexed within it": lambda x: torch.ones(4, dtype=torch.bool)[(x > 0).long()],
    "indexed from its end": lambda x: torch.ones(4, dtype=torch.bool)[(x > 0).long() - 4],
    "indexed by what is left over": lambda x: torch.ones(4, dtype=torch.bool)[x.long() % 4],
    "gathered within it": lambda x: torch.ones(3, 4).gather(1, (x > 0).long()) == 1,
    "indexed by known ones": lambda x: torch.ones(2, 8, dtype=torch.bool)[
        torch.arange(2)[:, None], torch.arange(8).view(1, 8)
    ],
    "eq of cumsum": lambda x: (torch.arange(6).diff() != 1).cumsum(0).unsqueeze(0) == 0,
}


@pytest.mark.parametrize("name", ALL_TRUE)
def test_all_true(name: str) -> None:
    found = proved(ALL_TRUE[name])
    assert found is not None and found.numel() == 1 and bool(found.item())
    torch.testing.assert_close(ALL_TRUE[name](X), found.expand(ALL_TRUE[name](X).shape))


NOT_KNOWN = {
    "data": lambda x: x > 0,
    "and data": lambda x: torch.ones(3, 8, dtype=torch.bool) & (x > 0),
    "zero times data": lambda x: x * 0 == 0,  # not for NaN
    "random": lambda x: torch.rand(8) >= 0,
    # The read may fail, so it is made.
    "indexed by anything": lambda x: torch.ones(4, dtype=torch.bool)[x.long()],
    "indexed beyond": lambda x: torch.ones(4, dtype=torch.bool)[(x > 0).long() + 3],
    "gathered from the end": lambda x: torch.ones(3, 4).gather(1, (x > 0).long() - 1) == 1,
    "rows of a table": lambda x: torch.nn.functional.embedding(x.long(), torch.ones(4, 2)) > 0,
    "selected": lambda x: torch.ones(4, 2).index_select(0, x.long().view(-1)) > 0,
    "ones at data, written": lambda x: torch.ones(3, 8).masked_fill(x > 0, 0.0) == 1,
}


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_not_known(name: str) -> None:
    assert proved(NOT_KNOWN[name]) is None


def le(q, k):
    rows, columns = grid(q, k)
    return columns <= rows


CAUSAL = {
    "le": lambda q, k: le(q, k),
    "tril": lambda q, k: torch.tril(torch.ones(q, k, dtype=torch.bool)),
    "not triu": lambda q, k: ~torch.triu(torch.ones(q, k, dtype=torch.bool), 1),
    "batched": lambda q, k: le(q, k).expand(2, 1, q, k) & torch.ones(2, 1, q, k, dtype=torch.bool),
    "window wider than it": lambda q, k: le(q, k) & (grid(q, k)[1] > grid(q, k)[0] - 4096),
}


@pytest.mark.parametrize("sizes", [(6, 6), (5, 9), (9, 5)], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_causal(name: str, sizes: tuple[int, int]) -> None:
    found = proved(lambda x: CAUSAL[name](*sizes))
    assert found is not None and is_causal(found, *sizes)


NOT_CAUSAL = {
    "shifted": lambda q, k: grid(q, k)[1] <= grid(q, k)[0] + 1,
    "strict": lambda q, k: grid(q, k)[1] < grid(q, k)[0],
    "upper": lambda q, k: grid(q, k)[1] >= grid(q, k)[0],
    "window": lambda q, k: le(q, k) & (grid(q, k)[1] > grid(q, k)[0] - 2),
    "bottom right": lambda q, k: grid(q, k)[1] <= grid(q, k)[0] + (k - q),
    "one batch differs": lambda q, k: le(q, k).unsqueeze(0) | (torch.arange(2).reshape(2, 1, 1) > 0),
}


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_not_causal(name: str) -> None:
    found = proved(lambda x: NOT_CAUSAL[name](5, 9))
    assert found is not None and not is_causal(found, 5, 9)


def test_a_compact_tensor_is_small() -> None:
    found = proved(lambda x: le(6, 6).expand(1000, 7, 6, 6))
    assert found is not None and tuple(found.shape) == (1, 1, 6, 6)
    assert tuple(compress(torch.zeros(100, 100)).shape) == (1, 1)


def test_a_bound_on_size() -> None:
    huge = 1 << 20
    assert proved(lambda x: torch.arange(huge).unsqueeze(1) <= torch.arange(huge)) is None
    assert proved(lambda x: torch.full((huge, huge), 3) == 3) is not None


def test_a_tensor_written_down_is_known_and_a_held_one_is_not() -> None:
    """`torch.tensor(0.0)` belongs to the trace; a tensor that the program closes over may change. Known for good:
    the call that lifts it is a no-op, and rewritten away."""
    from litz.capture.joint import trace_joint
    from litz.graph.rewrite import apply_rules
    from litz.graph.rules.noop import NOOP
    from tests.graph.rewriting import context

    held = torch.zeros(())
    for function, known in (
        (lambda x: x * torch.where(torch.arange(8) >= 0, torch.tensor(0.0), -1e9), True),
        (lambda x: x * torch.where(torch.arange(8) >= 0, held, -1e9), False),
    ):
        graph = trace_joint(function, [X], None, {}, False).graph
        apply_rules(graph, NOOP, context())
        (mask,) = [n.args[1] for n in graph.graph.nodes if n.target is torch.ops.aten.mul.Tensor]
        assert (Constants(graph).uniform(mask) == 0) is known


# -- sizes and numbers known only at run time ---------------------------------------------------
def proved_for_all_sizes(function) -> torch.Tensor | None:
    (x,) = symbolic(X)
    graph = trace_joint(lambda x: [function(x)], [x], None, {}, False).graph
    (output,) = [n for n in graph.graph.nodes if n.op == "output"]
    before = guards(x)
    found = Constants(graph).compact(output.args[0][0])
    assert guards(x) == before
    return found


KNOWN_FOR_ALL_SIZES = {
    "full": (lambda x: torch.full((x.shape[0], 4), 1.5) * 2, 3.0),
    "like": (lambda x: torch.ones_like(x) > 0, 1),
    "arange of one sign, expanded": (lambda x: (torch.arange(4) >= 0).expand(x.shape[0], 4), 1),
    "or anything": (lambda x: torch.ones_like(x, dtype=torch.bool) | (x > 0), 1),
    "viewed": (lambda x: torch.zeros(x.shape[0] * x.shape[1]).view(x.shape), 0.0),
    "indexed within it": (lambda x: torch.ones(4)[(x > 0).long()], 1.0),
    "indexed in order": (lambda x: torch.ones_like(x)[:, torch.arange(x.shape[1])], 1.0),
    "indexed both ways": (
        lambda x: torch.ones_like(x)[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1] - 1) + 1],
        1.0,
    ),
}


@pytest.mark.parametrize("name", KNOWN_FOR_ALL_SIZES)
def test_known_for_all_sizes(name: str) -> None:
    function, number = KNOWN_FOR_ALL_SIZES[name]
    found = proved_for_all_sizes(function)
    assert found is not None and found.numel() == 1 and found.item() == number


NOT_KNOWN_FOR_ALL_SIZES = {
    "times a size": lambda x: torch.ones(8) * x.shape[0],
    "filled with a size": lambda x: torch.full((4,), x.shape[0]),
    "times the inverse of a size": lambda x: torch.arange(8.0) * (1 / x.shape[0]),
    "alpha": lambda x: torch.add(torch.ones(8), torch.ones(8), alpha=x.shape[0]),
    "as long as a size": lambda x: torch.arange(x.shape[0]),
    "compared with a size": lambda x: torch.arange(8) < x.shape[0],
    "rolled by a size": lambda x: torch.roll(torch.arange(8), x.shape[0]),
    "cut at a size": lambda x: torch.arange(8)[: x.shape[0]],
    "indexed beyond": lambda x: torch.ones_like(x)[:, torch.arange(x.shape[1]) + 1],
}


@pytest.mark.parametrize("name", NOT_KNOWN_FOR_ALL_SIZES)
def test_not_known_for_all_sizes(name: str) -> None:
    assert proved_for_all_sizes(NOT_KNOWN_FOR_ALL_SIZES[name]) is None


def test_what_varies_along_known_sizes_alone_is_known() -> None:
    found = proved_for_all_sizes(lambda x: torch.arange(4).expand(x.shape[0], 4) * 2)
    assert found is not None and found.tolist() == [[0, 2, 4, 6]]


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_index_into_ones_is_checked(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda i, x: torch.ones(5)[i] * x, backend="litz", dynamic=dynamic)
    assert compiled(torch.tensor([4, -5]), torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(IndexError):
        compiled(torch.tensor([9, 1]), torch.ones(2))
