"""The process that trials are forked from: it has torch and Litz loaded, and has not run anything with them.

In: a line for each file to run, with where its results in eager are kept, if they are. Out: a line for what happens:
the child's number, the stages it enters, the optimisations it applies, the symptom it finds, and how it ended. A child
runs one file, and whatever becomes of it, the others do not notice.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

_PAUSE = 0.01  # seconds, before a child is asked again whether it has ended
_DEATH_SIGNAL = 1  # of `prctl`


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
    me = os.getpid()
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            os.setsid()
            _end_with(me)
            file, known = json.loads(line)
            os._exit(_run(Path(file), None if known is None else Path(known), say))
        say(pid=child)
        say(ended=_end_of(child))


def _end_of(child: int) -> int:
    """Its status. Who asks for trials says nothing until it is told; what comes is the end of it."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if select.select([sys.stdin], [], [], _PAUSE)[0]:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os._exit(0)


def _end_with(parent: int) -> None:
    """Where the system can, this process is ended with the other one, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


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
        allowing = lambda seconds: say(allowed=seconds)  # noqa: E731
        symptom = reproduce(
            space["Graph"](), space["inputs"], entering=entering, applied=applied, allowing=allowing,
            known=known, **space["how"],
        )  # fmt: skip
        say(symptom=asdict(symptom))
    except BaseException as error:
        say(failed=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    serve()
