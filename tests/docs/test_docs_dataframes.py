"""docs/dataframes.md and docs/engines.md: their programs run."""

import re
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = [
    pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.slow
def test_dataframes(run):
    names = run("dataframes")
    assert names["frame"]["score"].sum() == sum(range(200)) / 8
    assert [row[:2] for row in names["by_label"].fetchall()] == [(label, 40) for label in range(5)]
    assert names["longest"]["tokens"].to_list() == [[n] * 4 for n in range(3, 200, 4)]
    assert names["table"].num_rows == 200
    assert names["read"].to_arrow().to_pydict() == {
        "born": [[1815], None, [1906]],
        "name": ["Ada", "Alan", "Grace"],
    }
    assert (len(names["threes"]), len(names["short"])) == (40, 20)
    assert [names["ds"][int(at)]["score"].item() for at in names["first"]] == [2.5]
    assert names["weights"].tolist() == [1 / 40] * 200
    assert len(names["tasks"]) > 1
    assert names["rows"] == names["task"].num_rows


def program(engine):
    text = (DOCS / "engines.md").read_text(encoding="utf-8")
    return re.search(rf"^## {engine}\n.*?^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]


def run_engine(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program(engine), names)
    return names


@pytest.mark.slow
def test_polars_and_dask(tmp_path, monkeypatch):
    names = run_engine("polars", tmp_path, monkeypatch)
    assert names["counts"].rows() == [(1, 2), (2, 1)]
    names = run_engine("Dask", tmp_path, monkeypatch)
    assert (names["frame"].npartitions, names["total"]) == (4, 499500)


@pytest.mark.daily
def test_ray(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    names = run_engine("Ray", tmp_path, monkeypatch)
    assert names["largest"] == 99**2


@pytest.mark.daily
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_spark(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    names = run_engine("Spark", tmp_path, monkeypatch)
    assert names["counts"] == {0: 34, 1: 33, 2: 33}
