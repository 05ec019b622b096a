"""Read the loop IR's text back: the grammar is what `text.py` prints.

In: text. Out: a `Program`, or a `Kernel` with its buffers. A mistake is a `ParseError` with the line, its
number and what was expected there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from litz.errors import ParseError
from litz.loop.dtype import DTYPES
from litz.loop.expr import ZERO, Atom, Axis, Expr, Size, Value, constant, expr
from litz.loop.formula import Formula
from litz.loop.ir import (
    Apply,
    Arg,
    Buffer,
    Call,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    Number,
    NumberSource,
    Op,
    Program,
    Reduce,
    Scan,
    SizeSource,
    Step,
    Store,
    View,
    contiguous,
)  # fmt: skip
from litz.loop.text import BUFFER_KINDS

LONG = ("program", "call")  # lines whose brackets may run over several
T = TypeVar("T")


def parse_program(text: str) -> Program:
    lines = _Lines(text)
    sizes, sources = _parse_sizes(lines)
    numbers = _parse_numbers(lines)
    line = lines.take("a program: `program(...) -> (...)`")
    line.word("program")
    buffers: dict[str, Buffer] = {}
    inputs = tuple(line.bracketed("(", ")", lambda: _parse_input(line, sizes, buffers)))
    line.word("->")
    outputs = tuple(line.bracketed("(", ")", lambda: _parse_arg(line, sizes)))
    line.end()
    buffers.update(_parse_buffers(lines, sizes))
    steps: list[Step] = []
    while lines.left:
        steps.append(_parse_kernel(lines, sizes) if lines.starts("kernel") else _parse_call(lines, sizes))
    return Program(buffers, inputs, outputs, tuple(steps), sources, numbers)


def parse_kernel(text: str) -> tuple[Kernel, dict[str, Buffer]]:
    """What `print_kernel` wrote: the kernel and the buffers it touches."""
    lines = _Lines(text)
    sizes, _ = _parse_sizes(lines)
    buffers = _parse_buffers(lines, sizes)
    kernel = _parse_kernel(lines, sizes)
    if lines.left:
        lines.take("").fail("the end of the text")
    return kernel, buffers


Scope = Mapping[str, Atom]

_TOKEN = re.compile(
    r"""[ \t]*(?:(?P<comment>\#.*)
    | (?P<float>\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)
    | (?P<int>\d+)
    | (?P<name>[A-Za-z_][\w.]*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<sign>->|::|//|<=|[-+*%~(){}\[\],:=<])
    | (?P<end>$))""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    number: int  # of its line, from 1
    line: str


class _Line:
    """The tokens of one logical line (a long one runs over several), and how far they are read."""

    def __init__(self, tokens: list[_Token], indented: bool):
        self.tokens, self.indented, self.at = tokens, indented, 0

    def fail(self, expected: str) -> NoReturn:
        token = self.tokens[self.at]
        found = repr(token.text) if token.text else "the end of the line"
        raise ParseError(f"line {token.number}: expected {expected}, found {found}\n    {token.line.strip()}")

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)].text

    def kind(self) -> str:
        return self.tokens[self.at].kind

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1].text

    def accept(self, text: str) -> bool:
        found = self.peek() == text
        self.at += found
        return found

    def word(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"`{text}`")

    def name(self, what: str) -> str:
        return self.next() if self.kind() == "name" else self.fail(what)

    def one_of(self, what: str, choices: Iterable[str]) -> str:
        return self.next() if self.peek() in choices else self.fail(f"{what} ({', '.join(choices)})")

    def end(self) -> None:
        if self.peek():
            self.fail("the end of the line")

    def separated(self, item: Callable[[], T]) -> list[T]:
        items = [item()]
        while self.accept(","):
            items.append(item())
        return items

    def bracketed(self, opening: str, closing: str, item: Callable[[], T]) -> list[T]:
        self.word(opening)
        items: list[T] = []
        while not self.accept(closing):
            items.append(item())
            if not self.accept(",") and self.peek() != closing:
                self.fail(f"`,` or `{closing}`")
        return items


