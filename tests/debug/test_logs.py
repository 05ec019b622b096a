"""`TORCH_LOGS="litz"` and `LITZ_DUMP`: what a compile writes down where it is asked to, and nothing where not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import litz
from litz.stages import STAGES

# Of a training program: `write_in_place` is for inference alone, and what is built has no text.
WITH_TEXT = [stage for stage in STAGES if stage not in ("write_in_place", "build", "load")]
ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import torch
x = torch.randn(3, 4, requires_grad=True)
torch.compile(lambda x: (x.reshape(3, 4) * 1.0).sin(), backend="litz")(x).sum().backward()
"""


def run(**environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("TORCH_LOGS", "LITZ_DUMP")}
    clean |= {"LITZ_CACHE": "0", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=clean, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_line_for_each_compile() -> None:
    said = run(TORCH_LOGS="litz")
    lines = [line for line in said.splitlines() if "training, forward" in line]
    assert all(re.search(r"because: the first call: \d kernels and 0 calls, \d+ ms$", line) for line in lines), said
    assert len(lines) == 2 and "training, forward and backward" in lines[1], said
    assert "stage lower" not in said and "rule times_one" not in said


def test_in_full() -> None:
    said = run(TORCH_LOGS="+litz")
    for stage in ("trace", "lower", "render", "load"):
        assert f"stage {stage}: " in said
    assert "rule times_one applied" in said and "kernels: " in said
    assert "after stage" not in said  # whose text is long, and asked for by name


def test_one_part_of_it() -> None:
    said = run(TORCH_LOGS="+litz.context")
    assert "stage lower: " in said and "training, forward" not in said


def test_the_text_of_every_stage() -> None:
    said = run(TORCH_LOGS="+litz.stages")
    assert all(f"after stage {stage}:" in said for stage in WITH_TEXT)
    assert "stage lower: " not in said and "training, forward" not in said


def test_what_the_cache_was_asked(tmp_path: Path) -> None:
    kept = {
        "TORCH_LOGS": "litz.recall",
        "LITZ_CACHE": "1",
        "LITZ_CACHE_DIR": str(tmp_path / "cache"),
        "LITZ_VERIFY": "0",
    }
    assert ": not in the cache" in run(**kept)
    assert ": from the cache" in run(**kept)


def test_the_structured_trace(tmp_path: Path) -> None:
    run(TORCH_TRACE=str(tmp_path))
    (file,) = tmp_path.iterdir()
    found: dict[str, dict[str, object]] = {}
    payloads: dict[str, list[str]] = {}
    name = ""
    for line in file.read_text().splitlines():
        if line.startswith("\t"):
            payloads[name].append(line[1:])
        else:
            record = json.loads(line[line.index("{") :])
            name = record.get("artifact", {}).get("name", "")
            found[name], payloads[name] = record, []
    litzs = [name for name in found if name.startswith("litz_")]
    stages = [name[8:] for name in litzs if name[5:7].isdigit()]
    assert set(stages) == set(WITH_TEXT)
    assert stages.count("lower") == 2  # and one for the backward, which is compiled later
    numbers = {(found[name]["frame_id"], found[name]["frame_compile_id"], found[name]["attempt"]) for name in litzs}
    assert numbers == {(0, 0, 0)}
    assert any("training, forward and backward" in line for line in payloads["litz_report"])
    assert set(json.loads("\n".join(payloads["litz_seconds"]))) >= {"trace", "lower", "render", "build", "load"}


def test_silence_where_nothing_is_asked() -> None:
    assert run() == ""


def test_every_stage_s_text_is_written_numbered(tmp_path: Path) -> None:
    run(LITZ_DUMP=str(tmp_path))
    (folder,) = tmp_path.iterdir()
    files = sorted(file.name for file in folder.iterdir())
    assert [int(name[:2]) for name in files] == list(range(len(files)))
    stages = [name[3:].removesuffix(".txt") for name in files]
    assert set(stages) == set(WITH_TEXT)
    assert stages.count("lower") == 2  # and one for the backward
    assert stages.index("trace") < stages.index("lower") < stages.index("render")
    first = (folder / files[0]).read_text()
    assert first.startswith("# training, ") and "placeholder" in first
    assert "kernel" in (folder / next(name for name in files if "lower" in name)).read_text()
    assert "define" in (folder / next(name for name in files if "render" in name)).read_text()


def test_the_option_has_the_same_effect_and_a_folder_for_each_graph(tmp_path: Path) -> None:
    torch._dynamo.reset()

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    litz.compile(broken, dump=str(tmp_path / "new" / "folder"))(torch.randn(3))
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 2
    with pytest.raises(litz.OptionError, match="the path of a folder"):
        litz.compile(broken, dump="")
