"""Each wrapper alone, without a compiler behind it; and what a signature prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.capture.joint import trace_joint
from litz.capture.overlap import bases_for
from litz.capture.wrappers import (
    AsTraced,
    Eager,
    OneOfEach,
    PlainTensors,
    RebuildOutputs,
    Reshape,
    SeparateInputs,
    SyntheticBases,
    Wrapped,
    WriteBack,
    wrap,
    wrappers_for,
)
from litz.errors import CaptureError
from litz.graph.signature import Base, Input, Output, Signature, Subclasses, Window
from litz.loop.ir import SizeSource
from tests import golden
from tests.autograd.both import grad


def signature(
    inputs: tuple[Input, ...] = (), outputs: tuple[Output, ...] = (), results: int = 0, **more: Any
) -> Signature:
    return Signature(inputs, outputs, results, (), **more)


def test_one_of_each_passes_a_repeated_argument_once() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    wrapper = OneOfEach((0, 1, 0))
    kept = wrapper.before((a, b, a))
    assert kept[0] is a and kept[1] is b and len(kept) == 2
    with pytest.raises(Eager):
        wrapper.before((a, b, b))
    assert wrapper.after(kept, [a]) == [a]


def test_synthetic_bases_pass_the_memory_once() -> None:
    memory = torch.zeros(10)
    a, other, b = memory[2:5], torch.ones(2), memory.data[4:8]
    (base,) = bases_for([a, other, b], {0}, training=False)
    assert base == Base(((0, Window((3,), (1,), 0)), (2, Window((4,), (1,), 2))), (6,), (1,))
    wrapper = SyntheticBases((base,), returned=((1, 2),))
    inner = wrapper.before([a, other, b])
    assert inner[0] is other and len(inner) == 2
    inner[1].fill_(1)
    assert torch.equal(memory, torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1, 0, 0]))
    versions = a._version, b._version
    assert wrapper.after([a, other, b], [other, None])[1] is b
    assert a._version > versions[0] and b._version > versions[1]
    moved = [memory[3:6], other, memory[5:9]]
    assert wrapper.before(moved)[1].data_ptr() == moved[0].data_ptr()
    for elsewhere in ([memory[3:6], other, b], [a, other, torch.zeros(4)], [a, other, memory[4:8:2]]):
        with pytest.raises(Eager):
            wrapper.before(elsewhere)


def test_a_synthetic_base_is_the_one_autograd_knows() -> None:
    memory = grad(4, 3) * 1
    (base,) = bases_for([memory[0], memory[2:], memory], {0}, training=True)
    assert base.own and base.sizes == (4, 3) and base.members[2] == (2, Window((4, 3), (3, 1), 0))
    assert SyntheticBases((base,)).before([memory[0], memory[2:], memory])[0] is memory
    with pytest.raises(Eager):
        SyntheticBases((base,)).before([memory[0], memory[2:].detach(), memory])
    with pytest.raises(CaptureError, match="autograd does not know of"):
        bases_for([memory[:2], memory.detach()[1:]], {0}, training=True)
    assert bases_for([memory[:2], memory[2:]], {0}, training=False) == (), "side by side"


def test_reshape_changes_the_argument_and_shows_the_program_what_it_was() -> None:
    x, other = torch.arange(6.0).view(2, 3), torch.zeros(1)
    wrapper = Reshape(signature((Input(reshaped=Window((3, 2), (1, 3), 0)), Input())))
    wanted = x.clone()
    inner = wrapper.before([x, other])
    assert torch.equal(x, wanted.t()) and torch.equal(inner[0], wanted)
    assert inner[0].data_ptr() == x.data_ptr() and inner[1] is other
    assert inner[0]._version == x._version, "what is saved is not out of date"
    assert wrapper.after([x, other], [1]) == [1]


WRITES_FIRST = signature((Input(mutated=True), Input(), Input()))


def test_separate_inputs_refuses_memory_shared_with_one_that_is_written() -> None:
    base = torch.zeros(10)

    def before(args: tuple[Any, ...], signature: Signature = WRITES_FIRST) -> Any:
        return SeparateInputs(signature).before(args)

    apart = (torch.zeros(3), torch.zeros(3), 5)
    assert before(apart) is apart
    with pytest.raises(Eager):
        before((base[:5], base[4:]))
    beside = (base[:4], base[4:])
    assert before(beside) is beside
    with pytest.raises(Eager):  # one version counter, and the backward looks at it
        before(beside, replace(WRITES_FIRST, differentiable=(0,)))
    read_only = (torch.zeros(2), base[:4], base[2:6])
    assert before(read_only) is read_only
    nothing = torch.zeros(0)
    before((nothing, nothing[:0]))


def test_separate_inputs_remembers_only_what_it_found_separate() -> None:
    base, wrapper = torch.zeros(10), SeparateInputs(WRITES_FIRST)
    apart, entangled = (base[:4], base[4:8]), (base[:4], base[2:6])
    for _ in range(2):
        assert wrapper.before(apart) is apart
        for _ in range(2):
            with pytest.raises(Eager):
                wrapper.before(entangled)
    varying = SeparateInputs(replace(WRITES_FIRST, sizes=(SizeSource("s0", 0, 0),)))
    varying.before(apart)
    with pytest.raises(Eager):  # the same addresses, but more of them
        varying.before((base[:6], base[4:8]))


def test_write_back_copies_what_autograd_must_see() -> None:
    inputs = (Input(mutated=True, hidden=False), Input(mutated=True, hidden=True), Input())
    wrapper = WriteBack(signature(inputs, (), 1))
    x, stored, other = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    before = stored._version
    assert wrapper.before((x, stored, other)) == (x, stored, other)
    result, value = torch.ones(2), torch.full((2,), 7.0, requires_grad=True)
    assert wrapper.after((x, stored, other), [result, value]) == [result]
    assert torch.equal(x, value) and x.grad_fn is not None
    assert stored._version == before + 1, "a write by the program must show in the version"
    assert other._version == 0


def test_write_back_of_inference_tensors() -> None:
    wrapper = WriteBack(signature((Input(mutated=True),), (), 0))
    with torch.inference_mode():
        x = torch.zeros(2)
        assert wrapper.after((x,), []) == []
    assert wrapper.after((x,), []) == []


def test_rebuild_outputs() -> None:
    outputs = (
        Output("plain", value="text"),
        Output("input", 1),
        Output("view", 0, Window((2, 2), (1, 2), 1), needs_grad=True),
        Output("fresh", 0, needs_grad=True),
        Output("part", 0, Window((2,), (1,), 1), needs_grad=True),
        Output("part", 0, None, needs_grad=False),
    )
    base, other = torch.arange(8.0, requires_grad=True), torch.zeros(1)
    result = torch.arange(4.0, requires_grad=True) * 2
    found = RebuildOutputs(signature((), outputs)).after((base, other), [result])
    assert found[0] == "text" and found[1] is other and found[3] is result
    assert found[2].tolist() == [[1, 3], [2, 4]] and found[2].requires_grad
    assert found[4].tolist() == [2, 4] and found[4]._base is result
    assert not found[5].requires_grad and found[5].data_ptr() == result.data_ptr()


def test_rebuild_outputs_of_an_argument_that_starts_within_its_storage() -> None:
    base = torch.arange(10.0)[4:]
    (found,) = RebuildOutputs(signature((), (Output("view", 0, Window((2,), (1,), 1)),))).after((base,), [])
    assert found.tolist() == [5, 6]


def test_as_traced_turns_autocast_off() -> None:
    a = torch.randn(4, 4)
    run = AsTraced(lambda a: [torch.mm(a, a)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(a)[0].dtype == torch.float32
        assert torch.mm(a, a).dtype == torch.bfloat16, "and only meanwhile"


def test_wrapped_runs_the_original_when_an_assumption_fails() -> None:
    wrapped = Wrapped(lambda *a: ["compiled"], (SeparateInputs(WRITES_FIRST),), lambda *a: ["eager"])
    x = torch.zeros(4)
    assert wrapped(torch.zeros(2), x) == ["compiled"]
    assert wrapped(x[:2], x) == ["eager"]


def test_order_and_absence_of_wrappers() -> None:
    plain = signature((Input(),), (Output("fresh", 0),), 1)
    core = lambda *a: []  # noqa: E731
    assert wrappers_for(plain) == () and wrap(core, plain, core) is core
    all_of_them = signature((Input(mutated=True),), (Output("input", 0),), 0, places=(0, 0))
    assert [type(w) for w in wrappers_for(all_of_them)] == [OneOfEach, RebuildOutputs, SeparateInputs, WriteBack]
    more = replace(all_of_them, inputs=(Input(mutated=True), Input(reshaped=Window((1,), (1,), 0))))
    more = replace(more, bases=(Base((), (1,), (1,)),), subclasses=Subclasses((), ()))
    assert [type(w) for w in wrappers_for(more)] == [
        PlainTensors, OneOfEach, SyntheticBases, RebuildOutputs, SeparateInputs, Reshape, WriteBack,
    ]  # fmt: skip


def test_signature_prints_readably() -> None:
    def function(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, again: torch.Tensor, c: torch.Tensor, n: int
    ) -> tuple:
        b.add_(1)
        c.mul_(w)
        with torch.no_grad():
            w.mul_(0.5)
        y = (x * w).sin()
        return y, y[1:], y, x, x.t(), x.detach(), n + 1, (x > 0), c

    x, w = grad(4, 3), grad(3)
    joint = trace_joint(function, [x, w, torch.zeros(3), x, torch.zeros(4, 3), 4], None, {}, True)
    golden.check("signature", f"{joint.signature}\n")