class _Lines:
    def __init__(self, text: str):
        self.left: list[_Line] = []
        self.last = (0, "")
        depth, open_line = 0, _Line([], False)
        for number, line in enumerate(text.splitlines(), 1):
            tokens = list(_tokens(number, line))
            if depth == 0:
                open_line = _Line([], line[:1].isspace())
            open_line.tokens += tokens[:-1]
            if open_line.tokens and open_line.tokens[0].text in LONG:
                depth += sum((t.text in "([{") - (t.text in ")]}") for t in tokens[:-1] if t.kind == "sign")
            if depth <= 0 and open_line.tokens:
                depth = 0
                open_line.tokens.append(tokens[-1])
                self.left.append(open_line)
            self.last = (number, line)
        if depth:
            open_line.tokens.append(_Token("end", "", *self.last))
            self.left.append(open_line)
        self.left.reverse()

    def starts(self, word: str) -> bool:
        return bool(self.left) and not self.left[-1].indented and self.left[-1].peek() == word

    def take(self, expected: str) -> _Line:
        if not self.left:
            _Line([_Token("end", "", *self.last)], False).fail(expected)
        return self.left.pop()


def _tokens(number: int, line: str) -> Iterator[_Token]:
    at = 0
    while True:
        match = _TOKEN.match(line, at)
        if match is None:
            found = line[at:].strip()[:1]
            raise ParseError(f"line {number}: expected a name, a number or a sign, found {found!r}\n    {line.strip()}")
        kind = match.lastgroup or ""
        if kind in ("end", "comment"):
            yield _Token("end", "", number, line)
            return
        yield _Token(kind, match[kind], number, line)
        at = match.end()


def _parse_sizes(lines: _Lines) -> tuple[dict[str, Atom], tuple[SizeSource, ...]]:
    sizes: dict[str, Atom] = {}
    sources: list[SizeSource] = []
    if not lines.starts("sizes"):
        return sizes, ()
    line = lines.take("")
    line.word("sizes")

    def size() -> None:
        name = line.name("the name of a size")
        hint = _parse_whole(line) if line.accept("~") else 64
        least: int | None = 1
        if line.accept("least"):
            least = None if line.accept("any") else _parse_whole(line)
        position, formula = _parse_source(line)
        sizes[name] = Size(name, hint, least, formula)
        if position is not None or formula is not None:
            dim = _parse_whole(line) if line.accept("dim") else None
            sources.append(SizeSource(name, position, dim, formula))

    line.separated(size)
    line.end()
    return sizes, tuple(sources)


def _parse_numbers(lines: _Lines) -> tuple[NumberSource, ...]:
    if not lines.starts("numbers"):
        return ()
    line = lines.take("")
    line.word("numbers")
    found = line.separated(lambda: NumberSource(line.name("the name of a number"), *_parse_source(line)))
    line.end()
    return tuple(found)


def _parse_source(line: _Line) -> tuple[int | None, Formula | None]:
    """An input's position, or a formula."""
    if line.accept("from"):
        line.word("input")
        return _parse_whole(line), None
    return None, Formula(_parse_string(line)) if line.accept("is") else None


def _parse_input(line: _Line, sizes: Scope, buffers: dict[str, Buffer]) -> str | None:
    if line.accept("None"):
        return None
    if line.peek(1) == ":":
        buffer = _parse_buffer(line, sizes, "input")
        buffers[buffer.name] = buffer
        return buffer.name
    return line.name("an input: `x: f32[8]`, a buffer's name, or None")


def _parse_buffer(line: _Line, sizes: Scope, kind: str = "") -> Buffer:
    name = line.name("the name of a buffer")
    line.word(":")
    dtype = line.one_of("a dtype", DTYPES)
    line.word("[")
    size = _parse_expr(line, sizes)
    line.word("]")
    return Buffer(name, dtype, size, kind or line.one_of("a kind of buffer", BUFFER_KINDS))


def _parse_buffers(lines: _Lines, sizes: Scope) -> dict[str, Buffer]:
    found = {}
    while lines.starts("buffer"):
        line = lines.take("")
        line.word("buffer")
        buffer = _parse_buffer(line, sizes)
        line.end()
        found[buffer.name] = buffer
    return found


