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
def test_tables_of_our_side(tmp_path):
    output, results = compare(tmp_path, "tokens", "--sides", "ours", "--variants", "2")
    assert "| tokens | torch_tfrecord | `make_dataloader` |" in output
    tokens = results["tokens"]
    assert "tensorflow" in tokens["missing"]
    assert tokens["records"] == 64
    assert [side["variant"] for side in tokens["sides"]] == ["in process", "2 workers"]
    assert all(side["per_second"] > 0 and len(side["rounds"]) == 1 for side in tokens["sides"])
    compared = [side["compared"] for side in tokens["sides"]]
    assert compared[0] == compared[1]
    assert compared[0]["count"] == 64
    assert compared[0]["layout"] == {"tokens": "int64[2048]"}


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
        tmp_path, "doors", "random", "--rows", "texts.ds_i,random-100B.raw_64"
    )
    assert "| `ds[i]` | torch_tfrecord |" in output
    assert "| 64 raw records | torch_tfrecord |" in output
    assert "make_dataloader" not in output
    assert results is None  # a part of a table replaces none


@pytest.mark.daily
def test_all_other_tables(tmp_path):
    names = [
        "tabular",
        "embeddings",
        "raw",
        "index",
        "images",
        "images-uint8",
        "scaling",
        "startup",
    ]
    job = Path(__file__).with_name("compare_job.py")
    output, results = compare(tmp_path, *names, "doors", "random", program=job)
    assert results["doors-sequences"]["failed"] == {}
    assert {"index-tabular", "index-embeddings", "index-images"} < set(results)
    assert results["index-images"]["sides"][0]["compared"]["layout"] == {
        "length": "int64[]",
        "offset": "int64[]",
    }
    for name, dtype in {"images": "float32", "images-uint8": "uint8"}.items():
        for side in results[name]["sides"]:
            assert side["compared"]["layout"]["image"] == f"{dtype}[3, 224, 224]"
            assert side["compared"]["statistics"]["image"]["std"] > 0.5
    assert set(results["scaling"]) == {"machine", "records", "features", "size", "batch"}
    assert results["scaling"]["features"]["at"][-1] == 200
    assert results["startup"]["open"]["shards"] == 2
    assert len(results["startup"]["epochs"]["workers_mib"]) == 20
    assert "opening 2 shards" in output


class TestOutputs:
    """What calls two sides equal."""

    outputs = load("outputs")

    def summary(self, *batches, random_columns=()):
        outputs = self.outputs.Outputs(random_columns)
        for batch in batches:
            outputs.add(batch)
        return outputs.summary()

    def batch(self, *rows):
        return {"x": np.array(rows, np.float32), "y": np.array(rows, np.int64)}

    def test_batch_borders_are_of_no_matter(self):
        one, two = self.summary(self.batch(1, 2, 3)), self.summary(self.batch(1, 2), self.batch(3))
        assert self.outputs.differences(one, two, ordered=True) == []

    def test_another_order_differs_only_where_order_counts(self):
        one, two = self.summary(self.batch(1, 2, 3)), self.summary(self.batch(3, 1, 2))
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


def test_a_side_that_gives_something_else_is_an_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    runner = importlib.import_module("runner")

    class Process:
        def __init__(self, count):
            self.job = type("Job", (), {"side": "peer", "variant": "v", "workload_name": "raw"})
            self.count = count

        def check(self, most):
            ordered = {str(self.count): "digest"}
            same = {"layout": {}, "statistics": {}, "ordered_run": True, "whole": True}
            return {"count": self.count, "ordered": ordered, **same}

    with pytest.raises(runner.SideFailedError, match=r"peer \(v\) on raw differs: count: 3 and 4"):
        runner._check_all([Process(3), Process(4)])


def test_a_door_that_fails_is_noted_and_the_others_are_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    runner, workloads = importlib.import_module("runner"), importlib.import_module("workloads")

    class Process:
        def __init__(self, variant, digest):
            workload = workloads.WORKLOADS["random-100B"]
            names = {
                "side": "ours",
                "variant": variant,
                "workload_name": "random-100B",
                "workload": workload,
            }
            self.job, self.digest = type("Job", (), names), digest

        def check(self, most):
            if self.digest is None:
                raise runner.SideFailedError("Traceback:\n  of many lines\nValueError: why\n")
            same = {"layout": {}, "statistics": {}, "ordered_run": True, "whole": True, "count": 3}
            return {**same, "ordered": {"3": self.digest}}

    raw, parsed, failing, other = (
        Process("raw", "a"),
        Process("example", "b"),
        Process("raw_64", None),
        Process("raw_1024", "b"),
    )
    sides, failed = [raw, parsed, failing, other], {}
    assert len(runner._check_doors(sides, failed)) == 2
    assert sides == [raw, parsed]
    assert failed["ours, raw_64"] == "ValueError: why"
    assert failed["ours, raw_1024"] == "ours (raw_1024) on random-100B differs: the first 3 rows"


