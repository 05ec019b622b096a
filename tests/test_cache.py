"""The persistent cache: what it gives back, what it survives, and what it says of a miss."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from litz.loop.expr import Size, expr
from litz.loop.formula import Formula
from litz.runtime.cache import Cache, Difference, cache_of
from litz.runtime.container import pack, unpack
from litz.runtime.encode import Unreadable, Unwritable, decode, encode

VALUE = {"numbers": (1, -0.0, float("inf"), 2.5, True, None, 1 + 2j), "text": "a\nb", "bytes": b"\0\1" * 500}


def test_what_is_stored_is_found_by_its_key(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.load("function", "ab12") is None
    cache.store("function", "ab12", VALUE)
    assert cache.load("function", "ab12") == VALUE
    assert repr(cache.load("function", "ab12")["numbers"][1]) == "-0.0"
    assert cache.load("function", "ab13") is None and cache.load("backward", "ab12") is None
    assert [found.key for found in cache.files()] == ["ab12"]


def test_values_are_told_apart_to_the_last_bit() -> None:
    s = Size("s0", 64, None, Formula("max(s1, 2)"))
    for value in ((1, 1.0, True), expr(s) // 3 + 2 * expr(s) % 5, frozenset({"b", "a"}), [(), {}], float("nan")):
        written, blobs = encode(value)
        found = decode(written, blobs)
        assert found == value if isinstance(value, frozenset) else repr(found) == repr(value)
    with pytest.raises(Unwritable, match="Random"):
        encode(random.Random())


@pytest.mark.parametrize(
    "written",
    [
        ["Path", "/"], ["eval", "1"], ["View"], ["expr", [1, ["size"]]], 1.5, {"a": 1}, ["dtype", "nn"],
        ["formula", "__import__('os')"], ["formula", "().__class__"], ["tensor", 0, "torch.float32", [4], [1]],
        ["operator", "os::system"],
    ],
)  # fmt: skip
def test_what_was_never_written_is_not_read(written: object) -> None:
    with pytest.raises(Unreadable):
        decode(written, [b""])


def test_a_damaged_file_counts_as_absent_and_is_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    draw = random.Random(0)
    for _ in range(300):
        cache.store("function", "ab12", VALUE)
        path = cache.path("function", "ab12")
        data = bytearray(path.read_bytes())
        if draw.random() < 0.3:
            data = data[: draw.randrange(len(data))]
        else:
            place = draw.randrange(len(data))
            data[place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        assert cache.load("function", "ab12") is None
        assert not path.exists()


def test_another_format_is_refused_before_anything_is_made_of_it() -> None:
    data = bytearray(pack(VALUE))
    data[8] += 1
    with pytest.raises(Unreadable, match="format 2"):
        unpack(bytes(data))
    with pytest.raises(Unreadable, match="does not begin"):
        unpack(b"#!/bin/sh\n" * 20)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, most_bytes=2500)
    for age, key in ((300, "aa11"), (100, "bb11"), (200, "cc11")):
        cache.store("kernel", key, b"x" * 1000)
        then = cache.path("kernel", key).stat().st_mtime - age
        os.utime(cache.path("kernel", key), (then, then))
    cache.trim()
    assert sorted(found.key for found in cache.files()) == ["bb11", "cc11"]


def test_a_use_counts_as_recent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.store("kernel", "aa", b"x")
    os.utime(cache.path("kernel", "aa"), (0, 0))
    assert cache.load("kernel", "aa") == b"x"
    assert cache.path("kernel", "aa").stat().st_mtime > 1e9


def test_a_miss_is_explained_by_what_differs(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    stored = {"graph": "a" * 1000, "option.matmul": "'auto'", "inputs.shapes": "(2, 3)"}
    cache.store("function", "aa", VALUE, stored)
    cache.store("function", "bb", VALUE, {**stored, "graph": "b" * 1000, "option.matmul": "'library'"})
    asked = {**stored, "option.matmul": "'generate'"}
    assert cache.differences("function", asked) == [Difference("option.matmul", "'auto'", "'generate'")]
    (long,) = cache.differences("function", {**stored, "graph": "a" * 999 + "b"})
    assert long.entry == "graph" and long.stored != long.wanted


def test_a_folder_others_may_write_to_is_refused(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    assert cache_of({"LITZ_CACHE_DIR": str(folder)}) is None
    assert "others may write" in str(recwarn.pop().message)
    assert cache_of({"LITZ_CACHE_DIR": str(tmp_path / "own")}) == Cache(tmp_path / "own")
    assert cache_of({"LITZ_CACHE_DIR": str(tmp_path / "own"), "LITZ_CACHE": "0"}) is None
    assert cache_of({"XDG_CACHE_HOME": str(tmp_path / "home")}) == Cache(tmp_path / "home" / "litz")


def test_a_folder_that_cannot_be_written_is_said_and_done_without(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert cache_of({"LITZ_CACHE_DIR": str(file / "below")}) is None
    assert "is not used" in str(recwarn.pop().message)
    Cache(file).store("function", "aa", VALUE)
    assert "cannot be written" in str(recwarn.pop().message)


def test_a_folder_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = cache_of({"LITZ_CACHE_DIR": "~/kept"})
    assert cache is not None and cache.folder == tmp_path / "kept"
