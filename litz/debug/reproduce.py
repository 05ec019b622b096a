"""Run a graph in eager and compiled, and say how the compiled one fails: its `Symptom`.

In: a module, and a function that makes its inputs. Out: what is wrong, in a form that can be compared with what is
wrong with another graph: the kind of failure, its type, and the stage it happened in.

Numbers are judged against the same graph in float64: an error may be at most twice eager's, plus a few units in the
last place. Where float64 cannot serve, TorchScript's result is the measure of how far rounding goes.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from litz.context import FIRED, SPENT
from litz.debug.given import copied
from litz.frontdoor import compile
from litz.report import HISTORY
from litz.stages import STAGES

SEED = 0
FLOOR = 4  # units in the last place
RUNS, MOST_RUNS, ENOUGH = 5, 50, 0.5  # of which the fastest counts: few, and more where they take no half second
LONG = 5.0  # seconds: who takes that long takes long, and one run says so
PLAIN = 3  # so many times slower than what is slow: two runs are enough
MOST_KNOWN = 1 << 28  # bytes of results that are kept for other options
FIRST = 1.0  # of the processor's seconds, which a first call may take besides
LEAST_LOSS = 5e-4  # seconds: what a call of anything compiled costs is not what makes a program slow
PLENTY = 10**9  # of fuel: all optimisations, and each is written down
# In the place of a stage: what comes before and behind those of Litz.
EAGER, CAPTURE, CALL, JUDGE, CLOCK = "eager", "capture", "call", "judge", "clock"
_DEFECT = "a defect of Litz"
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Symptom:
    """`kind`: exception, wrong, slow, signal, hang; none where all is well, invalid where eager itself fails. `what`:
    the exception's type, the kind of difference, the signal's name. `stage`: where; of wrong results, which ones."""

    kind: str
    what: str = ""
    stage: str = ""
    told: str = ""  # to people: not compared
    spent: tuple[str, ...] = ()  # the optimisations that were applied
    # That it took; of what has no end, until the stage in which it stays; of what is slow, more than eager.
    seconds: float = 0.0
    call: float = 0.0  # seconds of a call, where that is timed

    def is_like(self, other: Symptom) -> bool:
        return (self.kind, self.what, self.stage) == (other.kind, other.what, other.stage)

    def __str__(self) -> str:
        match self.kind:
            case "none":
                return "nothing is wrong"
            case "invalid":
                return f"eager itself fails: {self.told}"
            case "wrong":
                return f"wrong {self.what} in the {self.stage}: {self.told}"
            case "exception":
                return f"{self.what} in {_in(self.stage)}: {self.told}"
            case "signal":
                return f"the process ended by {self.what} in {_in(self.stage)}"
            case "hang":
                return f"no end in {_in(self.stage)}: {self.told}"
        return f"{self.what}: {self.told}"


def _in(stage: str) -> str:
    known = {EAGER: "eager", CAPTURE: "the capture", CALL: "a call", JUDGE: "the judge", CLOCK: "calls that are timed"}
    return known.get(stage, f"stage {stage}")


def reproduce(
    module: torch.nn.Module,
    inputs: Callable[[], Sequence[Any]],
    *,
    options: Mapping[str, Any] | None = None,
    slower_than: float | None = None,
    entering: Callable[[str], None] = lambda stage: None,
    applied: Callable[[str], None] = lambda what: None,
    allowing: Callable[[float], None] = lambda seconds: None,
    known: Path | None = None,
) -> Symptom:
    """`slower_than`: how many times eager's time is slow. `entering` is told of each stage before it runs, `applied` of
    each optimisation, and again of one that is a rule, with where that is written; `allowing` of how much work may go
    into a call of what is compiled before it is slow for certain. `known`: a file with what eager and float64 give, or
    where that will be kept: with other options it is the same."""
    options = dict(options or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            given, eager = _run_first(module, inputs, known)
        except Exception as error:
            return Symptom("invalid", type(error).__name__, told=_line(error))
        allowed = float("inf")
        if slower_than is not None:
            allowed = PLAIN * slower_than * eager.worked + FIRST
            allowing(allowed)
        with _listening(applied):
            symptom, function = _compiled(module, given, options, eager, entering, allowed)
        if symptom.kind == "exception" and symptom.stage == _DEFECT:
            # Left to eager because of a defect: where things are checked, it is raised.
            checked, _ = _compiled(module, given, {**options, "verify": True}, eager, entering)
            symptom = checked if checked.kind == "exception" else symptom
        if symptom.kind == "none" and slower_than is not None:
            entering(CLOCK)
            symptom = replace(_timed(module, function, given, slower_than), spent=symptom.spent)
    return symptom


@dataclass
class _Inputs:
    """Each run gets copies, since to draw large inputs takes as long as to compute with them."""

    made: list[Any]
    module: torch.nn.Module
    known: Path | None = None
    exact: _Run | None = None  # what float64 gives
    asked: bool = False  # whether that has been computed; it may be that there is none

    def __call__(self) -> list[Any]:
        return [copied(value) for value in self.made]

    def in_double(self, eager: _Run) -> _Run | None:
        if not self.asked:
            self.exact, self.asked = _in_double(self.module, self.made), True
            if self.known is not None:
                _keep((eager, self.exact), self.made, self.known)
        return self.exact


def _keep(runs: tuple[_Run, _Run | None], made: Sequence[Any], file: Path) -> None:
    """Inputs that eager leaves as they are can be had otherwise."""
    as_made = [then is now or _same_memory(then, now) for then, now in zip(runs[0].inputs, made, strict=True)]
    small = [run and replace(run, inputs=_but(run.inputs, as_made)) for run in runs]
    kept = sum(x.nbytes for x in pytree.tree_leaves([vars(run) for run in small if run]) if isinstance(x, torch.Tensor))
    if kept <= MOST_KNOWN:
        part = file.with_name(f"{file.name}.{os.getpid()}")  # others may be about to read it
        torch.save(small, part)
        os.replace(part, file)


def _run_first(
    module: torch.nn.Module, inputs: Callable[[], Sequence[Any]], known: Path | None
) -> tuple[_Inputs, _Run]:
    """The run in eager, with the inputs themselves: where it writes to them, they are made anew."""
    torch.manual_seed(SEED)
    made = list(inputs())
    if known is not None and known.exists():
        eager, exact = torch.load(known, weights_only=False)
        eager = replace(eager, inputs=[_plain(m) if x is None else x for x, m in zip(eager.inputs, made, strict=True)])
        return _Inputs(made, module, known, exact, True), eager
    versions = [value._version for value in made if isinstance(value, torch.Tensor)]
    eager = _Run.of(module, lambda: made)
    if versions != [value._version for value in made if isinstance(value, torch.Tensor)]:
        torch.manual_seed(SEED)
        made = list(inputs())
    return _Inputs(made, module, known), eager


def _same_memory(a: Any, b: Any) -> bool:
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.data_ptr() == b.data_ptr()


def _but(values: Sequence[Any], left_out: Sequence[bool]) -> list[Any]:
    return [None if out else value for value, out in zip(values, left_out, strict=True)]


def main(module: torch.nn.Module, inputs: Callable[[], Sequence[Any]], **how: Any) -> None:
    """For a file that shows a failure: says what it shows, and exits with 1 where that is a failure of Litz."""
    symptom = reproduce(module, inputs, **how)
    print(symptom)
    sys.exit(symptom.kind not in ("none", "invalid"))


# -- the runs ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Run:
    """What a run leaves: results, gradients, and the inputs as they are then."""

    results: list[Any]
    gradients: list[Any]
    inputs: list[Any]
    worked: float = 0.0  # seconds of the processor's

    @staticmethod
    def of(function: Callable[..., Any], inputs: Callable[[], list[Any]]) -> _Run:
        torch.manual_seed(SEED)
        given = inputs()
        torch.manual_seed(SEED)
        begun = time.process_time()
        # What needs a gradient is written to, if at all, where it is no leaf.
        results = pytree.tree_leaves(function(*given))
        wanted = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf]
        used = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        gradients: Sequence[Any] = []
        if used and wanted:
            gradients = torch.autograd.grad(used, wanted, [_tangent(r) for r in used], allow_unused=True)
        worked = time.process_time() - begun
        return _Run([_plain(r) for r in results], [_plain(g) for g in gradients], [_plain(x) for x in given], worked)


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tangent(result: torch.Tensor) -> torch.Tensor:
    """Numbers around 1, none like its neighbours."""
    count = torch.arange(result.numel(), device=result.device)
    return (1 + (count * 7 % 16 - 8) / 16).to(result.dtype).reshape(result.shape)


def _compiled(
    module: torch.nn.Module, inputs: _Inputs, options: Mapping[str, Any], eager: _Run,
    entering: Callable[[str], None], allowed: float = float("inf"),
) -> tuple[Symptom, Callable[..., Any]]:  # fmt: skip
    """And what was compiled."""
    torch._dynamo.reset()
    stage, entered = [CAPTURE], [time.process_time()]
    entering(CAPTURE)

    def enters(name: str) -> Callable[[Any], None]:
        def told(_: Any) -> None:
            stage[0], entered[0] = name, time.process_time()
            entering(name)

        return told

    before, after = dict(options.get("before") or {}), dict(options.get("after") or {})
    hooks = {name: _both(before.get(name), enters(name)) for name in STAGES}
    loaded = _both(after.get("load"), enters(CALL))
    counted = {"fuel": PLENTY, **options, "before": hooks, "after": {**after, "load": loaded}}
    known, begun, function = HISTORY.mark(), time.perf_counter(), compile(module, **counted)
    try:
        found = _Run.of(function, inputs)
    except Exception as error:
        cause = _cause(error)
        return Symptom("exception", type(cause).__name__, stage[0], _line(cause), _spent(known)), function
    seconds = time.perf_counter() - begun
    worked = time.process_time() - entered[0]
    if stage[0] == CALL and worked > allowed:
        return slow_for_certain(allowed, _spent(known)), function
    entering(JUDGE)
    left = [r.left_to_eager for r in HISTORY.since(known) if r.left_to_eager is not None]
    defects = [why for why in left if _DEFECT in why]  # which may be the backward's
    if defects:
        symptom = Symptom("exception", "", _DEFECT, defects[0].splitlines()[0])
    else:
        symptom = _compared(module, inputs, found, eager)
    return replace(symptom, spent=_spent(known), seconds=seconds), function


def slow_for_certain(allowed: float, spent: tuple[str, ...] = ()) -> Symptom:
    told = f"a call worked for more than {allowed:.1f} seconds"
    return Symptom("slow", "slow", told=told, spent=spent, seconds=allowed, call=allowed)


def _both(first: Callable[[Any], Any] | None, second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def hook(value: Any) -> Any:
        second(value)
        return None if first is None else first(value)

    return hook


def _spent(known: int) -> tuple[str, ...]:
    """Each with where its rule is written, if it is a rule."""
    found = []
    for report in HISTORY.since(known):
        places = {firing.rule: f" ({firing.file}:{firing.line})" for firing in report.firings}
        found += [what + places.get(what.partition(" at ")[0], "") for what in report.spent]
    return tuple(found)


@contextmanager
def _listening(applied: Callable[[str], None]) -> Iterator[None]:
    """What is logged of optimisations is told as it happens: where a run does not come to its end, no report has it."""
    logger, spent = logging.getLogger("litz.context"), [""]

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg == SPENT and isinstance(record.args, tuple):
                spent[0] = str(record.args[0])
                applied(spent[0])
            elif record.msg == FIRED and isinstance(record.args, tuple):
                rule, file, line = record.args
                if spent[0].partition(" at ")[0] == rule:
                    applied(f"{spent[0]} ({file}:{line})")

    listener, level, passed_on = Listener(), logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = passed_on and level == logging.DEBUG
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = passed_on


def _cause(error: BaseException) -> BaseException:
    """What a backend raised, without what Dynamo puts around it."""
    return getattr(error, "inner_exception", None) or error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _timed(module: torch.nn.Module, function: Callable[..., Any], inputs: _Inputs, slower_than: float) -> Symptom:
    """`function` has been called before."""
    best = [float("inf"), float("inf")]
    begun = time.perf_counter()
    for run in range(1, MOST_RUNS + 1):
        for place, each in enumerate((module, function)):
            best[place] = min(best[place], _seconds(each, inputs))
        passed = time.perf_counter() - begun
        is_plain = run > 1 and best[1] > PLAIN * slower_than * best[0]
        if is_plain or passed > (ENOUGH if run > RUNS else LONG):
            break
    ratio, lost = best[1] / best[0], best[1] - best[0]
    told = f"{ratio:.2f} times eager's time ({best[1] * 1e3:.3f} ms and {best[0] * 1e3:.3f} ms)"
    if ratio > slower_than and lost > LEAST_LOSS:
        return Symptom("slow", "slow", told=told, seconds=lost, call=best[1])
    return Symptom("none", told=told, call=best[1])


def _seconds(function: Callable[..., Any], inputs: _Inputs) -> float:
    given = inputs()
    finish = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    finish()
    begun = time.perf_counter()
    function(*given)
    finish()
    return time.perf_counter() - begun


# -- the judge ---------------------------------------------------------------------------------------
def _compared(module: torch.nn.Module, inputs: _Inputs, found: _Run, eager: _Run) -> Symptom:
    for part in ("results", "gradients", "inputs"):
        got, want = getattr(found, part), getattr(eager, part)
        if len(got) != len(want):
            return Symptom("wrong", "number", part, f"{len(got)} instead of {len(want)}")
        for place, (g, w) in enumerate(zip(got, want, strict=True)):
            what = _form(g, w, part == "results")
            if what is not None:
                return Symptom("wrong", what[0], part, f"number {place}: {what[1]}")
            if not isinstance(w, torch.Tensor) or _equal(g, w):
                continue
            exact = inputs.in_double(eager)
            referee = None if exact is None else getattr(exact, part)[place]
            if exact is not None and part == "inputs" and referee is None:
                referee = _wide(w)  # which eager has left as it was
            what = _numbers(g, w, referee, lambda: _witness(module, inputs, part, place))  # noqa: B023
            if what is not None:
                return Symptom("wrong", what[0], part, f"number {place}: {what[1]}")
    return Symptom("none")


def _form(got: Any, want: Any, laid_out: bool) -> tuple[str, str] | None:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = got == want or (got != got and want != want) if type(got) is type(want) else False
        return None if same else ("value", f"{got!r} instead of {want!r}")
    if got.dtype != want.dtype:
        return "type", f"{got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return "shape", f"{tuple(got.shape)} instead of {tuple(want.shape)}"
    if laid_out and got.numel() > 1 and _strides(got) != _strides(want):
        return "strides", f"{got.stride()} instead of {want.stride()}"
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool(((got == want) | ((got != got) & (want != want))).all())


def _numbers(
    got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None, witness: Callable[[], torch.Tensor | None]
) -> tuple[str, str] | None:
    """What is wrong with numbers that are not eager's to the bit."""
    if not (want.is_floating_point() or want.is_complex()):
        wrong = got != want
        return "numbers", _first(wrong, got, want)
    eps = torch.finfo(want.dtype).eps
    known = exact is not None and exact.shape == want.shape and exact.dtype in (torch.float64, torch.complex128)
    g, w = _real(got), _real(want)
    e = _real(exact) if known and exact is not None else w
    usable = e.isfinite() & w.isfinite()
    lost = usable & ~g.isfinite()
    if bool(lost.any()):
        return "NaN", _first(lost, g, w)
    rounding = float(torch.where(usable, (w - e).abs(), 0.0).max()) if w.numel() else 0.0
    if not known:
        third = witness()
        far = 0.0 if third is None else float((_real(third) - w).abs().nan_to_num(0, 0, 0).max())
        rounding = max(far, 64 * eps * float(w.abs().nan_to_num(0, 0, 0).max()))
    allowed = 2 * rounding + FLOOR * eps * e.abs()
    wrong = usable & ((g - e).abs() > allowed)
    return ("numbers", _first(wrong, g, w)) if bool(wrong.any()) else None


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)


