"""Runs the same properties on this library and on others: every record once, equal ranks, exact
resuming, orders, damage, random crops, a killed worker.

    python benchmarks/conformance.py ours            # or tf_data, dali, tfrecord, torchdata, datasets, mosaicml, ...
    python benchmarks/conformance.py all
    python benchmarks/conformance.py --table         # rewrites the tables of docs/conformance.md

Each peer runs in an environment of its own, which is made if it is not there. Results go to
benchmarks/conformance.json, where a run replaces those of its peers. How to add a peer:
docs/conformance.md.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environments import DEFAULT_FOLDER, Environments, describe_machine, versions_in
from loaders import Setting, picture, value_of
from properties import PROPERTIES, Outcome, Result, Trial, judge
from report import replace_block

__all__ = ["PEERS", "ProcessPeer", "examine", "tables", "write_records"]

_ROOT = Path(__file__).parent.parent
# The modules of loaders/: what the table calls them, and which environment they need (environments.py).
PEERS = {
    "ours": ("torch_tfrecord", "ours"),
    "ours_stream": ("torch_tfrecord, a stream", "ours_stream"),
    "tf_data": ("tf.data in a DataLoader", "tensorflow_torch"),
    "dali": ("DALI", "dali_torch"),
    "tfrecord": ("tfrecord", "tfrecord_loader"),
    "torchdata": ("torchdata", "torchdata"),
    "datasets": ("datasets", "datasets"),
    "mosaicml": ("MosaicML streaming", "mosaicml"),
    "webdataset": ("WebDataset", "webdataset"),
    "litdata": ("LitData", "litdata"),
}
# The tables, each with some of the properties.
_GROUPS = {
    "an epoch": ("once_0", "once_2", "once_ranks", "equal_ranks"),
    "resuming": ("resume", "resume_twice", "resume_workers", "resume_ranks"),
    "order and crops": ("epochs_differ", "seed", "draws_epochs", "draws_workers"),
    "failures": ("damaged", "damaged_checked", "truncated", "killed"),
}
_SECONDS = 60.0
_MARKS = {"yes": "yes", "no": "**no**", "not offered": "–"}


class ProcessPeer:
    """A module of loaders/, each run in a new process of its environment.

    Args:
        python: The interpreter.
        seconds: After which a run is given up.
    """

    def __init__(self, name: str, python: str, seconds: float = _SECONDS) -> None:
        self._command = [python, "-W", "ignore", str(_ROOT / "benchmarks" / "play.py"), name]
        self._seconds = seconds
        self.reads_tfrecord = "READS_TFRECORD = True" in _source(name)

    def write(self, folder: Path, shards: list[list[int]]) -> None:
        if self.reads_tfrecord:
            write_records(folder, shards)
        done = subprocess.run(
            [*self._command, "write", str(folder), json.dumps(shards)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(self._command)} write:\n{done.stderr[-3000:]}")

    def play(self, settings: list[Setting]) -> list[Outcome]:
        with tempfile.TemporaryDirectory() as folder:
            port = _free_port()
            runs = [
                _Run(self._command, setting, Path(folder, f"{setting.rank}.json"), port)
                for setting in settings
            ]
            return [run.outcome(self._seconds) for run in runs]


class _Run:
    """A process that plays one setting."""

    def __init__(self, command: list[str], setting: Setting, path: Path, port: int) -> None:
        self._path = path
        self._around = Path(setting.folder).parent
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by outcome()
        ranks = {"RANK": setting.rank, "LOCAL_RANK": setting.rank}
        sizes = {"WORLD_SIZE": setting.world_size, "LOCAL_WORLD_SIZE": setting.world_size}
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables = {**ranks, **sizes, **group, "TMPDIR": path.parent}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        self._process = subprocess.Popen(
            [*command, "run", json.dumps(asdict(setting)), str(path)],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **quiet, **{name: str(value) for name, value in variables.items()}},
        )

    def outcome(self, seconds: float) -> Outcome:
        silent = 0.0
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            silent = 0.0 if self._path.exists() else seconds  # else only its end hangs
        _end_group(self._process.pid)  # workers that were left, too
        self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        self._log.close()
        if self._path.exists() and not silent:
            outcome: Outcome = json.loads(self._path.read_text())
            return outcome
        said = next((line for line in reversed(lines) if "Error" in line), "")[:160]
        said = said.replace(f"{self._around}/", "")
        said = f"; the last error printed: {said}" if said else ""
        error = None if silent else f"the process ended with {self._process.returncode}{said}"
        return {"epochs": [], "error": error, "lacks": None, "silent": silent, "said": said}


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _source(name: str) -> str:
    return (_ROOT / "benchmarks" / "loaders" / f"{name}.py").read_text()


def reasons_of(name: str) -> dict[str, str]:
    """The properties that a peer does not claim, read without importing what it needs."""
    for node in ast.parse(_source(name)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NOT_OFFERED":
            reasons: dict[str, str] = ast.literal_eval(node.value)
            return reasons
    return {}


def write_records(folder: Path, shards: list[list[int]]) -> None:
    """TFRecord files, for those who read them."""
    from torch_tfrecord import TFRecordWriter

    for number, shard in enumerate(shards):
        with TFRecordWriter(folder / f"{number:03}.tfrecord") as writer:
            for one in shard:
                writer.write({"id": one, "value": value_of(one), "image": picture()})


def examine(trial: Trial, reasons: Mapping[str, str]) -> dict[str, Result]:
    """All properties of one peer, printed as they are found."""
    results = {}
    for name, (title, _) in PROPERTIES.items():
        results[name] = judge(trial, name, reasons)
        print(f"  {results[name].verdict:12}{title}: {results[name].seen}", flush=True)
    return results


def tables(kept: Mapping[str, Any]) -> tuple[str, str]:
    """The tables of all peers, and what was seen of each."""
    peers = [name for name in PEERS if name in kept]
    lines = []
    for group, rows in _GROUPS.items():
        titles = " | ".join(PROPERTIES[row][0] for row in rows)
        lines += [f"| {group} | {titles} |", "|---|" + "---|" * len(rows)]
        for name in peers:
            found = [kept[name]["results"].get(row, {"verdict": None}) for row in rows]
            marks = " | ".join(_MARKS.get(one["verdict"], "") for one in found)
            lines.append(f"| {PEERS[name][0]} | {marks} |")
        lines.append("")
    versions = "; ".join(f"{PEERS[name][0]}: {_versions(kept[name])}" for name in peers)
    machine = max((kept[name]["machine"] for name in peers), key=lambda one: str(one["date"]))
    place = f"{machine['processor']}, {machine['cores']} cores, {machine['system']}"
    lines += [f"{machine['date'][:10]}, {place}, Python {machine['python']}. {versions}."]
    return "\n".join(lines), "\n\n".join(_seen(name, kept[name]) for name in peers)


def _versions(one: Mapping[str, Any]) -> str:
    found = {name: version for name, version in one["versions"].items() if name != "python"}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _seen(name: str, one: Mapping[str, Any]) -> str:
    lines = [f"| {PEERS[name][0]} | | seen |", "|---|---|---|"]
    for row, (title, _) in PROPERTIES.items():
        if row not in one["results"]:  # kept from before there was this property
            continue
        result = one["results"][row]
        text = result["seen"].replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {title} | {_MARKS[result['verdict']]} | {text} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", nargs="*", choices=[*PEERS, "all", []], metavar="PEER")
    parser.add_argument("--table", action="store_true", help="write the tables into the docs")
    parser.add_argument(
        "--environments", type=Path, default=DEFAULT_FOLDER, help=f"default {DEFAULT_FOLDER}"
    )
    parser.add_argument(
        "--results", type=Path, default=_ROOT / "benchmarks" / "conformance.json", help="kept here"
    )
    arguments = parser.parse_args()
    if not arguments.peers and not arguments.table:
        parser.error("name a peer, or all, or --table")
    kept = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    environments = Environments(arguments.environments)
    for name in PEERS if "all" in arguments.peers else arguments.peers:
        title, side = PEERS[name]
        python = environments.made(side)
        print(f"\n== {title}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(ProcessPeer(name, python), Path(folder))
            results = examine(trial, reasons_of(name))
        kept[name] = {
            "machine": describe_machine(),
            "versions": versions_in(python, side),
            "results": {row: asdict(result) for row, result in results.items()},
        }
        arguments.results.write_text(json.dumps(kept, indent=1) + "\n")
    if kept:
        table, seen = tables(kept)
        print(f"\n{table}")
        if arguments.table:
            page = _ROOT / "docs" / "conformance.md"
            replace_block(page, "conformance", table)
            replace_block(page, "seen", seen)


if __name__ == "__main__":
    main()
