"""Object files loaded into the process: what refers to what is found, wherever it lies."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest

from litz.codegen.llvm.build import object_of
from litz.errors import CompileError
from litz.runtime.elf import ObjectFile
from litz.runtime.link import Code, _addresses, _Engine
from litz.runtime.load import Loaded, can_load
from litz.target import detect

# A variable, zeros, constants, a table of functions, a call of the other object's and one of the C library's.
FIRST = """
@count = global i64 40
@zeros = global [1000 x i64] zeroinitializer
@table = constant [2 x ptr] [ptr @one, ptr @other]
declare i64 @other(i64)
declare i64 @labs(i64)
define i64 @one(i64 %x) nounwind { %y = add i64 %x, 1 ret i64 %y }
define i64 @pick(i64 %which, i64 %x) nounwind {
  %place = getelementptr [2 x ptr], ptr @table, i64 0, i64 %which
  %function = load ptr, ptr %place
  %y = call i64 %function(i64 %x)
  ret i64 %y
}
define i64 @counted(i64 %more) nounwind {
  %last = getelementptr [1000 x i64], ptr @zeros, i64 0, i64 999
  %old = load i64, ptr @count
  %nothing = load i64, ptr %last
  %sum = add i64 %old, %nothing
  %new = add i64 %sum, %more
  store i64 %new, ptr @count
  ret i64 %new
}
define i64 @size(i64 %x) nounwind { %y = call i64 @labs(i64 %x) ret i64 %y }
define i64 @across(i64 %x) nounwind { %y = call i64 @other(i64 %x) ret i64 %y }
define double @scaled(double %x) nounwind { %y = fmul double %x, 2.718281828 ret double %y }
"""
SECOND = """
@count = external global i64
define i64 @other(i64 %x) nounwind { %c = load i64, ptr @count %y = mul i64 %x, %c ret i64 %y }
"""
INTEGER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
PAIR = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
REAL = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


def _objects() -> list[bytes]:
    return [object_of(text, detect(1)) for text in (FIRST, SECOND)]


def test_all_kinds_of_references() -> None:
    code = Code(_objects(), detect(1))
    counted, across = (code.function(name, INTEGER) for name in ("counted", "across"))
    pick = code.function("pick", PAIR)
    assert across(3) == 120
    assert counted(2) == 42
    assert across(3) == 126
    assert (pick(0, 5), pick(1, 5)) == (6, 210)
    assert code.function("size", INTEGER)(-9) == 9
    assert code.function("scaled", REAL)(2.0) == 2 * 2.718281828
    assert ctypes.c_int64.from_address(code.address("count")).value == 42


def test_two_of_the_same_share_nothing() -> None:
    first, second = (Code(_objects(), detect(1)) for _ in range(2))
    assert first.function("counted", INTEGER)(2) == 42
    assert second.function("counted", INTEGER)(3) == 43


def test_all_lies_in_one_piece() -> None:
    """LLVM's own loader puts sections where the system has room, and ends the process where that is too far away."""
    files = [ObjectFile(made) for made in _objects()]
    if not can_load(files):
        pytest.skip("this processor's object files are left to LLVM's loader")
    loaded = Loaded(files, _addresses(files, {}))
    addresses = [loaded.address(name) for name in ("one", "other", "count", "zeros", "table", "across")]
    assert all(addresses)
    assert max(addresses) - min(addresses) < 1 << 20
    assert loaded.address("labs") == 0  # another's


def test_constants_cannot_be_written_and_code_not_either() -> None:
    code = Code(_objects(), detect(1))
    for name, rights in (("one", "r-xp"), ("table", "r"), ("count", "rw-p")):
        assert _rights_at(code.address(name)).startswith(rights)


def _rights_at(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return ""


def test_memory_is_given_back() -> None:
    files = [ObjectFile(made) for made in _objects()]
    if not can_load(files):
        pytest.skip("this processor's object files are left to LLVM's loader")
    address = Loaded(files, _addresses(files, {})).address("one")
    gc.collect()
    assert _rights_at(address) == ""


def test_unknown_relocations_are_left_to_llvm() -> None:
    first, second = _objects()
    file = ObjectFile(second)
    relocation = file.relocations[0]
    entry = relocation.offset.to_bytes(8, "little") + relocation.kind.to_bytes(4, "little")
    altered = second.replace(entry, entry[:8] + (200).to_bytes(4, "little"))
    assert altered != second
    assert not can_load([ObjectFile(first), ObjectFile(altered)])
    assert not can_load([ObjectFile(b"MZ\x90")])


def test_llvms_own_loader() -> None:
    """What other processors and systems have."""
    engine = _Engine(_objects(), detect(1))
    assert INTEGER(engine.address("across"))(3) == 120


def test_a_name_that_the_process_does_not_have() -> None:
    text = """declare i64 @no_such_function_here(i64)
        define i64 @f(i64 %x) { %y = call i64 @no_such_function_here(i64 %x) ret i64 %y }"""
    with pytest.raises(CompileError, match="no_such_function_here"):
        Code([object_of(text, detect(1))], detect(1))