class TestDoors:
    """Which rows run, and what is said of them."""

    @pytest.fixture
    def modules(self, monkeypatch):
        monkeypatch.syspath_prepend(str(FOLDER))
        return {name: importlib.import_module(name) for name in ("report", "workloads")}

    def test_rows_bring_what_they_are_held_against(self, modules):
        only_rows, scalars = (
            modules["workloads"].only_rows,
            modules["workloads"].WORKLOADS["doors-scalars"],
        )
        chosen = only_rows(scalars, ["ds_i", "tokens"])
        singles = ("parse_single_example", "parse_single_example, batched")
        assert chosen.variants == {"ours": ("ds_i", "its_tensors"), "tensorflow": singles}
        assert len(chosen.doors) == 2
        assert only_rows(scalars, ["scalars"]) == scalars
        assert only_rows(scalars, ["scalars.collate"]).variants["ours"] == ("collate",)
        assert only_rows(scalars, ["tokens", "tokens.ds_i"]) is None

    def test_every_bar_names_variants_that_there_are(self, modules):
        for workload in modules["workloads"].WORKLOADS.values():
            for bar in workload.doors:
                assert {*bar.ours} <= {*workload.variants["ours"]}
                assert {*bar.variants} <= {*workload.variants[bar.side]}

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((("a",), "tensorflow", ("x", "y"), 5), "at least 5 times tf.data (x or y): 10x ok"),
            ((("a",), "tensorflow", ("y",), 20.5), "at least 20.5 times tf.data (y): 20x missed"),
            ((("a", "b"), "dali", ("z",), 1.2), None),
            ((("b",), "tensorflow", ("x",), 2), "at least 2 times tf.data (x): failed"),
            (
                (("a",), "ours", ("its_tensors",), 1 / 1.5, True),
                "at most 1.5 times the cost of only making the tensors of `ds[i]`: 2.0x missed",
            ),
        ],
    )
    def test_a_bar_in_words(self, modules, arguments, said):
        rates = {
            ("ours", "a"): 1000,
            ("ours", "its_tensors"): 2000,
            ("tensorflow", "x"): 100,
            ("tensorflow", "y"): 50,
        }
        assert modules["report"].judge(modules["workloads"].Bar(*arguments), rates) == said

    def test_the_table(self, modules):
        def side(name, variant, rate):
            return {
                "side": name,
                "variant": variant,
                "per_second": rate,
                "cpu_seconds_per_1000": 0.0123,
            }

        sides = [side("ours", "make_dataloader", 123_456), side("tensorflow", "ragged", 1000)]
        result = {
            "sides": sides,
            "missing": [],
            "failed": {"ours, torch_collate": "ValueError: why"},
        }
        lines = modules["report"].door_table({"doors-texts": result, "scaling": {}}).splitlines()
        held = "at least 3 times tf.data (ragged or sparse)"
        assert (
            lines[2]
            == f"| `make_dataloader(num_workers=0)` | torch_tfrecord | 123,000 | 12.3 | {held}: 123x ok |"
        )
        assert (
            lines[3]
            == f"| `DataLoader(TFRecordDataset)`, torch's collate | torch_tfrecord | failed | - | {held}: failed |"
        )
        assert lines[4:] == ["| ragged | tf.data | 1,000 | 12.3 |  |"]
        shown = modules["report"].door_table({"doors-texts": result}, goals=False).splitlines()
        assert shown[0].endswith("| side | a second | CPU µs each | ratio |")
        assert shown[2].endswith("| 123,000 | 12.3 | 123 x tf.data (ragged or sparse) |")
        assert shown[3].endswith("| failed | - |  |")


