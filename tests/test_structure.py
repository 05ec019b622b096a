"""The shape of the package: import direction, forbidden imports, names, docstrings, a cheap `import litz`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "litz"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module imports from its own layer and from those above it.
LAYERS = (
    ("options", "errors", "report", "context", "target", "compat", "source", "watch", "progress", "structured"),
    ("loop",),
    ("ops",),
    ("graph",),
    ("capture",),
    ("schedule",),
    ("codegen",),
    ("runtime",),
    ("distribute",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# What ties the layers together, and what looks at all of them.
FREE = {
    "pipeline", "peak_budget", "stages", "recall", "aot", "eager", "debug", "explanation", "cli", "frontdoor",
    "__init__", "__main__",
}  # fmt: skip
FREE_FILES = {"capture/backend.py", "capture/direct.py"}
# Litz implements these anew.
FORBIDDEN = (
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd",
    "torch._functorch.partitioners",
    "torch.distributed.tensor",
)
VAGUE = {"utils", "util", "common", "misc", "helpers"}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def imports(file: Path) -> Iterator[str]:
    """Every imported module, with imported names appended, since a name may be a module."""
    package = ("litz", *file.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_go_up_only(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in FREE or name_of(file) in FREE_FILES:
        return
    assert own in RANK, f"{name_of(file)} belongs to no layer: add it to LAYERS, and to docs/ARCHITECTURE.md"
    for module in imports(file):
        parts = module.split(".")
        if parts[0] != "litz" or len(parts) < 2 or parts[1] == "__version__":
            continue
        assert parts[1] in RANK, f"{name_of(file)} imports {module}, which ties layers together"
        assert RANK[parts[1]] <= RANK[own], f"{name_of(file)} imports {module} from a layer below it"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_nothing_is_imported_that_litz_implements(file: Path) -> None:
    for module in imports(file):
        for forbidden in FORBIDDEN:
            assert module != forbidden and not module.startswith(forbidden + "."), f"{name_of(file)} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_file_says_what_it_is(file: Path) -> None:
    text = file.read_text()
    if file.name == "__init__.py" and not text.strip():
        return
    assert ast.get_docstring(ast.parse(text)), f"{name_of(file)} has no docstring"


def test_names_say_what_is_inside() -> None:
    vague = [name_of(path) for path in PACKAGE.rglob("*") if path.stem in VAGUE]
    assert vague == []


def test_import_is_cheap() -> None:
    heavy = ("llvmlite", "triton", "transformers", "torch._dynamo", "torch._inductor")
    code = (
        "import sys, litz\n"
        "litz.Options.parse({}); litz.last_report(); litz.LitzError('x')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_exports_exist() -> None:
    import litz

    for name in litz.__all__:
        assert getattr(litz, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'compyle'"):
        litz.compyle  # type: ignore[attr-defined]


def test_the_backend_is_found_without_an_import() -> None:
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="torch_dynamo_backends", name="litz")
    assert entry.value == "litz.capture.backend:litz"
