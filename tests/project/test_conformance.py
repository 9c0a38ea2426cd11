"""benchmarks/conformance.py: what it finds of our loaders, and of loaders with planted faults."""

import importlib
import json
import random
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="not beside an installed package")
_NAMES = ("conformance", "environments", "loaders", "loaders.ours", "play", "properties")


@pytest.fixture(scope="module")
def suite():
    """The modules of benchmarks/, which is no package and whose names are common."""
    before = {*sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(
            **{name.rpartition(".")[2]: importlib.import_module(name) for name in _NAMES}
        )
    finally:
        sys.path.remove(str(FOLDER))
        for name in {*sys.modules} - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
                del sys.modules[name]


class InProcess:
    """A peer that runs here, rank after rank."""

    def __init__(self, suite, adapter):
        self.suite = suite
        self.adapter = adapter

    def write(self, folder, shards):
        if hasattr(self.adapter, "READS_TFRECORD"):
            self.suite.conformance.write_records(folder, shards)
        self.adapter.write(str(folder), shards)

    def play(self, settings):
        return [self.suite.play.play(self.adapter, setting) for setting in settings]


def judged(suite, adapter, tmp_path, names, reasons=None):
    trial = suite.properties.Trial(InProcess(suite, adapter), tmp_path)
    return {name: suite.properties.judge(trial, name, reasons or {}) for name in names}


def test_our_loader(suite, tmp_path):
    names = [name for name in suite.properties.PROPERTIES if name not in SLOW]
    found = judged(suite, suite.ours, tmp_path, names)
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(names, "yes")
    assert found["once_ranks"].seen == "320 of 320 records"
    assert found["equal_ranks"].seen == "20 and 20 batches; 305 of 305 records, 1 of them 2 times"
    assert found["resume_twice"].seen == "the same 26 batches follow; 320 of 320 records"
    assert found["damaged"].seen.startswith("CorruptRecordError: 002.tfrecord: record 10 at byte ")


SLOW = ("damaged_checked", "draws_epochs", "draws_workers", "killed")


@pytest.mark.slow
def test_our_loader_draws_and_dies(suite, tmp_path):
    found = judged(suite, suite.ours, tmp_path, SLOW)
    assert {one.verdict for one in found.values()} == {"yes"}
    assert found["draws_workers"].seen == "320 different crops of 320 records"
    assert "is killed by signal: Killed" in found["killed"].seen


class Plain:
    """A loader without workers, which stands for one that has them: records of an id, a checksum and a value."""

    RECORD = struct.Struct("<qI64s")

    def __init__(self, suite):
        self.suite = suite

    def write(self, folder, shards):
        for number, shard in enumerate(shards):
            records = [
                self.RECORD.pack(one, zlib.crc32(value), value)
                for one in shard
                for value in [self.suite.loaders.value_of(one)]
            ]
            Path(folder, f"{number}.records").write_bytes(b"".join(records))

    def open_loader(self, setting):
        adapter = self

        class Loader(self.suite.loaders.Loader):
            def epoch(self, number):
                return adapter.batches(setting, number)

        return Loader(())

    def batches(self, setting, number):
        records = [*self.records(setting)]
        if setting.shuffle:
            random.Random(f"{setting.seed} {number}").shuffle(records)
        generator = random.Random(number)
        for begin in range(0, len(records), setting.batch_size):
            ids, values = zip(*records[begin : begin + setting.batch_size], strict=True)
            draws = [generator.random() for _ in ids]
            yield {"id": ids, "value": values, "draw": draws}

    def records(self, setting):
        """Those of this rank."""
        for number, path in enumerate(self.suite.loaders.files_in(setting.folder, ".records")):
            data = Path(path).read_bytes()
            for at in range(0, len(data), self.RECORD.size):
                one, checksum, value = self.RECORD.unpack(data[at : at + self.RECORD.size])
                if zlib.crc32(value) != checksum:
                    raise ValueError(f"{path}: damaged record at byte {at}")
                if number % setting.world_size == setting.rank:
                    yield one, value


class Duplicating(Plain):
    """Each worker reads everything."""

    def records(self, setting):
        for _ in range(max(setting.workers, 1)):
            yield from super().records(setting)


class Swallowing(Plain):
    """Leaves damaged records out."""

    def records(self, setting):
        for path in self.suite.loaders.files_in(setting.folder, ".records"):
            data = Path(path).read_bytes()
            for at in range(0, len(data) - self.RECORD.size + 1, self.RECORD.size):
                one, checksum, value = self.RECORD.unpack(data[at : at + self.RECORD.size])
                if zlib.crc32(value) == checksum:
                    yield one, value


def test_a_sound_loader(suite, tmp_path):
    names = ["once_0", "once_2", "once_ranks", "epochs_differ", "seed", "damaged", "truncated"]
    found = judged(suite, Plain(suite), tmp_path, [*names, "draws_epochs", "draws_workers"])
    assert {one.verdict for one in found.values()} == {"yes"}
    missing = judged(suite, Plain(suite), tmp_path / "more", ["resume", "killed"])
    assert {name: one.verdict for name, one in missing.items()} == {
        "resume": "not offered",
        "killed": "not offered",
    }
    assert missing["resume"].seen == "tuple has no state_dict"
    assert missing["killed"].seen == "no worker process is running"


@pytest.fixture(autouse=True)
def folder(tmp_path):
    (tmp_path / "more").mkdir()


@pytest.mark.parametrize(
    ("fault", "names", "seen"),
    [
        (Duplicating, ["once_2"], "320 of 320 records, 320 of them 2 times"),
        (Swallowing, ["damaged"], "no error; 319 of 320 records, 0 with another value"),
        (Swallowing, ["truncated"], "no error; 260 of 320 records"),
        (Plain, ["equal_ranks"], "20 and 19 batches; 305 of 305 records"),
    ],
)
def test_faults_are_found(suite, tmp_path, fault, names, seen):
    for result in judged(suite, fault(suite), tmp_path, names).values():
        assert result.verdict == "no"
        assert result.seen.startswith(seen)


def test_a_fault_that_the_peer_does_not_deny(suite, tmp_path):
    found = judged(suite, Duplicating(suite), tmp_path, ["once_2"], {"once_2": "it says so"})
    assert found["once_2"].verdict == "not offered"
    assert found["once_2"].seen == "it says so: 320 of 320 records, 320 of them 2 times"


class Answering:
    """A peer whose runs all end in one outcome."""

    def __init__(self, **outcome):
        self.outcome = {"epochs": [], "error": None, "lacks": None, **outcome}

    def write(self, folder, shards):
        (folder / "value").write_bytes(b"")

    def play(self, settings):
        return [self.outcome for _ in settings]


def test_a_killed_worker(suite, tmp_path):
    short = [[{"ids": [0, 1], "wrong": [], "draws": []}]]
    for peer, verdict, seen in [
        (Answering(epochs=short), "no", "no error; 2 of 320 records"),
        (Answering(silent=60.0), "no", "no answer for 60 s"),
        (Answering(error="RuntimeError: a worker died"), "yes", "RuntimeError: a worker died"),
    ]:
        folder = tmp_path / seen.replace(":", "")
        folder.mkdir()
        result = suite.properties.judge(suite.properties.Trial(peer, folder), "killed", {})
        assert (result.verdict, result.seen) == (verdict, seen)


def test_every_peer_has_its_module_and_environment(suite):
    modules = {path.stem for path in (FOLDER / "loaders").glob("*.py")} - {"__init__"}
    assert modules == {*suite.conformance.PEERS}
    for name in modules:
        assert {*suite.conformance.reasons_of(name)} <= {*suite.properties.PROPERTIES}
    grouped = [row for rows in suite.conformance._GROUPS.values() for row in rows]
    assert sorted(grouped) == sorted(suite.properties.PROPERTIES)
    for name in modules:
        assert suite.conformance._source(name).startswith('"""')


def test_the_kept_results_are_those_of_the_page(suite):
    kept = json.loads((FOLDER / "conformance.json").read_text())
    page = (FOLDER.parent / "docs" / "conformance.md").read_text()
    assert all(block in page for block in suite.conformance.tables(kept))
    assert {*kept} == {*suite.conformance.PEERS}
    for one in kept.values():
        assert {*one["results"]} == {*suite.properties.PROPERTIES}
        assert Counter(map(len, one["results"].values())) == {2: len(one["results"])}


@pytest.mark.slow
@pytest.mark.daily
def test_the_command(tmp_path):
    results = tmp_path / "results.json"
    command = [sys.executable, FOLDER / "conformance.py", "ours", "--results", results]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())["ours"]
    assert {one["verdict"] for one in found["results"].values()} == {"yes"}
    assert "torch-tfrecord" in found["versions"]
    assert done.stdout.count("| torch_tfrecord | yes | yes | yes | yes |") == 4
