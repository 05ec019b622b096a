"""What object code says, to be read: of the same run through LLVM that makes it, and the code is the same as ever."""

from __future__ import annotations

import torch
from llvmlite import binding

import litz
from litz.codegen.llvm.build import Building
from litz.codegen.llvm.render import Rendering
from litz.target import detect

_LOADED = (".text", ".rodata", ".data", ".eh_frame")


def test_code_that_is_listed_is_the_same_to_the_byte() -> None:
    rendered: list[Rendering] = []
    function = lambda x: torch.softmax(x.exp().sin() @ x.mT, -1).sum(0)  # noqa: E731
    litz.compile(function, after={"render": rendered.append}, matmul="generate")(torch.randn(16, 16))
    (modules,) = {rendering.modules for rendering in rendered}
    plain, listed = (Building(detect(), listed=listed).finish(modules) for listed in (False, True))
    assert len(listed.listings) == len(listed.objects) == len(modules) > 1 and plain.listings == ()
    for module, listing, code, again in zip(modules, listed.listings, plain.objects, listed.objects, strict=True):
        assert "ret" in listing and all(name in listing for name in _defined(module))
        assert _sections(again) == _sections(code)


def _defined(module: str) -> list[str]:
    lines = [line for line in module.splitlines() if line.startswith("define void @")]
    return [line.partition("@")[2].partition("(")[0] for line in lines]


def _sections(code: bytes) -> dict[str, bytes]:
    """Those that are loaded."""
    sections = {(s.name() or b"").decode(): s.data() for s in binding.ObjectFileRef.from_data(code).sections()}
    return {
        name: data for name, data in sections.items() if name.startswith((".text", ".rodata", ".data", ".eh_frame"))
    }
