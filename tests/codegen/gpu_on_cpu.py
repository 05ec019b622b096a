"""Rewrite a GPU kernel's LLVM text so that a CPU can run it, one of its threads at a time.

In: the text that `litz.codegen.llvm.gpu` wrote. Out: text in which the kernel is a coroutine, and a driver for it.

A GPU's thread becomes a coroutine (LLVM's own): where it would wait for others, at a shuffle or a barrier, it leaves
word at its place of the `desk` and is suspended; whoever runs the block sees who waits where, hands out what is
exchanged, and goes on. What only a GPU has is replaced by functions of the same meaning. Every access of memory is
checked first, by the buffer that its address was computed from: whether it lies inside, and is aligned as stated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.codegen.gpu_stand_ins import END, HELPERS, INTRINSICS, driver, pairs, roundings

OUTSIDE, MISALIGNED, TRAPPED = 1, 2, 3  # what a kernel may be found to have done
FROM_LANE = 32  # on the desk: a step from here on is the number of the lane, the same for all, that a value comes from
OVER = -1  # in place of a line on the desk: the thread has ended

_BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8, "ptr": 8}
_TYPE = r"<\d+ x \w+>|\w+"
_NAME = r"[%@][\w.]+"


@dataclass(frozen=True)
class CpuText:
    text: str
    lines: tuple[str, ...]  # of the GPU's text: a thread waits at one of them, or did wrong there
    threads: int  # of a block
    buffers: int
    sizes: int


class _Rewriting:
    def __init__(self, text: str):
        self.lines = tuple(text.splitlines())
        self.at = 0  # the line
        self.out: list[str] = []
        self.declared: dict[str, None] = {}
        self.shared: dict[str, int] = {}  # the block's own memory, and its bytes
        self.origin: dict[str, tuple[str, str]] = {}  # address -> the memory it lies in, and the element it is one of
        self.names = 0
        self.threads = self.buffers = self.sizes = 0

    def run(self) -> CpuText:
        helper = False  # a function that the kernel calls: arithmetic alone
        for at, line in enumerate(self.lines):
            self.at = at
            helper = helper or line.startswith("define internal ")
            if helper:
                self._keep(line.replace("@llvm.nvvm.", "@"))
                helper = line != "}"
                continue
            for pattern, rewrite in _LINES:
                if (match := pattern.match(line)) is not None:
                    rewrite(self, match)
                    break
            else:
                self._keep(line)
        fills = "\n".join(
            f"  call void @llvm.memset.p0.i64(ptr {name}, i8 -1, i64 {count}, i1 false)"
            for name, count in self.shared.items()
        )
        self.declared |= dict.fromkeys(f"declare {line}" for line in INTRINSICS)
        body = "\n".join([*self.out, *pairs("\n".join(self.out))])
        text = "\n".join([*self.declared, body, HELPERS, *roundings(body), driver(fills), ""])
        return CpuText(text, self.lines, self.threads, self.buffers, self.sizes)

    def _keep(self, line: str) -> None:
        assert not re.search(r"nvvm|ptx|addrspace|\basm\b|bfloat|\bphi\b", line), f"no CPU can run: {line}"
        self.out.append(line)

    def emit(self, text: str) -> None:
        self.out.append(f"  {text}")

    def let(self, text: str) -> str:
        self.names += 1
        self.emit(f"%emulated{self.names} = {text}")
        return f"%emulated{self.names}"

    # -- the function -------------------------------------------------------------------------------
    def drop(self, match: re.Match[str]) -> None:
        pass

    def declare(self, match: re.Match[str]) -> None:
        self.declared[match[0]] = None

    def shared_cells(self, match: re.Match[str]) -> None:
        name, count, element = match["name"], int(match["count"]), match["element"]
        self.shared[name] = count * _BYTES[element]
        self.out.append(f"{name} = internal global [{count} x {element}] poison, align 16")

    def define(self, match: re.Match[str]) -> None:
        self.threads = int(match["threads"])
        self.out.append(
            "define internal ptr @kernel(ptr %arguments, ptr %lengths, ptr %desk, i32 %thread, i32 %block) "
            "presplitcoroutine nounwind {"
        )
        parameters = [p.split() for p in match["parameters"].split(", ") if p]
        self.buffers = sum(name.startswith("%b") for _, name in parameters)
        self.sizes = len(parameters) - self.buffers
        self.parameters = parameters

    def entry(self, match: re.Match[str]) -> None:
        self.out.append("entry:")
        for i, (t, name) in enumerate(self.parameters):
            self.emit(f"{name}.slot = getelementptr i64, ptr %arguments, i64 {i}")
            if t != "ptr" and name.startswith("%b"):  # a number, which is passed itself: here by where it lies
                self.emit(f"{name}.place = load ptr, ptr {name}.slot")
                self.emit(f"{name} = load {t}, ptr {name}.place")
                continue
            self.emit(f"{name} = load {t}, ptr {name}.slot")
            if t == "ptr":
                self.emit(f"{name}.length = getelementptr i64, ptr %lengths, i64 {i}")
                self.emit(f"{name}.bytes = load i64, ptr {name}.length")
        # Stack slots are part of the coroutine's frame, and aligned to 64 bytes.
        self.emit("%coroutine = call token @llvm.coro.id(i32 64, ptr null, ptr null, ptr null)")
        self.emit("%frame.bytes = call i64 @llvm.coro.size.i64()")
        self.emit("%frame = call ptr @room(i64 %frame.bytes)")
        self.emit("%handle = call ptr @llvm.coro.begin(token %coroutine, ptr %frame)")

    def ends(self, match: re.Match[str]) -> None:
        self.emit("br label %over")

    def close(self, match: re.Match[str]) -> None:
        self.out.append(END)

    # -- what only a GPU has ------------------------------------------------------------------------
    def register(self, match: re.Match[str]) -> None:
        self.emit(f"{match['result']} = add i32 {'%thread' if match['name'] == 'tid' else '%block'}, 0")

    def no_block_above(self, match: re.Match[str]) -> None:
        self.emit(f"{match['result']} = add i32 0, 0")

    def shuffle(self, match: re.Match[str]) -> None:
        assert match["most"] == "31", "of shuffles the lanes are counted to the end of the warp"
        self._wait(match["mask"], match["step"], match["value"])
        self.emit(f"{match['result']} = call i32 @handed(ptr %desk, i32 %thread)")

    def shuffle_from(self, match: re.Match[str]) -> None:
        assert match["most"] == "31", "of shuffles the lanes are counted to the end of the warp"
        partner = self.let(f"add i32 {match['lane']}, {FROM_LANE}")
        self._wait(match["mask"], partner, match["value"])
        self.emit(f"{match['result']} = call i32 @handed(ptr %desk, i32 %thread)")

    def barrier(self, match: re.Match[str]) -> None:
        self._wait("-1", "0", "0")

    def warp_barrier(self, match: re.Match[str]) -> None:
        self._wait(match["mask"], "1", "0")  # a shuffle of nothing: all members have come when it takes place

    def _wait(self, mask: str, step: str, value: str) -> None:
        self.emit(f"call void @waits(ptr %desk, i32 %thread, i32 {self.at + 1}, i32 {mask}, i32 {step}, i32 {value})")
        state = self.let("call i8 @llvm.coro.suspend(token none, i1 false)")
        on = f"goes.on{self.at}"
        self.emit(f"switch i8 {state}, label %away [i8 0, label %{on} i8 1, label %free]")
        self.out.append(f"{on}:")

    def approximate(self, match: re.Match[str]) -> None:
        self.emit(f"{match['result']} = call float @{match['function']}(float {match['x']})")

    def quotient(self, match: re.Match[str]) -> None:
        self.emit(f"{match['result']} = fdiv float {match['a']}, {match['b']}")

    def upper_product(self, match: re.Match[str]) -> None:
        a, b = (self.let(f"zext i32 {match[name]} to i64") for name in ("a", "b"))
        upper = self.let(f"lshr i64 {self.let(f'mul i64 {a}, {b}')}, 32")
        self.emit(f"{match['result']} = trunc i64 {upper} to i32")

    def trap(self, match: re.Match[str]) -> None:
        self.emit(f"call void @report(i64 {TRAPPED}, i64 0, i32 {self.at + 1}, i32 %thread, i32 %block)")

    def round(self, match: re.Match[str]) -> None:
        # Not all CPUs have the instruction, nor all systems the function that stands for it.
        lanes = match["lanes"]
        t = "i16" if lanes is None else f"<{lanes} x i16>"
        self.emit(f"{match['result']} = call {t} @bfloat.{lanes or 1}({match['source']} {match['x']})")

    def rounded(self, match: re.Match[str]) -> None:
        t = match["type"]
        self.emit(f"{match['result']} = bitcast {t} {match['x']} to {t}")

    # -- memory -------------------------------------------------------------------------------------
    def address(self, match: re.Match[str]) -> None:
        self.origin[match["result"]] = match["base"], match["element"]
        self.out.append(match[0].replace(" addrspace(3)", ""))

    def load(self, match: re.Match[str]) -> None:
        t = match["type"]
        place, alignment = self._place(t, match["address"], match["alignment"])
        self.emit(f"{match['result']} = load {t}, ptr {place}{alignment}")

    def store(self, match: re.Match[str]) -> None:
        t = match["type"]
        place, alignment = self._place(t, match["address"], match["alignment"])
        self.emit(f"store {t} {match['value']}, ptr {place}{alignment}")

    # -- threads that meet: each runs until it waits, so nothing comes between ------------------------
    def part_of_addresses(self, match: re.Match[str]) -> None:
        self.origin[match["result"]] = self.origin[match["address"]]
        self.out.append(match[0])

    def global_address(self, match: re.Match[str]) -> None:
        self.origin[match["result"]] = self.origin[match["address"]]
        self.emit(f"{match['result']} = getelementptr i8, ptr {match['address']}, i64 0")

    def atomic(self, match: re.Match[str]) -> None:
        t = match["type"]
        place, alignment = self._place(t, match["address"], match["alignment"])
        self.emit(
            f"{match['result']} = atomicrmw {match['operation']} ptr {place}, {t} {match['value']} monotonic{alignment}"
        )

    def atomic_load(self, match: re.Match[str]) -> None:
        t = match["type"]
        place, alignment = self._place(t, match["address"], match["alignment"])
        self.emit(f"{match['result']} = load atomic {t}, ptr {place} monotonic{alignment}")

    def exchange(self, match: re.Match[str]) -> None:
        place, alignment = self._place(match["type"], match["address"], None)
        values = ", ".join(f"{match['type']} {match[name]}" for name in ("old", "new"))
        self.emit(f"{match['result']} = cmpxchg ptr {place}, {values} monotonic monotonic{alignment}")

    def pair(self, match: re.Match[str]) -> None:
        # The second half of a word may lie behind the buffer's end: minus zero is added to it.
        place = self._checked("true", match["address"], match["address"], 2, 4)
        self.emit(f"call void @add.{match['form']}(ptr {place}, i32 {match['word']})")

    def masked_load(self, match: re.Match[str]) -> None:
        t, lanes = match["type"], int(match["lanes"])
        places = self._places(match, lanes)
        name = f"@llvm.masked.gather.{match['suffix']}.v{lanes}p0"
        self.declared[f"declare {t} {name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {t})"] = None
        live, rest = f"<{lanes} x i1> {match['mask']}", f"{t} {match['otherwise']}"
        self.emit(
            f"{match['result']} = call {t} {name}(<{lanes} x ptr> {places}, i32 {match['alignment']}, {live}, {rest})"
        )

    def masked_store(self, match: re.Match[str]) -> None:
        t, lanes = match["type"], int(match["lanes"])
        places = self._places(match, lanes)
        name = f"@llvm.masked.scatter.{match['suffix']}.v{lanes}p0"
        self.declared[f"declare void {name}({t}, <{lanes} x ptr>, i32, <{lanes} x i1>)"] = None
        live = f"<{lanes} x i1> {match['mask']}"
        self.emit(f"call void {name}({t} {match['value']}, <{lanes} x ptr> {places}, i32 {match['alignment']}, {live})")

    def _place(self, t: str, address: str, alignment: str | None) -> tuple[str, str]:
        """Where to read or write: there, if it is sound, and what to say of its alignment."""
        if address.startswith(("%slot", "@litz.")):
            return address, f", align {alignment}" if alignment else ""
        aligned = int(alignment) if alignment else _bytes_of(t)
        return self._checked("true", address, address, _bytes_of(t), aligned), f", align {aligned}"

    def _places(self, match: re.Match[str], lanes: int) -> str:
        """The addresses of the lanes, each checked if it is live. Side by side or not, they are treated alike."""
        address, t = match["address"], f"<{lanes} x ptr>"
        element = self.origin[address][1]
        where = address
        if match["form"] == "ptr":
            steps = ", ".join(f"i64 {k}" for k in range(lanes))
            where = self.let(f"getelementptr {element}, ptr {address}, <{lanes} x i64> <{steps}>")
        whole = "poison"
        for lane in range(lanes):
            live = self.let(f"extractelement <{lanes} x i1> {match['mask']}, i32 {lane}")
            one = self.let(f"extractelement {t} {where}, i32 {lane}")
            sound = self._checked(live, one, address, _BYTES[element], int(match["alignment"]))
            whole = self.let(f"insertelement {t} {whole}, ptr {sound}, i32 {lane}")
        return whole

    def _checked(self, live: str, place: str, address: str, count: int, alignment: int) -> str:
        base = self.origin[address][0]
        if base.startswith("%slot"):
            return place  # a number that was passed
        length = str(self.shared[base]) if base in self.shared else f"{base}.bytes"
        return self.let(
            f"call ptr @checked(i1 {live}, ptr {place}, ptr {base}, i64 {length}, i64 {count}, i64 {alignment}, "
            f"i32 {self.at + 1}, i32 %thread, i32 %block)"
        )


def _bytes_of(t: str) -> int:
    if t.startswith("<"):
        lanes, element = t[1:-1].split(" x ")
        return int(lanes) * _BYTES[element]
    return _BYTES[t]


_RESULT = rf"  (?P<result>{_NAME}) = "
_ADDRESS = rf"ptr(?: addrspace\(3\))? (?P<address>{_NAME})(?:, align (?P<alignment>\d+))?$"
_MASKED = rf"(?P<form>ptr|<\d+ x ptr>) (?P<address>{_NAME}), i32 (?P<alignment>\d+), <(?P<lanes>\d+) x i1> "
_LINES: list[tuple[re.Pattern[str], Callable[[_Rewriting, re.Match[str]], None]]] = [
    (re.compile(pattern), rewrite)
    for pattern, rewrite in (
        (r"declare .*@llvm\.nvvm\.", _Rewriting.drop),
        (r"declare .*@llvm\.masked\.", _Rewriting.drop),
        (r"declare .*", _Rewriting.declare),
        (
            rf"(?P<name>{_NAME}) = internal addrspace\(3\) global "
            r"\[(?P<count>\d+) x (?P<element>\w+)\] poison, align 16$",
            _Rewriting.shared_cells,
        ),
        (
            r'define ptx_kernel void @\w+\((?P<parameters>.*)\) nounwind "nvvm.maxntid"="(?P<threads>\d+)"'
            r'(?: "nvvm.minctasm"="\d+")? {$',
            _Rewriting.define,
        ),
        (r"entry:$", _Rewriting.entry),
        (r"  ret void$", _Rewriting.ends),
        (r"}$", _Rewriting.close),
        (_RESULT + r"call i32 @llvm\.nvvm\.read\.ptx\.sreg\.(?P<name>tid|ctaid)\.x\(\)$", _Rewriting.register),
        (_RESULT + r"call i32 @llvm\.nvvm\.read\.ptx\.sreg\.ctaid\.z\(\)$", _Rewriting.no_block_above),
        (
            _RESULT + r"call i32 @llvm\.nvvm\.shfl\.sync\.bfly\.i32\(i32 (?P<mask>\S+), i32 (?P<value>\S+), "
            r"i32 (?P<step>\d+), i32 (?P<most>\d+)\)$",
            _Rewriting.shuffle,
        ),
        (
            _RESULT + r"call i32 @llvm\.nvvm\.shfl\.sync\.idx\.i32\(i32 (?P<mask>\S+), i32 (?P<value>\S+), "
            r"i32 (?P<lane>\S+), i32 (?P<most>\d+)\)$",
            _Rewriting.shuffle_from,
        ),
        (r"  call void @llvm\.nvvm\.bar\.warp\.sync\(i32 (?P<mask>\S+)\)$", _Rewriting.warp_barrier),
        (r"  call void @llvm\.nvvm\.barrier\.cta\.sync\.aligned\.all\(i32 0\)$", _Rewriting.barrier),
        (
            _RESULT
            + r"call float @llvm\.nvvm\.(?P<function>ex2\.approx(?:\.ftz)?\.f|rcp\.approx\.ftz\.f|rsqrt\.approx\.f)"
            r"\(float (?P<x>\S+)\)$",
            _Rewriting.approximate,
        ),
        (
            _RESULT + r"call i32 @llvm\.nvvm\.mulhi\.ui\(i32 (?P<a>\S+), i32 (?P<b>\S+)\)$",
            _Rewriting.upper_product,
        ),
        (
            _RESULT + r"call float @llvm\.nvvm\.div\.full\(float (?P<a>\S+), float (?P<b>\S+)\)$",
            _Rewriting.quotient,
        ),
        (
            _RESULT + r'call (?P<type>\w+) asm sideeffect "", "=r,0"\((?P=type) (?P<x>\S+)\)$',
            _Rewriting.rounded,
        ),
        (r'  call void asm sideeffect "trap;", ""\(\)$', _Rewriting.trap),
        (
            _RESULT + r"fptrunc (?P<source>float|<\d+ x float>) (?P<x>.+) to (?:bfloat|<(?P<lanes>\d+) x bfloat>)$",
            _Rewriting.round,
        ),
        (_RESULT + r"bitcast (?:bfloat|<\d+ x bfloat>) (?P<x>\S+) to (?P<type>.+)$", _Rewriting.rounded),
        (
            _RESULT + rf"extractelement <\d+ x ptr> (?P<address>{_NAME}), i32 \d+$",
            _Rewriting.part_of_addresses,
        ),
        (
            _RESULT + rf"call ptr @llvm\.ptrmask\.p0\.i64\(ptr (?P<address>{_NAME}), i64 -4\)$",
            _Rewriting.part_of_addresses,
        ),
        (_RESULT + rf"addrspacecast ptr (?P<address>{_NAME}) to ptr addrspace\(1\)$", _Rewriting.global_address),
        (
            _RESULT + rf"atomicrmw (?P<operation>\w+) ptr (?P<address>{_NAME}), (?P<type>{_TYPE}) (?P<value>\S+) "
            r'syncscope\("device"\) monotonic(?:, align (?P<alignment>\d+))?$',
            _Rewriting.atomic,
        ),
        (
            _RESULT + rf"load atomic (?P<type>\w+), ptr (?P<address>{_NAME}) "
            r'syncscope\("device"\) monotonic, align (?P<alignment>\d+)$',
            _Rewriting.atomic_load,
        ),
        (
            _RESULT + rf"cmpxchg ptr (?P<address>{_NAME}), (?P<type>\w+) (?P<old>\S+), \w+ (?P<new>\S+) "
            r'syncscope\("device"\) monotonic monotonic$',
            _Rewriting.exchange,
        ),
        (
            r'  call void asm sideeffect "red\.relaxed\.gpu\.global\.add\.noftz\.(?P<form>b?f16x2) \[\$0\], \$1;", '
            rf'"l,r,~{{memory}}"\(ptr addrspace\(1\) (?P<address>{_NAME}), i32 (?P<word>\S+)\)$',
            _Rewriting.pair,
        ),
        (
            _RESULT + rf"getelementptr (?P<element>\w+), ptr(?: addrspace\(3\))? (?P<base>{_NAME}), .*$",
            _Rewriting.address,
        ),
        (_RESULT + rf"load (?P<type>{_TYPE}), {_ADDRESS}", _Rewriting.load),
        (rf"  store (?P<type>{_TYPE}) (?P<value>.+), {_ADDRESS}", _Rewriting.store),
        (
            _RESULT + rf"call (?P<type>{_TYPE}) @llvm\.masked\.(?:load|gather)\.(?P<suffix>v\d+\w+)\.\w+\({_MASKED}"
            r"(?P<mask>.+), <.+> (?P<otherwise>\w+)\)$",
            _Rewriting.masked_load,
        ),
        (
            r"  call void @llvm\.masked\.(?:store|scatter)\.(?P<suffix>v\d+\w+)\.\w+"
            rf"\((?P<type>{_TYPE}) (?P<value>.+), {_MASKED}(?P<mask>.+)\)$",
            _Rewriting.masked_store,
        ),
    )
]


def for_cpu(text: str) -> CpuText:
    return _Rewriting(text).run()


__all__ = ["FROM_LANE", "MISALIGNED", "OUTSIDE", "OVER", "TRAPPED", "CpuText", "for_cpu"]
