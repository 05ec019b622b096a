"""A failing program made smaller: statements, inputs and outputs are left out as long as it fails.

What crashes is tried in a process of its own, forked.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.check import check
from tests.fuzz.eager import admitted
from tests.fuzz.program import FuzzProgram, Line
from tests.fuzz.run_program import runs

TIMEOUT = 30
ATTEMPTS = 400


def shrink(program: FuzzProgram, fails: Callable[[FuzzProgram], bool]) -> FuzzProgram:
    attempts = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            if not _is_fair(candidate):
                continue
            attempts += 1
            if attempts > ATTEMPTS:
                return program
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _is_fair(program: FuzzProgram) -> bool:
    """Whether it could have been drawn."""
    return runs(program) if program.transform is not None else admitted(program) and runs(program)


def _smaller(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Largest steps first."""
    for size in (8, 4, 2, 1):
        for start in range(len(program.lines) - 1, -1, -size):
            gone = set(range(max(start - size + 1, 0), start + 1))
            yield _without(program, gone)
    if len(program.outputs) > 1:
        for place in range(len(program.outputs)):
            yield replace(program, outputs=program.outputs[:place] + program.outputs[place + 1 :])
    used = {n for line in (*program.inputs, *program.lines) for n in line.uses} | set(program.outputs)
    for place, line in enumerate(program.inputs):
        if len(program.inputs) > 1 and not used & set(line.defines):
            yield replace(program, inputs=program.inputs[:place] + program.inputs[place + 1 :])
    for place, line in enumerate(program.lines):  # a value's argument in its place
        if len(line.defines) == 1:
            for name in dict.fromkeys(line.uses):
                rest = [_renamed(other, line.defines[0], name) for other in program.lines[place + 1 :]]
                outputs = tuple(name if n == line.defines[0] else n for n in program.outputs)
                yield replace(program, lines=(*program.lines[:place], *rest), outputs=outputs)


def _without(program: FuzzProgram, gone: set[int]) -> FuzzProgram:
    """Without those statements and all that needs them."""
    lost: set[str] = set()
    kept = []
    for place, line in enumerate(program.lines):
        if place in gone or lost.intersection(line.uses):
            lost.update(line.defines)
        else:
            kept.append(line)
    outputs = tuple(name for name in program.outputs if name not in lost)
    return replace(program, lines=tuple(kept), outputs=outputs or program.inputs[0].defines)


def _renamed(line: Line, old: str, new: str) -> Line:
    def swap(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    writes = new if line.writes == old else line.writes
    code = re.sub(rf"\b{old}\b", new, line.code)
    return replace(line, code=code, uses=swap(line.uses), decides=swap(line.decides), writes=writes)


def is_wrong(program: FuzzProgram) -> bool:
    return check(str(program)).status == "wrong"


def crashes(program: FuzzProgram) -> bool:
    """Whether it does not come back from a child."""
    check(str(FuzzProgram((), (), ())))  # what a first compile loads, the children inherit
    child = multiprocessing.get_context("fork").Process(target=is_wrong, args=(program,))
    child.start()
    child.join(TIMEOUT)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode != 0


__all__ = ["crashes", "is_wrong", "shrink"]
