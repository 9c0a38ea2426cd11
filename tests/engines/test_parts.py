"""A folder that many processes write, and what other tools make of files that TensorFlow wrote."""

import importlib
import os
import pickle
import re
import sys
from pathlib import Path

import pandas
import pyarrow as pa
import pytest
from golden_tables import GOLDEN, golden, totals, totals_of_rows  # noqa: F401 - a fixture
from helpers import for_each

from torch_tfrecord import TFRecordDataset, infer_features
from torch_tfrecord.engines.parts import PartFolder

ENGINES = {"dask": "dask", "polars": "polars", "ray": "ray", "spark": "pyspark"}
TOOLS = {
    "pyarrow": lambda ds: pa.table(ds).to_pylist(),
    "pandas": lambda ds: pandas.DataFrame.from_arrow(ds).to_dict("records"),
    "to_pandas": lambda ds: ds.to_pandas().to_dict("records"),
    "polars": lambda ds: pytest.importorskip("polars").DataFrame(ds).to_dicts(),
    "duckdb": lambda ds: pytest.importorskip("duckdb").sql("select * from ds").fetchall(),
}


@for_each("engine", ENGINES)
def test_an_engine_without_its_package_names_the_extra(engine, monkeypatch):
    package, name = ENGINES[engine], f"torch_tfrecord.engines.{engine}"
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    advice = f"pip install 'torch-tfrecord[{engine}]'"
    with pytest.raises(ImportError, match=re.escape(advice)) as caught:
        importlib.import_module(name)
    assert f" needs the package {package}" in str(caught.value)


@for_each("name", GOLDEN)
@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(tool, marks=pytest.mark.slow if tool in ("polars", "duckdb") else [])
        for tool in TOOLS
    ],
)
def test_tools_read_what_tensorflow_wrote(golden, name, tool):  # noqa: F811
    ds = TFRecordDataset(golden[name], infer_features(golden[name]))
    rows = TOOLS[tool](ds)
    if tool == "duckdb":
        rows = [dict(zip(ds.features, row, strict=True)) for row in rows]
    if "pandas" in tool:  # which has NaN in place of null among objects
        rows = [{k: None if v is not v else v for k, v in row.items()} for row in rows]
    num_rows, wanted = totals(golden[name])
    assert len(rows) == num_rows
    assert totals_of_rows(rows) == wanted


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": numbers})


def names(folder):
    return sorted(path.name.split("-", 2)[-1] for path in Path(folder).iterdir())


def test_files_appear_when_all_are_whole(tmp_path):
    folder = PartFolder(str(tmp_path / "out"))
    copy = pickle.loads(pickle.dumps(folder))  # in another process
    written = [folder.write([batch(1, 2)]), copy.write([batch(3)])]
    copy.write([batch(3)])  # a task that ran twice
    assert [name for name in os.listdir(tmp_path / "out") if not name.startswith(".")] == []
    paths = folder.commit(written)
    assert names(tmp_path / "out") == ["00000-of-00002.tfrecord", "00001-of-00002.tfrecord"]
    assert sorted(paths) == sorted(map(str, (tmp_path / "out").iterdir()))
    ds = TFRecordDataset(tmp_path / "out", "auto")
    assert ds.to_arrow()["n"].to_pylist() == [1, 2, 3]


def test_a_job_that_failed_leaves_nothing(tmp_path):
    folder = PartFolder(str(tmp_path / "out"))
    folder.write([batch(1)])
    with pytest.raises(ValueError, match="expected lists without nulls"):
        folder.write([pa.RecordBatch.from_pydict({"n": [[None]]})])
    folder.abort()
    assert os.listdir(tmp_path / "out") == []


def test_jobs_add_up_or_replace(tmp_path):
    for number in range(2):
        folder = PartFolder(str(tmp_path / "out"), compression_type="GZIP")
        folder.commit([folder.write([batch(number)])])
    (tmp_path / "out" / "other.txt").touch()
    ds = TFRecordDataset(tmp_path / "out" / "part-*", "auto")
    assert sorted(ds.to_arrow()["n"].to_pylist()) == [0, 1]
    folder = PartFolder(str(tmp_path / "out"))
    folder.commit([folder.write([batch(5)])], overwrite=True)
    assert names(tmp_path / "out") == ["00000-of-00001.tfrecord", "other.txt"]
    assert TFRecordDataset(tmp_path / "out" / "part-*", "auto").to_arrow()["n"].to_pylist() == [5]


def test_no_storage():
    with pytest.raises(
        ValueError, match="expected a folder of a file system that all workers share, got s3://"
    ):
        PartFolder("s3://bucket/out")