def test_the_report(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    report = importlib.import_module("report")

    def side(name, rate):
        return {"side": name, "variant": "v", "per_second": rate}

    sides = [
        side("ours", 1_234_567),
        side("ours", 9e9),
        side("tensorflow", 100_000),
        side("tfrecord", 200_000),
    ]
    result = {"records": 10, "file_bytes": 1000, "missing": [], "sides": sides}
    row = report.summary_table({"tabular": result}).splitlines()[-1]
    assert row.endswith("| 1,230,000/s | 100,000/s | - | 200,000/s | 6.2 x tfrecord | 5 | yes |")
    assert report.summary_table({"tabular": result}, goals=False).endswith(
        "| 200,000/s | 6.2 x tfrecord |"
    )
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t -->\nold\n<!-- /t -->\nb\n")
    report.replace_block(page, "t", "new \\1")
    assert page.read_text() == "a\n<!-- t -->\nnew \\1\n<!-- /t -->\nb\n"
    with pytest.raises(SystemExit, match="expected the markers <!-- u -->"):
        report.replace_block(page, "u", "")


class TestWays:
    """The table and the chart that begin docs/performance.md."""

    @pytest.fixture
    def ways(self, monkeypatch):
        monkeypatch.syspath_prepend(str(FOLDER))
        return importlib.import_module("ways")

    def results(self, ways, skip=()):
        """Ours 2, 4 and 8 times as fast for numbers, else 3 times."""
        found = {}
        for group in ways.GROUPS:
            for row in group.rows.values():
                for workload, variant in row.values():
                    sides = found.setdefault(
                        workload,
                        {"sides": [{"side": group.best, "variant": "x", "per_second": 10}]},
                    )
                    rate = {"doors-scalars": 20, "doors-tokens": 40, "doors-floats": 80}.get(
                        workload, 30
                    )
                    if workload not in skip:
                        sides["sides"].append(
                            {"side": "ours", "variant": variant, "per_second": rate}
                        )
        return found

    def test_geometric_means_of_all_rows_or_of_none(self, ways):
        lines = ways.way_table(self.results(ways, skip=("workers-floats",))).splitlines()
        assert lines[2] == "| 40 scalars | 2.0 | 2.0 | 3.0 | 2.0 | 2.0 |"
        assert lines[4] == "| 1,024 floats | 8.0 | 8.0 |  | 8.0 | 8.0 |"
        assert (
            lines[5] == "| **geometric mean, numbers** | **4.0** | **4.0** |  | **4.0** | **4.0** |"
        )
        mean = (2 * 4 * 8 * 3**4) ** (1 / 7)
        assert (
            f"| **geometric mean of all above** |  | **{mean:.1f}** |  |  | **{mean:.1f}** |"
            in lines
        )
        assert lines[-1] == "| JPEGs, `Image(crop=...)` |  | 3.0 | 3.0 |  | 3.0 |"

    def test_the_other_libraries_of_another_run_are_held_against_the_best_there(self, ways):
        sides = [{"side": "tensorflow", "per_second": 10}, {"side": "tfrecord", "per_second": 5}]
        sides.append({"side": "tfrecord", "per_second": 1})
        assert ways.of_others({"tokens": {"sides": sides}}, ways.GROUPS[0]) == {
            "package tfrecord": 0.5
        }

    def test_every_variant_is_one_that_is_measured(self, ways):
        workloads = importlib.import_module("workloads").WORKLOADS
        for group in ways.GROUPS:
            for workload, variant in (name for row in group.rows.values() for name in row.values()):
                assert variant in workloads[workload].variants["ours"]
                assert group.best in workloads[workload].variants

    def test_the_chart(self, ways, tmp_path):
        pytest.importorskip("matplotlib")
        chart = importlib.import_module("chart")
        chart.draw_comparison({}, tmp_path / "none.png")
        assert not (tmp_path / "none.png").exists()
        chart.draw_comparison(self.results(ways), tmp_path / "chart.png")
        assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"

    def test_the_page_has_the_tables_of_the_results(self, ways):
        page = (FOLDER.parent / "docs" / "performance.md").read_text(encoding="utf-8")
        results = json.loads((FOLDER / "results.json").read_text())
        assert f"<!-- ways -->\n{ways.way_table(results)}\n<!-- /ways -->" in page
        assert "missed" not in page


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
    titles, _, row, other = script("lock", "tokens", "texts")
    assert titles[:4] == ["work", "alone/s", "beside the loop/s", "kept"]
    assert (row[0], other[0]) == ("tokens, batch 64", "texts, batch 64")
    assert int(row[1].replace(",", "")) > 0
    assert int(row[2].replace(",", "")) > 0


@pytest.mark.slow
def test_numbers_of_threads_and_workers(script):
    rows = script("threads", "tokens", "--most", "2")
    assert rows[0] == ["samples a second", "1", "2"]
    assert [row[0] for row in rows[2:]] == ["tokens, `num_threads`", "tokens, `num_workers`"]
    assert all(int(cell.replace(",", "")) > 0 for row in rows[2:] for cell in row[1:])


@pytest.mark.daily
def test_a_training_loop_beside_the_peers(script):
    ideal, *rows = script("lock", "tokens", "--loop")[2:]
    assert ideal == ["tokens, batch 64", "never waited for", "", "1,600", "800"]
    assert [row[1] for row in rows[:2]] == ["ours, in process", "ours, 2 workers"]
    assert 0 < int(rows[0][4].replace(",", "")) <= 900


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
