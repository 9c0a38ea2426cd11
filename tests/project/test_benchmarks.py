"""A smoke run of benchmarks/compare.py: our side alone, on tiny files; no time is asserted."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import load_script
from jobs import run_job

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name):
    """A module of benchmarks/, which is no package."""
    return load_script(FOLDER / f"{name}.py")


def compare(tmp_path, *arguments, program=FOLDER / "compare.py"):
    results = tmp_path / "results.json"
    pace = ("--fraction", "0.0001", "--rounds", "1", "--seconds", "0.01")
    places = {"--cache": "cache", "--environments": "none", "--results": results.name}
    given = [word for name, place in places.items() for word in (name, tmp_path / place)]
    done = run_job(program, *arguments, *pace, *given)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(results.read_text()) if results.exists() else None


@pytest.mark.daily
def test_what_needs_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pace = ("--seconds", "0", "--batch", "8", "--fraction", "0.001")
    done = run_job(FOLDER / "gpu.py", *pace)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    assert [row[0].strip() for row in rows if "left out" in row[-1]] == [
        "tokens",
        "embeddings",
        "40 scalars",
        "crops",
    ]
    assert "left out without a GPU: pinned" in done.stdout


@pytest.mark.daily
def test_rows_of_the_doors(tmp_path):
    output, results = compare(
        tmp_path,
        "doors",
        "random",
        "--rows",
        "texts.make_dataloader,100B.raw_64",
        "--sides",
        "ours",
    )
    assert "| `make_dataloader(num_workers=0)` |" in output
    assert "| 64 raw records |" in output
    assert "collate" not in output
    assert results is None  # a part of a table replaces none


@pytest.mark.daily
def test_all_tables(tmp_path):
    job = Path(__file__).with_name("compare_job.py")
    output, results = compare(tmp_path, "all", program=job)
    assert [name for name, one in results.items() if one["failed"]] == []
    assert {"index-tabular", "index-embeddings", "index-images"} < set(results)
    assert results["index-images"]["sides"][0]["compared"]["layout"] == {
        "length": "int64[]",
        "offset": "int64[]",
    }
    for side in results["doors-transforms"]["sides"]:
        assert side["compared"]["layout"]["image"] == "float32[3, 224, 224]"
        assert side["compared"]["statistics"]["image"]["std"] > 0.5
    tokens = results["doors-tokens"]
    assert tokens["records"] == 64
    assert "dali" in results["doors-transforms"]["missing"]
    assert {side["compared"]["count"] for side in tokens["sides"]} == {64}
    assert all(side["per_second"] > 0 and len(side["rounds"]) == 1 for side in tokens["sides"])
    assert "| `make_dataloader(num_workers=0)` |" in output


class TestOutputs:
    """Two sides are equal if these say so."""

    outputs = load("outputs")

    def summary(self, *batches, random_columns=()):
        outputs = self.outputs.Outputs(random_columns)
        for batch in batches:
            outputs.add(batch)
        return outputs.summary()

    def batch(self, *rows):
        return {"x": np.array(rows, np.float32), "y": np.array(rows, np.int64)}

    def test_another_order_differs_only_where_order_counts(self):
        one, two = self.summary(self.batch(1, 2, 3)), self.summary(self.batch(3, 1), self.batch(2))
        assert self.outputs.differences(one, two, ordered=False) == []
        assert self.outputs.differences(one, two, ordered=True) == ["the first 3 rows"]

    def test_a_run_that_was_cut_off_is_compared_up_to_there(self):
        whole = self.summary(self.batch(*range(1024)), self.batch(*range(1024)))
        part, other = (
            self.summary(self.batch(*range(1024))),
            self.summary(self.batch(*range(1, 1025))),
        )
        assert self.outputs.differences(whole, part, ordered=True) == []
        assert self.outputs.differences(whole, other, ordered=True) == ["the first 1024 rows"]
        assert self.outputs.differences(whole, self.summary(self.batch(1)), ordered=True) == [
            "count: 2048 and 1"
        ]

    def test_rows_put_together_wrongly_differ(self):
        mixed = {"x": np.array([1, 2], np.float32), "y": np.array([2, 1])}
        one, two = self.summary(self.batch(1, 2)), self.summary(mixed)
        assert "unordered" in self.outputs.differences(one, two, ordered=False)[0]

    @pytest.mark.parametrize(
        "other",
        [
            {"x": np.array([1, 2], np.float64)},
            {"x": np.array([[1], [2]], np.float32)},
            {"x": [b"1", b"2"]},
        ],
    )
    def test_another_layout_differs(self, other):
        one, two = self.summary({"x": np.array([1, 2], np.float32)}), self.summary(other)
        assert "layout" in self.outputs.differences(one, two, ordered=True)[0]

    def test_random_columns_are_held_against_their_statistics(self):
        generator = np.random.default_rng(0)
        images = [{"x": generator.normal(shift, 1, (100, 50))} for shift in (0, 0, 0.2)]
        same, near, far = (self.summary(image, random_columns=["x"]) for image in images)
        assert self.outputs.differences(same, near, ordered=False) == []
        assert "mean of x" in self.outputs.differences(same, far, ordered=False)[0]


class TestWays:
    """The table and the chart that begin docs/performance.md."""

    @pytest.fixture
    def ways(self, monkeypatch):
        monkeypatch.syspath_prepend(str(FOLDER))
        return importlib.import_module("ways")

    def test_every_variant_is_one_that_is_measured(self, ways):
        workloads = importlib.import_module("workloads").WORKLOADS
        for group in ways.GROUPS:
            for workload, variant in (name for row in group.rows.values() for name in row.values()):
                assert variant in workloads[workload].variants["ours"]
                assert group.best in workloads[workload].variants

    def test_the_page_has_the_tables_of_the_results(self, ways):
        page = (FOLDER.parent / "docs" / "performance.md").read_text(encoding="utf-8")
        results = json.loads((FOLDER / "results.json").read_text())
        assert f"<!-- ways -->\n{ways.way_table(results)}\n<!-- /ways -->" in page

    def result(self, **rates):
        """A result whose sides have so many records a second."""
        names = {side.partition("__"): rate for side, rate in rates.items()}
        sides = [{"side": a, "variant": b, "per_second": rate} for (a, _, b), rate in names.items()]
        return {"sides": sides, "failed": {}}

    def test_a_way_is_shown_beside_the_fastest_of_what_its_bars_name(self, ways):
        report = importlib.import_module("report")
        random = self.result(ours__raw=300, tfr_reader__raw=200, array_record__raw=100)
        random["sides"].append({"side": "tfd_utils", "variant": "example", "per_second": 999})
        random["failed"] = {"ours, raw_64": "no memory"}
        table = report.table({"random-4KB": random}).splitlines()
        assert table[2:] == [
            "| 4 KB | `ds.raw(i)` | 300 | tfr-reader 200 | 1.5 |",
            "|  | 64 raw records | failed |  |  |",
        ]
        wanted = report.table({"random-4KB": random}, goals=True).splitlines()[2]
        assert wanted.endswith("| 1.5 x tfr-reader, 1<br>3.0 x ArrayRecord, 1 |")

    def test_what_was_not_measured_has_no_bar(self, ways):
        numbers, rates = ways.GROUPS[0], {"ours__collate": 6, "tfrecord__0 workers": 1}
        assert ways.of_others({"doors-scalars": self.result(**rates)}, numbers) == {}
        rates["tensorflow__parse_example"] = 2
        results = {"doors-scalars": self.result(**rates)}
        assert ways.of_others(results, numbers) == {"tfrecord": 0.5}
        assert ways.ratios(results, numbers, "collate") == {"40 scalars": 3}
        assert ways.ratios(results, numbers, "stream") == {}


@pytest.fixture
def script(monkeypatch, tmp_path, capsys):
    """Runs a script beside lock.py on a few records; its rows as cells."""
    monkeypatch.syspath_prepend(str(FOLDER))
    lock, corpora = importlib.import_module("lock"), importlib.import_module("corpus").Corpora
    monkeypatch.setattr(lock, "CACHE", tmp_path)
    monkeypatch.setattr(lock, "Corpora", lambda folder, photos, _=1: corpora(folder, photos, 1e-4))

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--rounds", "1", "--seconds", "0.01"])
        importlib.import_module(name).main()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    return run


@pytest.mark.slow
def test_beside_a_loop_that_keeps_the_lock(script):
    titles, _, row, other = script("lock", "tokens", "texts", "--kept")
    assert titles == ["work", "alone/s", "beside the loop/s", "kept", "loop waits"]
    assert (row[0], other[0]) == ("tokens, batch 64", "texts, batch 64")
    assert int(row[1].replace(",", "")) > 0
    assert int(row[2].replace(",", "")) > 0


@pytest.mark.daily
def test_a_training_loop_beside_the_peers(script):
    ideal, *rows = script("lock", "tokens")[2:]
    assert ideal == ["tokens, batch 256", "never waited for", "", "6,400", "3,200"]
    ways = ("`make_dataloader(num_workers=0)`", "`make_dataloader(num_workers=2)`")
    assert [row[1] for row in rows[:2]] == [*ways]
    assert 0 < int(rows[0][4].replace(",", "")) <= 3600


@pytest.mark.daily
def test_reading_from_a_bucket(tmp_path):
    command = [
        sys.executable,
        FOLDER / "remote.py",
        "--fraction",
        "0.01",
        "--rounds",
        "1",
        "--data",
        "photos",
    ]
    command += ["--sides", "torch,bare", "--directory", tmp_path]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sides = json.loads(done.stdout)["photos"]
    assert [*sides["torch_tfrecord"]] == ["open", "batch", "epoch", "blocks", "stream"]
    assert [*sides["bare client, 64"]] == ["open", "batch", "epoch", "stream"]
    size = 8 * 16 * 100_000
    for name in ("epoch", "blocks", "stream"):
        (round_,) = sides["torch_tfrecord"][name]["rounds"]
        assert round_["whole"]
        assert round_["bytes"] == size <= round_["bytes_sent"]
    assert sides["bare client, 64"]["epoch"]["requests"] == 8 * 16
