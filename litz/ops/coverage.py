"""How Litz runs each ATen operator: `python -m litz.ops.coverage`, with `--markdown` for `docs/OPERATORS.md`.

In: torch's operators, the table of lowerings and that of decompositions. Out: each operator under how Litz treats it.
A lowering may hand some forms back to eager (`NotImplemented`); those count as generated here, the report of a compile
names them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from litz.loop.operator import returns_view
from litz.ops import library, lower  # noqa: F401  (`lower` has every family register its rows)
from litz.ops.decompose import decompositions
from litz.ops.registry import IN_ORDER, LOWERINGS

TREATMENTS = {
    "generated": "a kernel of Litz's own, fused with its neighbours",
    "view": "index arithmetic in the kernels that read it; costs nothing",
    "decomposed": "taken apart by tracing into operators of this list",
    "library": "called on purpose: PyTorch's libraries do it as well as it can be done",
    "called": "called as it is, a fallback that the report names",
}
# Lowerings that call the library always, or nearly so.
_LIBRARY = {"aten::baddbmm", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"}
_KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def operators() -> list[torch._ops.OpOverload]:
    """Every functional overload of ATen that runs on the CPU, in the order of names."""
    return [o for o in _aten() if not o._schema.is_mutable and _is_for_tensors(o) and _runs_on_cpu(o)]


def core_operators() -> list[torch._ops.OpOverload]:
    """Those that torch tags as core."""
    return [o for o in _aten() if torch.Tag.core in o.tags]


def _aten() -> Iterator[torch._ops.OpOverload]:
    # The dispatcher's own list: `dir(torch.ops.aten)` has only what someone has used.
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if found is not None:
                yield found


def _is_for_tensors(operator: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(part.type) for part in (*operator._schema.arguments, *operator._schema.returns))


def _runs_on_cpu(operator: torch._ops.OpOverload) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key) for key in _KERNELS)


def treatment(operator: torch._ops.OpOverload) -> str:
    """One of `TREATMENTS`."""
    if returns_view(operator):
        return "view"
    if operator in LOWERINGS:
        return "library" if LOWERINGS[operator] is library.call or operator.name() in _LIBRARY else "generated"
    return "decomposed" if operator in decompositions() or operator._can_decompose() else "called"


def grouped(every: Sequence[torch._ops.OpOverload]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {name: [] for name in TREATMENTS}
    for operator in every:
        groups[treatment(operator)].append(name_of(operator))
    return groups


def name_of(operator: torch._ops.OpOverload) -> str:
    return str(operator).removeprefix("aten.").removesuffix(".default")


# -- the bar: how much of Core ATen is generated ----------------------------------------------
LEFT_OUT = {
    "heavy: the library's kernels are the measure, and are called where they win": {
        "mm", "bmm", "addmm", "convolution", "convolution_backward", "_fft_c2c", "_fft_c2r", "_fft_r2c", "sort", "topk",
        "_cdist_forward", "_pdist_forward",
    },
    "data-dependent: the values decide how much there is": {"nonzero", "masked_scatter", "_local_scalar_dense"},
    "sizes: answered when tracing": {
        "sym_is_contiguous", "sym_numel", "sym_size.int", "sym_storage_offset", "sym_stride.int",
    },
    "no functional form: tracing removes them": {"resize_", "atan2.out"},
    "random: must draw eager's own numbers": {"rand", "randn", "randperm"},
}  # fmt: skip
# Arguments to trace the operators with that tracing takes apart.
_EXAMPLES = {
    "adaptive_avg_pool1d": ((2, 6), [3]),
    "col2im": ((4, 4), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
}


def shortfall() -> tuple[list[str], list[str]]:
    """Core operators outside the groups left out: those generated, and those that are not."""
    left_out = set().union(*LEFT_OUT.values())
    counted = {name_of(o): o for o in core_operators() if name_of(o) not in left_out}
    made = [name for name, operator in counted.items() if _is_generated(operator)]
    return made, [name for name in counted if name not in made]


def _is_generated(operator: torch._ops.OpOverload) -> bool:
    how = treatment(operator)
    if how != "decomposed":
        return how in ("generated", "view")
    return name_of(operator) in _EXAMPLES and all(treatment(o) in ("generated", "view") for o in parts_of(operator))


def parts_of(operator: torch._ops.OpOverload) -> list[torch._ops.OpOverload]:
    """What tracing makes of it."""
    shape, *rest = _EXAMPLES[name_of(operator)]
    graph = make_fx(lambda x: operator(x, *rest), decomposition_table=decompositions())(torch.zeros(shape))
    return [n.target for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def bar() -> list[str]:
    made, left = shortfall()
    total = len(made) + len(left)
    core = {name_of(o) for o in core_operators()}
    groups = [f"{why}: {', '.join(sorted(names & core))}" for why, names in LEFT_OUT.items()]
    missing = f"; not: {', '.join(left)}" if left else ""
    return [*groups, f"generated {len(made)} of {total} = {100 * len(made) / total:.1f}%{missing}"]


def markdown() -> str:
    core, every = grouped(core_operators()), grouped(operators())
    *groups, result = bar()
    lines = [
        "# How Litz runs each operator",
        "",
        "Generated by `python -m litz.ops.coverage --markdown`; a test fails when it is stale. The operators are those",
        f"of ATen in torch {torch.__version__.split('+')[0]} that return new tensors on the CPU; an in-place form runs",
        "as its functional one does.",
        "Complex, quantised and float8 tensors are left to the operators themselves.",
        "",
        "| | means | of Core ATen | of all |",
        "|---|---|---|---|",
        *(f"| {name} | {meaning} | {len(core[name])} | {len(every[name])} |" for name, meaning in TREATMENTS.items()),
        "",
        f"Of Core ATen, {result}. What tracing takes apart counts when all its parts do. Left out are:",
        "",
        *(f"- {group}" for group in groups),
        "",
    ]
    for name in TREATMENTS:
        lines += [f"## {name}", "", ", ".join(f"`{o}`" for o in every[name]), ""]
    lines += [
        "## On GPUs",
        "",
        "The same, but that products and convolutions are always the library's, that it scans what is one long row,",
        "and that what adds up in an order of chance is called when torch is to be deterministic. Called are also,",
        "since the library's kernels gather where Litz's would have threads meet:",
        "",
        ", ".join(f"`{name_of(o)}`" for o in sorted(IN_ORDER, key=name_of)),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="the whole document")
    if parser.parse_args(arguments).markdown:
        print(markdown(), end="")
        return
    groups = grouped(core_operators())
    for group, names in groups.items():
        print(f"{group} ({len(names)})")
        for name in names:
            print(f"  {name}")
    total = sum(len(names) for names in groups.values())
    print(f"{len(groups['called'])} of {total} core operators are called; {len(LOWERINGS)} lowerings in all")
    print("\nLeft out of the bar:", *(f"  {line}" for line in bar()[:-1]), bar()[-1], sep="\n")


if __name__ == "__main__":
    main()