def _parse_kernel(lines: _Lines, sizes: Scope) -> Kernel:
    line = lines.take("a kernel")
    line.word("kernel")
    name = line.name("the name of the kernel")
    line.end()
    line = lines.take("the loops of the kernel: `for i0 < 8 parallel:` or `once:`")
    scope = dict(sizes)
    axes: dict[str, list[Axis]] = {"parallel": [], "reduce": []}

    def axis() -> None:
        name = line.name("an axis: `i0 < 8 parallel`")
        line.word("<")
        made = Axis(name, _parse_expr(line, sizes))
        axes[line.one_of("what the axis is", axes)].append(made)
        scope[name] = made

    if not line.accept("once"):
        line.word("for")
        line.separated(axis)
    line.word(":")
    line.end()
    body: list[Op] = []
    while lines.left and lines.left[-1].indented:
        line = lines.take("")
        op = _parse_op(line, scope)
        line.end()
        body.append(op)
        if not isinstance(op, Store):
            scope[op.name] = Value(op.name, op.limit if isinstance(op, Check) else None)
    return Kernel(name, tuple(axes["parallel"]), tuple(axes["reduce"]), tuple(body))


def _parse_op(line: _Line, scope: Scope) -> Op:
    if line.peek(1) != ":":
        update = line.name("a kind of update") if line.accept("update") else None
        if update is None:
            line.word("store")
        buffer, index = _parse_element(line, scope)
        line.word("=")
        return Store(buffer, index, line.name("the value to store"), update)
    name = line.name("the name of a value")
    line.word(":")
    dtype = line.one_of("a dtype", DTYPES)
    line.word("=")
    op = line.name("load, const, index, check, reduce, scan or a scalar operator")
    if op == "load":
        buffer, index = _parse_element(line, scope)
        return Load(name, dtype, buffer, index, line.name("the mask") if line.accept("if") else None)
    if op == "const":
        return Const(name, dtype, _parse_number(line))
    if op == "index":
        return Index(name, dtype, _parse_expr(line, scope))
    if op == "check":
        wrap = not line.accept("0")
        if not wrap:
            line.word("<=")
        value = line.name("the value to check")
        line.word("<")
        limit = _parse_expr(line, scope)
        return Check(name, dtype, value, limit, wrap, line.name("a fault") if line.accept("else") else "index")
    if op == "reduce":
        kind = line.name("a kind of reduction")
        return Reduce(name, dtype, kind, line.name("the value to reduce"))
    if op == "scan":
        kind = line.name("a kind of scan")
        return Scan(name, dtype, kind, line.name("the value to scan"))
    return Apply(name, dtype, op, tuple(line.separated(lambda: line.name("the name of a value"))))


def _parse_element(line: _Line, scope: Scope) -> tuple[str, Expr]:
    buffer = line.name("the name of a buffer")
    line.word("[")
    index = _parse_expr(line, scope)
    line.word("]")
    return buffer, index


def _parse_call(lines: _Lines, sizes: Scope) -> Call:
    line = lines.take("a call")
    if not line.accept("call"):
        line.fail("`kernel` or `call` at the start of the line")
    name = line.name("the name of the call")
    line.word("=")
    target = line.name("an operator, like aten::mm")
    line.word("::")
    target += "::" + line.name("the operator's name")
    args: list[Arg] = []
    kwargs: list[tuple[str, Arg]] = []

    def argument() -> None:
        if line.peek(1) == "=":
            keyword = line.name("the name of the argument")
            line.word("=")
            kwargs.append((keyword, _parse_arg(line, sizes)))
        else:
            args.append(_parse_arg(line, sizes))

    line.bracketed("(", ")", argument)
    line.word("->")
    results = line.bracketed("(", ")", lambda: None if line.accept("None") else _parse_view(line, sizes))
    mutates = line.separated(lambda: line.name("the buffer it mutates")) if line.accept("mutates") else []
    why = _parse_string(line) if line.accept("why") else ""
    line.end()
    return Call(name, target, tuple(args), tuple(kwargs), tuple(results), tuple(mutates), why)


