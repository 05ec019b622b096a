"""The process that trials are forked from: it has torch and Litz loaded, and has not run anything with them.

In: a line for each file to run, with where its results in eager are kept, if they are. Out: a line for what happens:
the child's number, the stages it enters, the optimisations it applies, the symptom it finds, and how it ended. A child
runs one file, and whatever becomes of it, the others do not notice.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any


def serve() -> None:
    channel = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)

    def say(**message: Any) -> None:
        line = (json.dumps(message) + "\n").encode()
        while line:
            line = line[os.write(channel, line) :]

    _load_all()
    say(ready=True)
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            os.setsid()
            file, known = json.loads(line)
            os._exit(_run(Path(file), None if known is None else Path(known), say))
        say(pid=child)
        say(ended=os.waitpid(child, 0)[1])


def _load_all() -> None:
    """What a compile imports, which takes longer than most of them."""
    import llvmlite.binding  # noqa: F401
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes

    import litz.capture.backend
    import litz.debug.reproduce
    import litz.debug.reproduction
    import litz.pipeline  # noqa: F401

    torch._dynamo.list_backends()  # all of which Dynamo imports when it looks for one


def _run(file: Path, known: Path | None, say: Callable[..., None]) -> int:
    from litz.debug.reproduce import reproduce
    from litz.debug.reproduction import load

    faulthandler.disable()
    try:
        space = load(file)
        entering = lambda stage: say(stage=stage)  # noqa: E731
        applied = lambda what: say(applied=what)  # noqa: E731
        symptom = reproduce(
            space["Graph"](), space["inputs"], entering=entering, applied=applied, known=known,
            **space["how"],
        )  # fmt: skip
        say(symptom=asdict(symptom))
    except BaseException as error:
        say(failed=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    serve()
