"""Feeds a target random inputs made from its seeds and checks each: what fails is made small, kept,
and told.

    python fuzz/engine.py TARGET [TARGET ...] [--count N | --seconds S] [--seed N]
    python fuzz/engine.py TARGET --replay FILE [FILE ...]

A target is a module of fuzz/targets: ``seeds()``, ``mutate(rng, data)`` and ``check(data)`` on
bytes. A check fails by an AssertionError, or by any exception that the library does not promise.
`all` is every target.
"""

import argparse
import importlib
import os
import random
import signal
import sys
import time
import traceback
import warnings
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
TARGETS = sorted(path.stem for path in (HERE / "targets").glob("*.py") if path.stem[0] != "_")
HANG_SECONDS = 10  # of processor time, for one input
# The input under way: it stays where a sanitizer or a signal ends the process, and run.sh keeps it.
CURRENT = Path(os.environ.get("FUZZ_CURRENT", "/dev/null"))
_MOST_SHRINKS = 400


class HangError(BaseException):
    """Not an Exception: the library must not catch it."""


def _hang(*_):
    raise HangError(f"an input took more than {HANG_SECONDS} s of processor time")


def failure(check, data):
    """What tells the failure of an input from others: its class and the line that raised it; None
    where all is well.
    """
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        check(data)
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if str(HERE.parent) in frame.filename
        ]
        place = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        return type(error).__name__, Path(place.filename).name, place.lineno
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def shrink(check, data, found):
    """Remove halves, quarters, ... as long as the failure stays the same."""
    tries, step = 0, len(data) // 2
    while step and tries < _MOST_SHRINKS:
        at = 0
        while at < len(data) and tries < _MOST_SHRINKS:
            shorter, tries = data[:at] + data[at + step :], tries + 1
            if failure(check, shorter) == found:
                data = shorter
            else:
                at += step
        step //= 2
    return data


def keep(name, check, data, found):
    """Save a find as small as it gets, and say how to see it again."""
    data = data if found[0] == "HangError" else shrink(check, data, found)
    path = CORPUS / name / f"{found[0]}-{zlib.crc32(data):08x}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    print(
        f"{name}: {found} ({len(data)} bytes)\n  python fuzz/engine.py {name} --replay {path}",
        flush=True,
    )


def run(name, *, count=None, seconds=None, seed=0):
    """Fuzz one target; returns how many inputs were checked, and the failures by what tells them
    apart.
    """
    target = importlib.import_module(f"targets.{name}")
    rng = random.Random(f"{name} {seed}")
    old = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    seeds, finds, done = [*target.seeds(), *old], {}, 0
    current = os.open(CURRENT, os.O_WRONLY | os.O_CREAT)
    begin = time.monotonic()
    while (done < count if count is not None else time.monotonic() - begin < seconds) or done < len(
        old
    ):
        data = old[done] if done < len(old) else target.mutate(rng, rng.choice(seeds))
        os.pwrite(current, len(data).to_bytes(8, "little") + data, 0)
        found = failure(target.check, data)
        if found is not None and found not in finds:
            finds[found] = data
            keep(name, target.check, data, found)
        done += 1
    os.close(current)
    took = time.monotonic() - begin
    print(
        f"{name}: {done} executions, {done / max(took, 1e-9):.0f} a second, {len(finds)} finds",
        flush=True,
    )
    return done, finds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="+", choices=["all", *TARGETS])
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", nargs="+", type=Path, default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, _hang)
    warnings.simplefilter("ignore")
    if options.replay:
        for path in options.replay:
            importlib.import_module(f"targets.{options.targets[0]}").check(path.read_bytes())
        return 0
    names = TARGETS if "all" in options.targets else options.targets
    finds = [
        run(name, count=options.count, seconds=options.seconds, seed=options.seed)[1]
        for name in names
    ]
    if str(CURRENT) != os.devnull:
        CURRENT.unlink()
    return int(any(finds))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    sys.exit(main())