def _parse_arg(line: _Line, sizes: Scope) -> Arg:
    found = line.peek()
    if line.kind() == "name" and line.peek(1) == ":":
        return _parse_view(line, sizes)
    if line.kind() == "string":
        return _parse_string(line)
    if found == "{":
        line.next()
        index = _parse_expr(line, sizes)
        line.word("}")
        return index
    if found == "(":
        return tuple(line.bracketed("(", ")", lambda: _parse_arg(line, sizes)))
    if found == "[":
        return line.bracketed("[", "]", lambda: _parse_arg(line, sizes))
    if line.accept("None"):
        return None
    if line.accept("number"):
        return Number(line.name("the name of a number"))
    if line.accept("complex"):
        parts = line.bracketed("(", ")", lambda: _parse_number(line))
        return complex(*parts) if len(parts) == 2 else line.fail("complex(real, imaginary)")
    if found.startswith("torch."):
        return _parse_torch(line)
    return _parse_number(line)


def _parse_torch(line: _Line) -> Arg:
    import torch

    if line.accept("torch.device"):
        spelled = line.bracketed("(", ")", lambda: _parse_string(line))
        return torch.device(spelled[0]) if len(spelled) == 1 else line.fail('torch.device("cpu")')
    found = getattr(torch, line.peek().removeprefix("torch."), None)
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        line.fail("a torch dtype, layout or memory format")
    line.next()
    return found


def _parse_view(line: _Line, sizes: Scope) -> View:
    buffer = line.name("a window: `x: f32[8, 4] stride [4, 1] offset 2`")
    line.word(":")
    dtype = line.one_of("a dtype", DTYPES)
    shape = tuple(line.bracketed("[", "]", lambda: _parse_expr(line, sizes)))
    strides = contiguous(shape)
    if line.accept("stride"):
        strides = tuple(line.bracketed("[", "]", lambda: _parse_expr(line, sizes)))
    return View(buffer, dtype, shape, strides, _parse_expr(line, sizes) if line.accept("offset") else ZERO)


def _parse_string(line: _Line) -> str:
    return json.loads(line.next()) if line.kind() == "string" else line.fail('a string in `"`')


def _parse_number(line: _Line) -> float | int | bool:
    negative = line.accept("-")
    kind, text = line.kind(), line.peek()
    if kind == "name" and not negative and text in ("True", "False"):
        return line.next() == "True"
    if kind == "name" and text in ("inf", "nan"):
        number: float | int = math.inf if text == "inf" else math.nan
    elif kind in ("int", "float"):
        number = int(text) if kind == "int" else float(text)
    else:
        line.fail("a number, True, False, inf or nan")
    line.next()
    return -number if negative else number


def _parse_whole(line: _Line) -> int:
    negative = line.accept("-")
    if line.kind() != "int":
        line.fail("a whole number")
    return -int(line.next()) if negative else int(line.next())


def _parse_expr(line: _Line, scope: Scope) -> Expr:
    total = _parse_term(line, scope)
    while line.peek() in ("+", "-"):
        total = total + _parse_term(line, scope) if line.next() == "+" else total - _parse_term(line, scope)
    return total


def _parse_term(line: _Line, scope: Scope) -> Expr:
    product = _parse_factor(line, scope)
    while line.peek() in ("*", "//", "%"):
        sign, factor = line.next(), _parse_factor(line, scope)
        product = product * factor if sign == "*" else product // factor if sign == "//" else product % factor
    return product


def _parse_factor(line: _Line, scope: Scope) -> Expr:
    if line.accept("-"):
        return -_parse_factor(line, scope)
    if line.accept("("):
        inside = _parse_expr(line, scope)
        line.word(")")
        return inside
    if line.kind() == "int":
        return constant(int(line.next()))
    if line.kind() == "name" and line.peek() in scope:
        return expr(scope[line.next()])
    return line.fail("an index: a number, an axis, a declared size, an earlier value, or `(`")
