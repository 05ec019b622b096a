"""Random programs, compiled by Litz against eager.

    python -m tests.fuzz.run [--programs 5000] [--seed 0] [--symbolic | --transforms]

With `--symbolic` each program takes several sizes and Python numbers, with `--transforms` it is one under `torch.func`.
The same seed gives the same programs. A worker runs them and prints a line for each; one that dies or hangs costs
one program, which counts as a difference, and a new worker goes on behind it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.messages import messages

TIMEOUT = 90  # seconds of work without a word from the worker
ANEW = 75  # what a worker exits with that wants to be followed by a fresh one


# -- the worker -------------------------------------------------------------------------------
def work(seed: int, first: int, last: int, kind: str) -> None:
    """Checks the programs from `first` up to `last`."""
    import torch

    from tests.fuzz.check import check
    from tests.fuzz.generate import numbered

    torch.set_num_threads(2)
    for place in range(first, last):
        _say({"begin": place})
        verdict = check(str(numbered(seed, place, kind)))
        _say(asdict(verdict))
        if verdict.status == "dynamo" and place + 1 < last:
            sys.exit(ANEW)  # where Dynamo fails it leaves fake modes and levels of transforms behind


def show(seed: int, place: int, kind: str, smaller: bool) -> None:
    """Prints the program, or the smallest one like it that fails."""
    import torch

    from tests.fuzz.generate import numbered
    from tests.fuzz.shrink import crashes, is_wrong, shrink

    torch.set_num_threads(1)  # a fork takes no threads along
    program = numbered(seed, place, kind)
    if smaller:
        program = shrink(program, crashes if crashes(program) else is_wrong)
    print(program)


def _say(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


# -- the parent -------------------------------------------------------------------------------
def results(seed: int, first: int, count: int, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    place = first
    while place < count:
        begun: int | None = None
        worker = _start(kind, "--worker", "--seed", str(seed), "--from", str(place), "--programs", str(count))
        for message in messages(worker, TIMEOUT):
            if "begin" in message:
                begun = message["begin"]
                continue
            assert begun is not None
            yield begun, message
            place, begun = begun + 1, None
        if begun is None and worker.poll() == 0:
            return
        if begun is None and worker.poll() == ANEW:
            continue
        worker.kill()
        code = worker.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        place = place if begun is None else begun
        yield place, {"status": "wrong", "message": f"the process ended: {how}"}
        place += 1


def _start(kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    kinds = [] if kind == "plain" else [f"--{kind}"]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.run", *kinds, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first", help="begin with this program")
    parser.add_argument("--show", type=int, help="print this program and do nothing else")
    parser.add_argument("--shrink", type=int, help="print the smallest program like this one that fails")
    for kind in ("symbolic", "transforms"):
        parser.add_argument(f"--{kind}", action="store_const", const=kind, default="plain", dest="kind")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.seed, options.first, options.programs, options.kind)
        return 0
    wanted = options.show if options.show is not None else options.shrink
    if wanted is not None:
        show(options.seed, wanted, options.kind, options.shrink is not None)
        return 0
    return report(options.seed, options.first, options.programs, options.kind)


def report(seed: int, first: int, count: int, kind: str) -> int:
    tally: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for place, result in results(seed, first, count, kind):
        tally[result["status"]] += 1
        tally["conditioned"] += bool(result.get("conditioned"))
        tally["anew"] += result.get("compiles", 1) > 3
        if result["status"] == "wrong":
            print(f"program {place} of seed {seed}: {result['message']}\n", flush=True)
            print(_shrunk(seed, place, kind), flush=True)
        if (place + 1) % 250 == 0 or place + 1 == count:
            print(f"[{place + 1}/{count}] {time.perf_counter() - start:.0f} s: {_counts(tally)}", flush=True)
    return 1 if tally["wrong"] else 0


def _shrunk(seed: int, place: int, kind: str) -> str:
    worker = _start(kind, "--shrink", str(place), "--seed", str(seed))
    return worker.communicate()[0].decode()


def _counts(tally: collections.Counter[str]) -> str:
    return (
        f"{tally['right']} right, {tally['wrong']} different, {tally['eager']} left to eager"
        f" ({tally['conditioned']} right within their own rounding, {tally['anew']} compiled more than three times,"
        f" {tally['dynamo']} that Dynamo gets wrong)"
    )


if __name__ == "__main__":
    sys.exit(main())
