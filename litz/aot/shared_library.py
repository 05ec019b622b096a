"""A package as a shared library with a C interface, and the container of one within the file.

In: a `Package` whose program is all native. Out: `NAME.so`, with `NAME.h` beside it. The library holds the object code,
and the package itself, as a section: `litz.load` reads it, and the C functions have their constants from there.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from litz.aot.package import Package, TensorSpec
from litz.codegen.llvm.build import build
from litz.codegen.llvm.entry import PACKAGE, Argument, Constant, Memory, Messages, why_not, write_entry
from litz.codegen.llvm.front import ON_GPU, Level, Words, header, write_front
from litz.codegen.llvm.open_gpu import IMAGES, GpuMemory, Held, images_of, write_kernels
from litz.codegen.llvm.question import why_not_asked
from litz.codegen.llvm.writer import Module
from litz.compat import openmp_library
from litz.errors import CacheError, CompileError
from litz.loop.dtype import from_torch
from litz.loop.expr import expr
from litz.loop.formula import Formula
from litz.runtime.container import ALIGNMENT, MAGIC, packed
from litz.runtime.encode import Unreadable
from litz.runtime.layout import extent
from litz.runtime.link import undefined_symbols

_TRAILER = struct.Struct("<QQ16s8s")  # where the package begins, how long it is, a digest of all before


def find_linker() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def why_not_shared(package: Package) -> str | None:
    signature, plan = package.compiled.signature, package.compiled.forward.plan
    if len({level.forward.kernels for level in package.levels}) > 1:
        return "its kernels for the GPU depend on the processor"
    if find_linker() is None:
        return "there is no linker (cc, gcc or clang) at hand"
    if signature.mutated:
        return "it writes to its arguments or buffers"
    if signature.bases or signature.subclasses or any(x.lazy for x in signature.inputs):
        return "its arguments share memory, or are no plain tensors"
    for output in signature.outputs:
        if output.kind == "plain":
            return "an output is no tensor"
        if output.kind != "fresh":
            return "an output is an argument, or shares memory with one"
    for spec in package.arguments:
        if isinstance(spec, TensorSpec) and from_torch(spec.dtype) is None:
            return f"the argument {spec.name} is of {spec.dtype}, which generated code does not read"
    for answer in package.asked:
        unasked = why_not_asked(answer, [size.name for size in plan.sizes])
        if unasked is not None:
            return f"sizes must keep {_in_words(answer, package)}, which only Python can ask: {unasked}"
    return why_not(plan)


def link(package: Package, file: Path, name: str) -> None:
    signature = package.compiled.signature
    inputs = signature.places or tuple(range(len(package.places)))  # tied parameters are one input
    arguments = [
        _argument(inputs[place], spec) for place, spec in enumerate(package.arguments) if isinstance(spec, TensorSpec)
    ]
    data, places = packed(package)
    memory, sections = _memory(package, places, name), {PACKAGE: data}
    messages, levels = Messages(), []
    parts: dict[str, Sequence[bytes]] = {}
    least = package.levels[-1].forward.target.host  # whose code runs wherever any of it does
    ranges = [(r.name, r.least, r.most) for r in package.ranges]
    answers = {answer: _in_words(answer, package) for answer in package.asked}
    for artifact in (compiled.forward for compiled in package.levels):
        held = dict(zip(inputs[len(package.arguments) :], package.constants, strict=True))
        held |= dict(enumerate(artifact.constants, len(signature.inputs)))
        constants = [Constant(place, places[id(tensor)]) for place, tensor in held.items()]
        module, function = Module(), f"{name}_run_{artifact.target.host.isa}"
        size = write_entry(module, function, artifact.plan, arguments, constants, ranges, answers, messages, memory)
        levels.append(Level(artifact.target.host.isa, function, size, artifact.target.host.features_needed))
        parts[function] = [*artifact.objects, *build([module.text()], least)]
    front, words, seen = Module(), Words(), ["open", "run", "close", "error"]
    write_front(front, name, levels, messages, least.arch, memory)
    if isinstance(memory, GpuMemory):
        sections[IMAGES], rows = images_of(package.compiled.forward.kernels)
        write_kernels(front, name, len(package.compiled.forward.kernels), rows)
        memory.write_prepare(front)
        memory.write_set_stream(front)
        words, seen = ON_GPU, [*seen, "set_stream"]
    (made_of_front,) = build([front.text()], least)
    with complete_or_not_at_all(file) as part, tempfile.TemporaryDirectory() as folder:
        _Linker(Path(folder), name, seen).link(parts, made_of_front, sections, part)
        whole = part.read_bytes()
        with part.open("ab") as end:
            end.write(_TRAILER.pack(whole.index(data), len(data), _digest(whole), MAGIC))
    needs = _needs([made_of_front, *(made for part in parts.values() for made in part)])
    text = header(name, package.compiled.forward.plan, arguments, levels, f"Needs {needs}.", words)
    with complete_or_not_at_all(file.with_suffix(".h")) as part:
        part.write_text(text)


@contextmanager
def complete_or_not_at_all(file: Path) -> Iterator[Path]:
    """Where to write it meanwhile: a file that was there before is there still where that fails."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, file)
    except OSError as error:
        raise CacheError(f"{file} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _in_words(answer: Formula, package: Package) -> str:
    """With what arguments have in place of symbols."""
    names = {
        source.name: f"{package.arguments[source.input].name}.shape[{source.dim}]"
        for source in package.compiled.signature.sizes
        if source.input is not None and source.input < len(package.arguments) and source.dim is not None
    }
    return re.sub(r"\b[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), answer.text)


def _argument(place: int, spec: TensorSpec) -> Argument:
    sizes, strides = tuple(map(expr, spec.sizes)), tuple(map(expr, spec.strides))
    return Argument(spec.name, place, from_torch(spec.dtype) or "", sizes, strides)


def container_in(data: bytes) -> bytes | memoryview:
    """The package within a file: all of it, or a section of a shared library."""
    if data[:4] != b"\x7fELF":
        return data
    end = len(data) - _TRAILER.size
    begins, length, digest, magic = _TRAILER.unpack_from(data, end) if end > 0 else (0, 0, b"", b"")
    if magic != MAGIC or begins + length > end:
        raise Unreadable("it is a shared library that was cut short, or none that Litz has written")
    if _digest(memoryview(data)[:end]) != digest:
        raise Unreadable("it is damaged: what it says of itself is not what it is")
    return memoryview(data)[begins : begins + length]


def _digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _memory(package: Package, places: Mapping[int, int], name: str) -> Memory:
    """Where the program's tensors lie."""
    if package.compiled.forward.target.device == "cpu":
        return Memory()
    constants = [*package.constants, *(c for level in package.levels for c in level.forward.constants)]
    held = [Held(places[id(c)], extent(c.shape, c.stride()) * c.itemsize) for c in constants]
    return GpuMemory(name, held, _calls(package.compiled.forward.objects, "aoti_torch_"))


class _Linker:
    def __init__(self, folder: Path, name: str, seen: Sequence[str]):
        self.folder, self.name, self.seen = folder, name, seen

    def link(
        self, parts: Mapping[str, Sequence[bytes]], front: bytes, sections: Mapping[str, bytes], file: Path
    ) -> None:
        """`parts`: the objects of each level, by its entry; `sections`: what lies behind symbols."""
        objects = [self._file("front.o", front), *(self._section(*section) for section in sections.items())]
        for entry, part in parts.items():
            files = [self._file(f"{entry}.{number}.o", made) for number, made in enumerate(part)]
            objects += files if len(parts) == 1 else [self._alone(entry, files)]
        # What is not said to be visible would be taken from, or given to, other libraries of the process.
        visible = "".join(f" {self.name}_{what};" for what in self.seen)
        script = self._file("visible", f"{{ global:{visible} local: *; }};".encode())
        libraries = _libraries([made for part in parts.values() for made in part])
        self._run(find_linker(), "-shared", f"-Wl,--version-script={script}", *map(str, objects), *libraries, to=file)

    def _alone(self, entry: str, files: Sequence[Path]) -> Path:
        """The objects as one, in which only the entry is seen from outside: levels name their kernels alike."""
        whole = self.folder / f"{entry}.o"
        self._run(find_linker(), "-r", "-nostdlib", *map(str, files), to=whole)
        tool = next((found for name in ("objcopy", "llvm-objcopy") if (found := shutil.which(name))), None)
        if tool is None:
            raise CompileError(
                "several instruction sets in one shared library take objcopy, which is not at hand",
                hint="install binutils, or give the file the suffix .litz, for Python alone",
            )
        self._ran([tool, f"--keep-global-symbol={entry}", str(whole)])
        return whole

    def _section(self, symbol: str, data: bytes) -> Path:
        data_file = self._file(symbol, data)
        return self._file(
            f"{symbol}.s",
            f".section .rodata\n.balign {ALIGNMENT}\n.globl {symbol}\n.hidden {symbol}\n{symbol}:\n"
            f'.incbin "{data_file}"\n.section .note.GNU-stack,"",@progbits\n'.encode(),
        )

    def _file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def _run(self, linker: str | None, *arguments: str, to: Path) -> None:
        assert linker is not None
        self._ran([linker, *arguments, "-o", str(to)])

    def _ran(self, command: Sequence[str]) -> None:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise CompileError(f"{command[0]} could not link {self.name}: {ended.stderr.strip()[:2000]}", stage="build")


def _libraries(objects: Sequence[bytes]) -> list[str]:
    """What the library is linked with. OpenMP's runtime is the system's if it has one, or else torch's."""
    if not _calls(objects, "GOMP_", "omp_"):
        return ["-lm"]
    own = openmp_library()
    return ["-lm", "-l:libgomp.so.1" if own is None or ctypes.util.find_library("gomp") else own]


def _needs(objects: Sequence[bytes]) -> str:
    found = []
    if _calls(objects, "GOMP_", "omp_"):
        found.append("OpenMP's runtime (libgomp)")
    if _calls(objects, "aoti_torch_cuda_", "aoti_torch_create_cuda_"):
        found.append("libtorch_cuda.so (of torch's folder `lib`: -ltorch_cuda -ltorch_cpu -lc10_cuda -lc10)")
    elif _calls(objects, "Sleef_", "aoti_torch_"):
        found.append("libtorch_cpu.so (of torch's folder `lib`: -ltorch_cpu -lc10)")
    if _calls(objects, "cuInit"):
        found.append("the driver of the GPU (libcuda.so.1: -lcuda)")
    return " and ".join(found) or "no library but C's"


def _calls(objects: Sequence[bytes], *prefixes: str) -> bool:
    return any(name.startswith(prefixes) for made in objects for name in undefined_symbols(made))


__all__ = ["container_in", "find_linker", "link", "why_not_shared"]
