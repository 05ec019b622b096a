"""Options: one frozen value that says how to compile.

In: the keywords of `litz.compile` or the `options` of `torch.compile`. Out: a validated `Options`.

Each field states whether it changes the generated code. Those that do are the options' share of a cache
key, as named entries, so that a cache miss can say which option changed.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litz.errors import OptionError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # torch.compile's
MATMUL_CHOICES = ("auto", "generate", "library")
BACKWARD_CHOICES = ("lazy", "eager")
CPU_LEVELS = ("sse2", "avx2", "avx512", "neon")
BUDGET_SOLVERS = ("dp", "greedy", "ilp")
COSTS = ("ceilings", "profile")
RECOMPUTE_RULES = (
    "not_in_allow_list", "reductions", "used_far_apart", "long_fusible_chains", "materialised_backward",
)  # fmt: skip


def _option(default: Any, *, changes_code: bool, doc: str, hash: bool | None = None) -> Any:
    return dataclasses.field(default=default, hash=hash, metadata={"changes_code": changes_code, "doc": doc})


@dataclass(frozen=True, slots=True)
class Options:
    memory_budget: float | int | str | None = _option(
        None,
        changes_code=True,
        doc="training: a bound on what is kept for the backward, as a fraction of what would be kept without (0 to 1); "
        'or on the peak of a step, in bytes ("6GiB") or as a share of the machine\'s memory ("80%")',
    )
    recompute: Mapping[str, bool] | str | None = _option(
        None,
        changes_code=True,
        hash=False,
        doc="training: rules of what the backward does not compute again, by name, on or off; or 'aggressive': all off",
    )
    budget_solver: str = _option(
        "dp",
        changes_code=True,
        doc="how what a fraction as `memory_budget` keeps is chosen: " + ", ".join(BUDGET_SOLVERS),
    )
    budget_seconds: float | None = _option(
        120.0,
        changes_code=True,
        doc="seconds of search for what to keep within a `memory_budget` in bytes, before the best that was found is "
        "taken; None: until nothing better can be found",
    )
    offload: bool | str = _option(
        False,
        changes_code=True,
        doc="training on a CPU, with a memory_budget: what is kept may wait in files, where that costs less time than "
        "computing it again; True, or the path of a folder on a fast disk",
    )
    cost: str = _option(
        "ceilings",
        changes_code=True,
        doc="training: what computing something again is taken to cost: its bytes and operations at the machine's "
        "'ceilings', or as measured by running each operator ('profile')",
    )
    freeze: bool | str = _option(
        False,
        changes_code=True,
        doc="inference: parameters and buffers that are never written to become constants; 'discard' also releases the "
        "originals",
    )
    mode: str = _option(
        "default",
        changes_code=True,
        doc="what to favour: " + ", ".join(MODES) + "; on GPUs it says when calls are captured as CUDA graphs: where "
        "that pays ('default'), wherever it can be done ('reduce-overhead', 'max-autotune'), or never",
    )
    fuel: int | None = _option(
        None, changes_code=True, doc="how many optimisations may be applied before all others are skipped; None: all"
    )
    verify: bool = _option(False, changes_code=False, doc="check the IR after every stage")
    snapshots: bool = _option(False, changes_code=False, doc="keep the text of the program after every stage")
    progress: bool = _option(
        True, changes_code=False, doc="show a line on the terminal while a compile takes longer than two seconds"
    )
    dump: str | None = _option(
        None,
        changes_code=False,
        doc="a folder to which the text of the program after every stage is written, numbered; LITZ_DUMP names it too",
    )
    matmul: str = _option(
        "auto",
        changes_code=True,
        doc="matrix products: 'generate' a kernel, call the 'library', or 'auto' to choose by shape",
    )
    backward: str = _option(
        "lazy", changes_code=False, doc="compile the backward when it is first needed ('lazy') or with the forward"
    )
    never_slower: bool | None = _option(
        None,
        changes_code=False,
        doc="time each graph against eager on its first calls, and keep the faster; None: on a GPU, not on a CPU",
    )
    threads: int | None = _option(
        None, changes_code=True, doc="threads a kernel may use; None: what torch.get_num_threads() says at compile time"
    )
    cpu_levels: Sequence[str] = _option(
        (),
        changes_code=False,
        hash=False,
        doc="of `litz.aot_compile`: instruction sets to compile for, of which the best that a processor has is chosen "
        "when the file is loaded (such as 'sse2', 'avx2', 'avx512'); none: this processor alone",
    )
    inner_compile: Callable[..., Any] | None = _option(
        None,
        changes_code=True,
        doc="replaces the inner compiler: called with each split ATen graph, after the joint rewrites, forward and "
        "backward, and fakes of its inputs; returns a function from such inputs to a tuple or list of results",
    )
    decompositions: Mapping[Any, Callable[..., Any]] | None = _option(
        None, changes_code=True, hash=False, doc="replaces the decomposition table: operator overload to function"
    )
    rules: Sequence[Any] = _option(
        (),
        changes_code=True,
        hash=False,
        doc="rewrite rules of the caller's own (`litz.rule`, `litz.register_replacement`)",
    )
    before: Mapping[str, Callable[[Any], Any]] | None = _option(
        None,
        changes_code=True,
        hash=False,
        doc="hooks: stage name to function of what goes into the stage; a result other than None replaces it",
    )
    after: Mapping[str, Callable[[Any], Any]] | None = _option(
        None,
        changes_code=True,
        hash=False,
        doc="hooks: stage name to function of what comes out of the stage; a result other than None replaces it",
    )

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        if self.freeze and self.inner_compile is not None:
            raise OptionError("options 'freeze' and 'inner_compile' do not go together: Litz freezes code of its own")

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None) -> Options:
        """Options from a mapping of names to values; a mistake is an `OptionError` that says what is accepted."""
        values = {} if values is None else values
        if not isinstance(values, Mapping):
            raise OptionError(f"options must be a mapping of names to values, not {type(values).__name__}")
        for name in values:
            if name not in _CHECKS:
                raise _unknown(name)
        return cls(**values)

    @classmethod
    def from_environment(
        cls, values: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
    ) -> Options:
        """`parse`, with defaults taken from the environment: `LITZ_VERIFY=1` turns `verify` on, `LITZ_DUMP` names a
        folder for `dump`, `LITZ_PROGRESS=0` turns `progress` off.

        The only place where the environment is read for options; what the caller states wins.
        """
        environ = os.environ if environ is None else environ
        stated = cls.parse(values)
        values = values or {}
        if "verify" not in values:
            stated = dataclasses.replace(stated, verify=environ.get("LITZ_VERIFY", "0") not in ("", "0"))
        if "progress" not in values:
            stated = dataclasses.replace(stated, progress=environ.get("LITZ_PROGRESS", "1") != "0")
        if "dump" not in values:
            stated = dataclasses.replace(stated, dump=environ.get("LITZ_DUMP") or None)
        return stated

    def cache_key_entries(self) -> dict[str, str]:
        """The options' share of a cache key: one named entry for each field that changes the code."""
        return {
            f"option.{field.name}": _text(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.metadata["changes_code"]
        }

    def without_effect(self) -> list[str]:
        """What is asked for, and accepted, and not done."""
        found = []
        if self.mode.startswith("max-autotune"):
            found.append(f"the tuning of mode={self.mode!r} has no effect yet")
        if self.offload and self.memory_budget is None:
            found.append("offload has no effect without a memory_budget: all that is kept has room")
        return found

    @property
    def cacheable(self) -> bool:
        """Whether the key entries identify the code in another process: functions of the caller's have a name only."""
        functions = (self.inner_compile, self.decompositions, self.before, self.after)
        return not self.rules and all(function is None for function in functions)


_BYTES = re.compile(r"^\s*(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[kKMGT]?i?B)\s*$")
_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str) -> int:
    """`"6GiB"` → 6442450944. Units: B, kB, MB, GB, TB (powers of ten), KiB, MiB, GiB, TiB (powers of two)."""
    match = _BYTES.match(text)
    if match is None or match["unit"].lower() not in _UNITS:
        raise OptionError(f"{text!r} is not a number of bytes", hint='write a number and a unit, such as "6GiB"')
    return int(float(match["count"]) * _UNITS[match["unit"].lower()])


