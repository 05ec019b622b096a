"""Files that are called otherwise than their makers thought: by names that Python has, inside transforms, in inference
mode; and files that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import litz
from litz.aot.shared_library import find_linker
from litz.errors import CacheError, CallError, CompileError


def test_by_the_name_of_the_parameter(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    loaded = litz.load(litz.aot_compile(model, (x,), path=tmp_path / "model.litz"))
    torch.testing.assert_close(loaded(input=x), model(x))


def test_keys_that_would_come_back_as_others(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="keys that are no strings"):
        litz.aot_compile(lambda x: {(0, 1): x + 1}, (torch.ones(3),), path=tmp_path / "model.litz")


def test_inside_transforms(tmp_path: Path) -> None:
    loaded = litz.load(litz.aot_compile(lambda x: x * 2, (torch.ones(3),), path=tmp_path / "model.litz"))
    for transform in (torch.vmap, torch.func.functionalize):
        with pytest.raises(CallError, match="a transform"):
            transform(loaded)(torch.ones(2, 3) if transform is torch.vmap else torch.ones(3))


def test_inference_mode_is_asked_of_each_call(tmp_path: Path) -> None:
    file = litz.aot_compile(lambda x: x.mul_(2), (torch.ones(3),), path=tmp_path / "model.litz")
    loaded = litz.load(file)
    with torch.inference_mode():
        made = torch.ones(3)
        loaded(made)
    assert torch.equal(loaded(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(CallError):
        loaded(made)


@pytest.mark.parametrize("name", ["model.litz", "model.so"])
def test_what_was_there_stays_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / name
    if file.suffix == ".so" and find_linker() is None:
        pytest.skip("there is no linker on this machine")
    litz.aot_compile(lambda x: x * 2, (torch.ones(3),), path=file)
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("litz.aot.shared_library.os.replace", fail)
    with pytest.raises(CacheError, match="cannot be written"):
        litz.aot_compile(lambda x: x * 3, (torch.ones(3),), path=file)
    assert file.read_bytes() == before
    assert {path.suffix for path in tmp_path.iterdir()} <= {".litz", ".so", ".h"}
