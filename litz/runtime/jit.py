"""LLVM in the process: text in, function addresses out. No compiler, linker or file is involved."""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache
from typing import Any

from litz.compat import openmp_library, torch_library
from litz.errors import CompileError
from litz.target import Target

_building = threading.RLock()  # one compile at a time: LLVM's context is shared


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Kernels call OpenMP's runtime and SLEEF; both are loaded already, and now LLVM can see them.
    for path in (openmp_library(), torch_library()):
        if path is not None:
            llvm.load_library_permanently(path)
    return llvm


def _target_machine(cpu: str, features: str) -> Any:
    """A new one each time: the engine it is given to owns it from then on."""
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, codemodel="jitdefault"
    )


class Code:
    """Machine code, alive as long as this object is."""

    def __init__(self, text: str, target: Target, libraries: tuple[tuple[str, str], ...] = ()):
        llvm = _llvm()
        for name, source in libraries:
            _provide(name, source, target)
        with _building:
            machine = _target_machine(target.cpu, target.features)
            try:
                module = llvm.parse_assembly(text)
            except RuntimeError as error:
                raise CompileError(
                    f"LLVM refused the generated code: {error}", stage="build", excerpt=_around(text, str(error)),
                    hint="this is a defect of Litz; please report it with the program that caused it",
                ) from error  # fmt: skip
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            _optimise(llvm, machine, module)
            self._engine = llvm.create_mcjit_compiler(module, machine)
            self._engine.finalize_object()

    def function(self, name: str, prototype: Any) -> Any:
        return prototype(self._engine.get_function_address(name))

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name)


def _optimise(llvm: Any, machine: Any, module: Any) -> None:
    # The text is vectorised and hoisted already: registers for the stack slots are all it lacks.
    options = llvm.create_pipeline_tuning_options(speed_level=0)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, builder)


def _around(text: str, message: str) -> str:
    import re

    found = re.search(r":(\d+):\d+: error", message)
    lines = text.splitlines()
    if found is None:
        return "\n".join(lines[:20])
    at = int(found[1]) - 1
    return "\n".join(lines[max(0, at - 3) : at + 2])


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


_provided: dict[str, Code] = {}


def _provide(name: str, source: str, target: Target) -> None:
    """Build a function of the machine once, and let every later module call it by name."""
    key = f"{name}@{target.cpu}{target.features}"
    with _building:  # two threads must not replace each other's: code that calls the first would lose it
        if key not in _provided:
            code = Code(source, target)
            _llvm().add_symbol(name, code.address(name))
            _provided[key] = code