_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")


def bytes_of_budget(value: float | int | str | None, machine_bytes: int) -> int | None:
    """A budget that bounds the peak, in bytes; None if it is a fraction of what is kept."""
    if isinstance(value, str):
        share = _SHARE.match(value)
        if share is None:
            return parse_bytes(value)
        if float(share[1]) > 100:
            raise OptionError(f"{value!r} is more than there is", hint='write a share of memory, such as "80%"')
        return int(float(share[1]) / 100 * machine_bytes)
    return value if isinstance(value, int) and value > 1 else None


def _unknown(name: Any) -> OptionError:
    near = difflib.get_close_matches(str(name), _CHECKS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "the options are " + ", ".join(_CHECKS)
    return OptionError(f"there is no option {name!r}", hint=hint)


def _bad(name: str, value: Any, accepted: str, hint: str | None = None) -> OptionError:
    return OptionError(f"option {name!r} accepts {accepted}, not {value!r}", hint=hint)


def _check_budget(name: str, value: Any) -> None:
    accepted = 'None, a number from 0 to 1, a number of bytes such as "6GiB", or a share of memory such as "80%"'
    if value is None:
        return
    if isinstance(value, str):
        try:
            bytes_of_budget(value, 1)
        except OptionError as error:
            raise _bad(name, value, accepted) from error
        return
    if isinstance(value, int) and not isinstance(value, bool) and value > 1:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad(name, value, accepted)
    if math.isnan(value) or not 0 <= value <= 1:
        raise _bad(name, value, accepted)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _bad(name, value, "True or False")


def _check_freeze(name: str, value: Any) -> None:
    if not isinstance(value, bool) and value != "discard":
        raise _bad(name, value, "True, False or 'discard'")


def _check_choice_of_flag(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise _bad(name, value, "True, False or None")


def _check_count(minimum: int) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise _bad(name, value, f"None or an integer of at least {minimum}")

    return check


def _check_seconds(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise _bad(name, value, "None or a number of seconds that is not negative")


def _check_choice(choices: tuple[str, ...]) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value in choices:
            return
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        accepted = ", ".join(repr(choice) for choice in choices[:-1]) + f" or {choices[-1]!r}"
        raise _bad(name, value, accepted, hint=f"did you mean {near[0]!r}?" if near else None)

    return check


def _check_recompute(name: str, value: Any) -> None:
    accepted = f"None, 'aggressive', or a mapping of rules ({', '.join(RECOMPUTE_RULES)}) to True or False"
    if value is None or value == "aggressive":
        return
    if not isinstance(value, Mapping) or not all(isinstance(on, bool) for on in value.values()):
        raise _bad(name, value, accepted)
    for rule in value:
        if rule not in RECOMPUTE_RULES:
            near = difflib.get_close_matches(str(rule), RECOMPUTE_RULES, n=1, cutoff=0.5)
            raise _bad(name, value, accepted, hint=f"did you mean {near[0]!r}?" if near else None)


def _check_callable(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise _bad(name, value, "None or a function of (graph_module, example_inputs)")


def _check_decompositions(name: str, value: Any) -> None:
    accepted = "None or a mapping of operator overloads to functions"
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(callable(function) for function in value.values()):
        raise _bad(name, value, accepted)
    for operator in value:
        if type(operator).__name__ != "OpOverload":  # to be told without torch
            raise _bad(name, operator, "keys such as torch.ops.aten.gelu.default")


def _check_rules(name: str, value: Any) -> None:
    accepted = "a sequence of rules made by litz.rule or litz.register_replacement"
    if not isinstance(value, (tuple, list)):
        raise _bad(name, value, accepted)
    for rule in value:
        if not hasattr(rule, "pattern") or not callable(getattr(rule, "function", None)):
            raise _bad(name, rule, accepted)


def _check_hooks(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and callable(f) for k, f in value.items()):
        raise _bad(name, value, "None or a mapping of stage names to functions of one argument")


def _check_levels(name: str, value: Any) -> None:
    accepted = f"a sequence of {', '.join(map(repr, CPU_LEVELS))}"
    if not isinstance(value, (tuple, list)):
        raise _bad(name, value, accepted)
    for level in value:
        if level not in CPU_LEVELS:
            near = difflib.get_close_matches(str(level), CPU_LEVELS, n=1, cutoff=0.5)
            raise _bad(name, level, accepted, hint=f"did you mean {near[0]!r}?" if near else None)


def _check_offload(name: str, value: Any) -> None:
    if not isinstance(value, bool) and not (isinstance(value, str) and os.path.isdir(value)):
        raise _bad(name, value, "True, False or the path of a folder that exists")


def _check_path(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise _bad(name, value, "None or the path of a folder")


# One row a field; a test checks that none is missing.
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "memory_budget": _check_budget,
    "recompute": _check_recompute,
    "budget_solver": _check_choice(BUDGET_SOLVERS),
    "budget_seconds": _check_seconds,
    "offload": _check_offload,
    "cost": _check_choice(COSTS),
    "freeze": _check_freeze,
    "mode": _check_choice(MODES),
    "fuel": _check_count(0),
    "verify": _check_flag,
    "snapshots": _check_flag,
    "progress": _check_flag,
    "dump": _check_path,
    "matmul": _check_choice(MATMUL_CHOICES),
    "backward": _check_choice(BACKWARD_CHOICES),
    "never_slower": _check_choice_of_flag,
    "threads": _check_count(1),
    "cpu_levels": _check_levels,
    "inner_compile": _check_callable,
    "decompositions": _check_decompositions,
    "rules": _check_rules,
    "before": _check_hooks,
    "after": _check_hooks,
}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(sorted(f"{key}: {_text(function)}" for key, function in value.items()))
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
