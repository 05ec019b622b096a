"""The page's answers, of explanations written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litz.explanation.answers import Answer, answers
from litz.explanation.breaks import with_breaks
from litz.explanation.explanation import Explanation, Made, Memory, PartOfStep, Piece, Step, Tensor
from litz.explanation.units import in_bytes, in_flops, in_time
from litz.report import Break, NearMiss

PIECE = Piece(0, "model.py:3: x = f(x)", "model.py:1: forward", False, "the first call", "0/0", None, None)
MISSED = NearMiss("attention", "tanh_1", "tanh is in the way", 6, "model.py:9: s = s.tanh()")
CALL = Step("forward", "c0", "call", ("aten::_scaled_dot_product_attention",), "4", ("model.py:7: sdpa",), 64, 0, 0)


def answer(key: str, *pieces: Piece, breaks: tuple[Break, ...] = ()) -> Answer:
    made = Made("0", "0", "0", "here")
    found = answers(Explanation("model", made, pieces, breaks, attention_rules=("attention", "attention_training")))
    return next(one for one in found if one.key == key)


def test_attention() -> None:
    missed = replace(PIECE, near_misses=(NearMiss("view_twice", "n", "no", 9, None), MISSED))
    found = answer("attention", missed)
    assert found.short == "At model.py:9: tanh is in the way."
    assert [point.line for point in found.points] == [MISSED.source]
    assert found.points[0].anchor == "p0-rules"
    assert answer("attention", replace(PIECE, steps=(CALL,))).short == "It was: once a run."
    assert "no rule came near" in answer("attention", PIECE).short


def test_the_same_obstacle_in_many_layers_is_told_once() -> None:
    layers = tuple(MISSED._replace(node=f"tanh_{n}", matched=n) for n in range(4))
    assert len(answer("attention", replace(PIECE, near_misses=layers)).points) == 1


def test_recompiles() -> None:
    again = replace(PIECE, number=1, capture="0/1", again=True, why="0/0: tensor 'x' size mismatch at index 0")
    assert answer("recompile", PIECE).short.startswith("It did not")
    assert answer("recompile", PIECE, again).short == "tensor 'x' size mismatch at index 0"


def test_the_peak_names_what_the_arena_is_for() -> None:
    small, large = Tensor("t0", 64, 3, 4, "add", "model.py:3: a"), Tensor("t1", 4096, 1, 2, "mm", "model.py:4: b", True)
    memory = Memory((PartOfStep("forward", 4),), (4096, 4096, 4096, 4160), 100, 4096, (large, small))
    found = answer("peak", replace(PIECE, memory=memory))
    assert found.short.startswith("4.0 KiB made by mm (t1), of 4.1 KiB at the peak, beside 100 B of arguments")
    assert [point.line for point in found.points] == [large.line, small.line]


def test_what_is_left_to_eager_comes_first() -> None:
    left = replace(PIECE, left_to_eager="a sparse tensor")
    assert answer("eager", left, replace(PIECE, steps=(CALL,))).points[0].text == "left to eager: a sparse tensor"
    assert answer("eager", PIECE).short.startswith("Nothing")


def test_breaks_are_matched_with_what_dynamo_counted() -> None:
    jump = replace(PIECE, ends=Break("generic_jump TensorVariable()", "model.py:5: if x.sum() > 0:"))
    told = 'Data-dependent branching\n  # File "model.py", line 5, in forward, code: if x.sum() > 0:\n Hint: Use where.'
    given_up = "graph break in loop\n  frame skipped: forward (model.py line 7)"
    (piece,), rest = with_breaks([jump], [told, given_up])
    assert piece.ends is not None and piece.ends.why == told
    assert rest == (Break(given_up, "model.py:7: forward"),)
    found = answer("breaks", piece, breaks=rest)
    assert found.short == "1 graph break. First: Data-dependent branching."
    assert found.points[0].more == "Use where."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (in_bytes(100), "100 B"), (in_bytes(1536), "1.5 KiB"), (in_bytes(200 << 20), "200 MiB"),
        (in_flops(2_400_000_000), "2.4 G"), (in_time(None), "–"), (in_time(12.34), "12.3 µs"),
        (in_time(1500), "1.5 ms"), (in_time(2.5e6), "2.5 s"),
    ],
)  # fmt: skip
def test_units(text: str, wanted: str) -> None:
    assert text == wanted