def _first(wrong: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str:
    at = tuple(int(i) for i in wrong.nonzero()[0]) if wrong.dim() else ()
    count = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    return f"{count}, first at {at}: {got[at].item()!r}, eager {want[at].item()!r}"


class _Widening(TorchFunctionMode):
    """Whatever asks for a narrow type gets float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("float", "half", "bfloat16") and len(args) == 1:
            return args[0].double()
        args, kwargs = pytree.tree_map(_widened, (args, kwargs or {}))
        return function(*args, **kwargs)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def _in_double(module: torch.nn.Module, inputs: Sequence[Any]) -> _Run | None:
    """The referee; None where the graph does not take float64."""

    wide, before = [_wide(x) for x in inputs], torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widening():
            return _Run.of(module, lambda: wide)
    except Exception:
        return None
    finally:
        torch.set_default_dtype(before)


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _NARROW:
        return value
    return value.detach().to(torch.float64).requires_grad_(value.requires_grad)


def _witness(module: torch.nn.Module, inputs: _Inputs, part: str, place: int) -> torch.Tensor | None:
    """TorchScript's result; None where it has none."""
    from litz.debug.graph_text import graph_module, read_graph
    from litz.debug.ts_compile import ts_compile

    if part != "results":
        return None
    try:
        text = textwrap.dedent(inspect.getsource(type(module).forward))
        torch.manual_seed(SEED)
        given = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs()]
        torch.manual_seed(SEED)
        return pytree.tree_leaves(ts_compile(graph_module(read_graph(text)), given)(*given))[place]
    except Exception:
        return None


__all__ = ["CALL", "EAGER", "FIRST", "LEAST_LOSS", "PLENTY", "Symptom", "main", "reproduce", "slow_for_certain"]
