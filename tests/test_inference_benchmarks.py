"""The benchmarks of inference judge what they measured: a peer that is faster, or no figure, is never a pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks import decode, inference


def times(**milliseconds: float) -> dict[str, Any]:
    return {name.replace("_", " "): {"best_ms": value} for name, value in milliseconds.items()}


ROW = {
    "peers": times(eager=12.0, control=12.1, inductor=11.5, onnxruntime=11.2, openvino=12.0, litz_frozen=10.0),
    "frozen": times(eager=12.0, inductor_frozen=10.5, litz_frozen=9.0),
}
FOUND = {
    "models": {"bert, float32": ROW, "bert, bfloat16": {"peers": times(inductor=11.6, litz=10.5, litz_frozen=10.0)}},
    "cold": {"bert": {"litz": [4.0, 5.0], "litz frozen": [5.0, 6.0]}},
    "memory": {"bert": {"unfrozen": {"weights": 100, "resident": 300}, "discard": {"weights": 100, "resident": 305}}},
}


def changed(*path: str, value: Any) -> dict[str, Any]:
    *way, last = path
    whole = copy.deepcopy(FOUND)
    place: Any = whole
    for key in way:
        place = place[key]
    place[last] = value
    return whole


def test_inference_that_is_good_is_met() -> None:
    assert [bar.met for bar in inference.bars(FOUND)] == [True] * 5
    assert inference.least_lead(ROW) == pytest.approx(1.12)
    assert "1.12" in inference.report(FOUND)


@pytest.mark.parametrize(
    "found",
    [
        changed("models", "bert, float32", "peers", "onnxruntime", value={"best_ms": 9.9}),
        changed("models", "bert, float32", "frozen", "inductor frozen", value={"failed": "no result"}),
        changed("models", "bert, float32", "peers", value={"failed": "no result within 900 seconds"}),
        changed("models", "bert, bfloat16", "peers", "inductor", value={"best_ms": 11.4}),
        changed("cold", "bert", "litz frozen", value=[5.3, None]),
        changed("cold", "bert", "litz frozen", value=[None]),
        changed("memory", "bert", "discard", value={"weights": 100, "resident": 311}),
        changed("memory", "bert", "discard", value={"failed": "SIGKILL"}),
    ],
)
def test_inference_that_is_bad_or_missing_is_missed(found: dict[str, Any]) -> None:
    assert False in [bar.met for bar in inference.bars(found)]
    assert "MISSED" in inference.report(found)


STEPS = {
    "weights": 85, "bytes_per_second": 100.0 * 1e3, **times(eager=3.0, inductor=1.5, litz=1.1, litz_frozen=1.0),
}  # fmt: skip
for _who in ("litz", "litz frozen"):
    STEPS[_who]["compiles"] = 1


def test_decoding_that_is_good_is_met() -> None:
    assert decode.share(STEPS, 1.0) == pytest.approx(0.85)
    assert all(bar.met for bar in decode.bars({"steps": {"float32": STEPS}}))
    assert "0.85" in decode.report({"steps": {"float32": STEPS}})


@pytest.mark.parametrize(
    "row",
    [
        STEPS | {"inductor": {"best_ms": 0.9}},
        STEPS | {"inductor": {"failed": "no result"}},
        STEPS | {"bytes_per_second": 101.0 * 1e3},
        STEPS | {"litz": {"best_ms": 1.1, "compiles": 64}},
        STEPS | {"litz frozen": {"failed": "CallError"}, "litz": {"failed": "CallError"}},
        {"failed": "process ended by SIGKILL"},
    ],
)
def test_decoding_that_is_bad_or_missing_is_missed(row: dict[str, Any]) -> None:
    assert False in [bar.met for bar in decode.bars({"steps": {"float32": row}})]
    assert "MISSED" in decode.report({"steps": {"float32": row}})
