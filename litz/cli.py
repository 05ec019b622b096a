"""`litz` on the command line: what lasts, looked at and looked after; this machine; and what went wrong, made small.

    litz doctor                     what this machine has, and whether Litz works here
    litz bisect GRAPH               which optimisation a failure comes with
    litz minify GRAPH               the smallest program that fails alike, as one file
    litz cache list                 the values of the cache, latest use first
    litz cache size
    litz cache explain [KEY]        why a function was compiled: how it differs from the nearest that was there before
    litz cache clear
    litz cache export FILE          the whole cache as one file, for other machines of the same kind
    litz cache import FILE

A GRAPH is a folder that `litz.debug_compile` has made: torch.compile(model, backend=litz.debug_compile).
The cache is the one that `LITZ_CACHE_DIR` names, or the user's own.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from litz.errors import CacheError, LitzError

if TYPE_CHECKING:
    from litz.runtime.cache import Cache


Run = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        return 1
    except (LitzError, OSError) as error:  # a path that is not there, a full disk
        print(f"litz: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("litz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help: str, run: Run, example: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, description=f"{help[0].upper()}{help[1:]}.", epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        made.set_defaults(run=run)
        return made

    command("doctor", "what this machine has, and whether Litz works here", _doctor, "litz doctor")
    for name, help, run in (
        ("bisect", "which optimisation a failure comes with", _bisect),
        ("minify", "the smallest program that fails alike, as one file", _minify),
    ):
        made = command(name, help, run, f"litz {name} litz_debug/graph_0 --limit 30")
        made.add_argument("graph", type=Path, help="what litz.debug_compile has saved, or a file of `litz minify`")
        made.add_argument("--folder", type=Path, help="keeps all that is tried, to go on from (default: beside)")
        made.add_argument("--limit", type=float, default=60.0, help="seconds of work after which a run has no end")
        made.add_argument("--slower-than", type=float, help="how many times eager's time is a failure")
    cache = command("cache", "the persistent cache", _cache, "litz cache explain")
    actions = cache.add_subparsers(dest="action", required=True)
    for name in ("list", "size", "clear"):
        actions.add_parser(name)
    actions.add_parser("explain").add_argument("key", nargs="?", help="the beginning of one; the latest if left out")
    for name in ("export", "import"):
        actions.add_parser(name).add_argument("file", type=Path)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from litz.debug.doctor import examine

    findings = examine()
    for finding in findings:
        print(finding)
    return int(any(not finding.well for finding in findings))


def _bisect(options: argparse.Namespace) -> int:
    from litz.debug.minify import bisect

    how = {"folder": options.folder, "limit": options.limit, "slower_than": options.slower_than}
    symptom, culprit = bisect(options.graph, **how)
    print(symptom)
    print(f"it comes with {culprit}" if culprit else "it is there without any optimisation")
    return 0


def _minify(options: argparse.Namespace) -> int:
    from litz.debug.minify import minify

    print(minify(options.graph, folder=options.folder, limit=options.limit, slower_than=options.slower_than))
    return 0


def _cache(options: argparse.Namespace) -> int:
    from litz.runtime.cache import cache_of

    cache = cache_of({**os.environ, "LITZ_CACHE": "1"})
    if cache is None:
        return 1  # why was said by a warning
    files = sorted(cache.files(), key=lambda found: -found.used)
    if options.action == "list":
        for found in files:
            used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.used))
            print(f"{found.kind:9} {found.key}  {found.bytes:>12,} bytes  last used {used}")
    elif options.action == "size":
        counts = Counter(found.kind for found in files)
        kinds = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(counts.items()))
        total = sum(found.bytes for found in files)
        print(f"{cache.folder}: {total:,} of {cache.most_bytes:,} bytes in {len(files)} files ({kinds or 'none'})")
    elif options.action == "clear":
        print(f"deleted {cache.clear()} files")
    elif options.action == "explain":
        return _explain(cache, options.key)
    elif options.action == "export":
        if not options.file.absolute().parent.is_dir():
            raise CacheError(f"there is no folder {options.file.parent} for the file")
        print(f"wrote {cache.export(options.file)} values to {options.file}")
    else:
        print(f"took over {cache.take_over(options.file)} values from {options.file}")
    return 0


def _explain(cache: Cache, key: str | None) -> int:
    functions = [found for found in sorted(cache.files(), key=lambda found: -found.made) if found.kind == "function"]
    asked = next((found for found in functions if key is None or found.key.startswith(key)), None)
    if asked is None:
        print("there is no such function in the cache" if key else "there is no function in the cache")
        return 1
    earlier = [found for found in functions if found.made <= asked.made and found.key != asked.key]
    print(f"{asked.key}")
    differences = cache.differences_among(asked, earlier)
    if not differences:
        print("  the first of its kind: nothing that was there before is like it")
    for difference in differences:
        print(f"  {difference}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
