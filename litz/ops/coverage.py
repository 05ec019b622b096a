"""How much of Core ATen is generated: `python -m litz.ops.coverage`.

In: the operators torch tags as core, and the table of lowerings. Out: each under how Litz treats it. A
lowering may still hand some forms back to eager (`NotImplemented`); those count as generated here.
"""

from __future__ import annotations

import torch

from litz.ops import lower
from litz.ops.registry import LOWERINGS

# Lowerings that always call the library, which does these as well.
_LIBRARY = {"aten::baddbmm"}


def core_operators() -> list[torch._ops.OpOverload]:
    """Every overload of ATen that torch tags as core, in the order of names."""
    found = []
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            if torch.Tag.core in operator.tags:
                found.append(operator)
    return found


def treatment(operator: torch._ops.OpOverload) -> str:
    """`view` (costs nothing), `generated`, or `called`."""
    if lower._is_view(operator):
        return "view"
    return "generated" if operator in LOWERINGS and operator.name() not in _LIBRARY else "called"


def main() -> None:
    groups: dict[str, list[str]] = {"generated": [], "view": [], "called": []}
    for operator in core_operators():
        groups[treatment(operator)].append(str(operator).removeprefix("aten."))
    for group, names in groups.items():
        print(f"{group} ({len(names)})")
        for name in names:
            print(f"  {name}")
    total = sum(len(names) for names in groups.values())
    print(f"{len(groups['called'])} of {total} core operators are called; {len(LOWERINGS)} lowerings in all")


if __name__ == "__main__":
    main()
