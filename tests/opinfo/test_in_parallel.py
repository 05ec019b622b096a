"""A sweep by several processes: a process that dies, hangs or loses its device costs one case, time that is up costs
nothing that was done, and the next run goes on."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.opinfo.in_parallel import ROUNDS, Ledger, Part, Workers, parts
from tests.opinfo.sweep import fault, in_parallel
from tests.opinfo.sweep import main as sweep

# Speaks as a worker does. An operator's name says what becomes of its samples, of which there are six.
WORKER = """
import json, os, sys, time
def say(**message):
    os.write(1, (json.dumps(message) + "\\n").encode())
for line in sys.stdin:
    operator, dtype, begin, end, after = json.loads(line)
    last = 6 if end is None else min(end, 6)
    if operator == "unborn":
        sys.exit(3)
    for number in range(begin, last):
        if after is not None:
            after = None if str(number) == after else after
            continue
        say(case=str(number))
        if operator == "dies" and number == 2:
            os.abort()
        if operator == "hangs" and number == 1:
            time.sleep(1000)
        row = {"status": "wrong" if operator == "wrong" else "right", "message": "", "treatment": "generated"}
        if operator == "loses" and number == 1:
            say(lost={**row, "message": "illegal access"})
            sys.exit(0)
        if operator == "waits" and number == 2:
            while not os.path.exists(os.environ["LITZ_TEST_GO_ON"]):
                time.sleep(0.05)
        say(row=row)
    say(done=max(0, last - begin))
"""


def start(number: int) -> Sequence[str]:
    return [sys.executable, "-c", WORKER]


def swept(
    operators: Sequence[str], file: Path, workers: int = 2, seconds: float = 60.0, resume: bool = False,
    timeout: float = 1.0,
) -> Ledger:  # fmt: skip
    ledger = Ledger(parts([(operator, "float32") for operator in operators]), file, resume)
    Workers(ledger, start, workers, seconds, timeout=timeout).run()
    return ledger


def statuses(ledger: Ledger, operator: str) -> list[str]:
    mine = sorted((row["sample"], row["status"]) for row in ledger.rows if row["operator"] == operator)
    return [status for _, status in mine]


def test_every_operator_is_looked_at_before_any_is_twice() -> None:
    found = parts([("a", "float32"), ("b", "float32")])
    assert [part.operator for part in found] == ["a", "b"] * (len(ROUNDS) + 1)
    assert [(part.begin, part.end) for part in found[::2]] == [(0, 1), (1, 4), (4, 12), (12, 40), (40, None)]
    assert [(part.begin, part.end) for part in parts([("a", "float32")], most=3)] == [(0, 1), (1, 3)]


@pytest.mark.parametrize("workers", [1, 3])
def test_one_case_is_lost_with_its_process_and_no_other(workers: int, tmp_path: Path) -> None:
    operators = ["fine", "dies", "hangs", "loses", "other"]
    ledger = swept(operators, tmp_path / "rows.json", workers)
    assert statuses(ledger, "fine") == statuses(ledger, "other") == ["right"] * 6
    assert statuses(ledger, "dies") == ["right", "right", "crashed", "right", "right", "right"]
    assert statuses(ledger, "hangs") == statuses(ledger, "loses") == ["right", "crashed", *["right"] * 4]
    said = {row["operator"]: row["message"] for row in ledger.rows if row["status"] == "crashed"}
    assert "SIGABRT" in said["dies"] and "hung" in said["hangs"] and "illegal access" in said["loses"]
    assert ledger.so_far == ledger.of
    saved = json.loads((tmp_path / "rows.json").read_text())
    assert saved["summary"]["counts"]["crashed"] == 3 and saved["summary"]["done"] == ledger.of


def test_what_cannot_begin_is_given_up(tmp_path: Path) -> None:
    ledger = swept(["unborn", "fine"], tmp_path / "rows.json")
    assert statuses(ledger, "unborn")[0] == "crashed" and statuses(ledger, "fine") == ["right"] * 6
    assert "status 3" in next(row["message"] for row in ledger.rows if row["status"] == "crashed")


def test_what_time_was_too_short_for_is_done_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, go_on = tmp_path / "rows.json", tmp_path / "go on"
    monkeypatch.setenv("LITZ_TEST_GO_ON", str(go_on))
    first = swept(["waits", "fine"], file, workers=1, seconds=4.0, timeout=60.0)
    assert 0 < first.so_far < first.of
    assert {row["operator"] for row in first.rows} == {"waits", "fine"}  # the first samples of all
    go_on.touch()
    second = swept(["waits", "fine"], file, resume=True)
    assert second.so_far == second.of
    assert Counter(row["operator"] for row in second.rows) == {"waits": 6, "fine": 6}
    again = swept(["fine"], file)  # from the start, unless told otherwise
    assert Counter(row["operator"] for row in again.rows) == {"fine": 6}


def test_fails_for_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for operators, code in ((["fine"], 0), (["fine", "wrong"], 1)):
        ledger = Ledger(parts([(operator, "float32") for operator in operators]), tmp_path / "rows.json", False)
        assert in_parallel(ledger, start, 2, 60.0, "cuda") == code
        out = capsys.readouterr().out
        assert ("FAILED, wrong: wrong[float32]" in out) == bool(code)
        assert f"{ledger.of} of {ledger.of} parts done" in out


def test_what_may_be_left_to_eager_on_a_device() -> None:
    row = {"operator": "add", "dtype": "float32", "status": "eager"}
    two = "tensors are on two devices, and a graph is compiled for one"
    assert fault({**row, "message": two}, "", "cuda") is None
    assert fault({**row, "message": "no trace"}, "", "cuda") is not None
    assert fault({**row, "operator": "nonzero", "message": "no trace"}, "", "cuda") is None


def test_an_operator_on_the_cpu_by_the_same_road(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    words = "sweep --device cpu --workers 1 --ops nn.functional.gelu --dtype float32,grad-float32 --first 2"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--json", str(file)])
    assert sweep() == 0, capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    found = {(row["dtype"], row["sample"]) for row in rows}
    assert found >= {("float32", "0"), ("float32", "1"), ("grad-float32", "1")}
    assert {row["status"] for row in rows} == {"right"}


def test_a_part_is_a_tuple_of_plain_values() -> None:
    part = Part("add", "float32", 0, None)
    assert Part(*json.loads(json.dumps(part))) == part
