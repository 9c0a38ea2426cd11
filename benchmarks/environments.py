"""The machine that is measured on, and for each peer a virtual environment of its own, made on
demand.

python benchmarks/environments.py            # makes those of compare.py, about 4 GB
python benchmarks/environments.py dali       # this one

`conformance.py` makes those that it needs itself. Most of them need torch: about 1 GB each if pip finds
a torch without CUDA (PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu), else 5.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path
from typing import Any

from workloads import PEERS

__all__ = ["DEFAULT_FOLDER", "Environments", "describe_machine", "versions_in"]

DEFAULT_FOLDER = Path("~/.cache/torch_tfrecord_benchmarks/environments").expanduser()

REQUIREMENTS = {
    "tensorflow": ["tensorflow-cpu==2.21.*", "tensorflow-datasets==4.9.*"],
    "dali": ["nvidia-dali-cuda120==2.*", "numpy"],
    "tfrecord": ["tfrecord==1.14.6", "torch", "torchvision", "pillow"],
    "random": ["tfr-reader==1.1.0", "tfd-utils==1.3.0", "array-record==0.8.*"],
    # For conformance.py: each peer beside torch.
    "tensorflow_torch": ["tensorflow-cpu==2.21.*", "torch"],
    "dali_torch": ["nvidia-dali-cuda120==2.*", "torch", "numpy"],
    "mosaicml": ["mosaicml-streaming==0.13.*", "torch", "torchvision", "numpy"],
    "loaders": [
        "tfrecord==1.14.6",
        "torchdata==0.11.*",
        "datasets==5.*",
        "webdataset==1.0.*",
        "litdata==0.2.76",
        "torch",
        "numpy",
        "requests",  # torchdata imports it without asking for it
    ],
}
# tfr-reader is built where it is installed, and not by the newest Cython.
_CONSTRAINTS = {"random": "cython<3.1"}
# By side: the environment, if it is not of that name, and the packages without which the side does not run.
_SIDES = {
    "ours": ("", "torch-tfrecord"),
    "ours_stream": ("", "torchdata"),
    "tensorflow": ("", "tensorflow-cpu"),
    "tensorflow_torch": ("", "tensorflow-cpu"),
    "dali": ("", "nvidia-dali-cuda120"),
    "dali_torch": ("", "nvidia-dali-cuda120"),
    "tfrecord": ("", "tfrecord"),
    "tfrecord_loader": ("loaders", "tfrecord"),
    "tfr_reader": ("random", "tfr-reader"),
    "tfd_utils": ("random", "tfd-utils"),
    "array_record": ("random", "array-record"),
    "mosaicml": ("", "mosaicml-streaming"),
    **{name: ("loaders", name) for name in ("torchdata", "datasets", "webdataset", "litdata")},
}
# Their versions belong into the results, too.
_COMMON = ("torch-tfrecord", "tensorflow-datasets", "torch", "torchvision", "torchcodec")
_COMMON += ("numpy", "protobuf", "pillow", "pyarrow")
_ASK = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Environments:
    """Finds the interpreter of a side.

    Args:
        folder: It has an environment for each peer, by its name.
        given: Interpreters by side, which go first.
    """

    def __init__(self, folder: Path = DEFAULT_FOLDER, given: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._given = given or {}

    def python(self, side: str) -> str | None:
        """The interpreter, or None where the peer is not installed anywhere."""
        if side == "ours":
            return sys.executable
        home, package = _SIDES[side][0] or side, _SIDES[side][1]
        given = self._given.get(side, self._given.get(home, ""))
        for candidate in (given, str(self._folder / home / "bin" / "python"), sys.executable):
            if Path(candidate).is_file() and package in versions_in(candidate, side):
                return candidate
        return None

    def made(self, side: str) -> str:
        """The interpreter of a side, whose environment is made first if it is not there."""
        home = _SIDES[side][0] or side
        if home in REQUIREMENTS and not (self._folder / home).exists():
            make(home, self._folder)
        python = self.python(side)
        if python is None:
            raise SystemExit(f"{self._folder / home}: expected {_SIDES[side][1]}, got none")
        return python


@cache
def versions_in(python: str, side: str) -> dict[str, str]:
    """The versions of a side's packages in an environment."""
    command = [python, "-c", _ASK, _SIDES[side][1], *_COMMON]
    versions: dict[str, str] = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    return versions


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and how busy the machine was: JSON."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1
        ),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "date": now.isoformat(timespec="minutes"),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def make(peer: str, folder: Path) -> None:
    """Make a peer's environment, or complete it."""
    path = folder / peer
    print(f"{path}: {' '.join(REQUIREMENTS[peer])}", flush=True)
    venv.create(path, with_pip=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(_CONSTRAINTS.get(peer, ""))
        constraints.flush()
        python = str(path / "bin" / "python")
        command = [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]]
        # for the builds, too
        also = {"PIP_CONSTRAINT": constraints.name} if peer in _CONSTRAINTS else {}
        subprocess.run(command, check=True, env={**os.environ, **also})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "peers", nargs="*", choices=[*REQUIREMENTS, []], help="which (default those of compare.py)"
    )
    parser.add_argument(
        "--environments", type=Path, default=DEFAULT_FOLDER, help=f"default {DEFAULT_FOLDER}"
    )
    arguments = parser.parse_args()
    for peer in arguments.peers or PEERS:
        make(peer, arguments.environments)


if __name__ == "__main__":
    main()
