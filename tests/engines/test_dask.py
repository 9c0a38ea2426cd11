"""Dask: partitions that are read where they are needed, again if a worker is lost."""

import pandas
import pytest
from golden_tables import GOLDEN, TEXT, THOUSAND, golden, totals, totals_of_rows  # noqa: F401 - a fixture
from helpers import for_each

from index_tools.main import main
from torch_tfrecord import CorruptRecordError, TFRecordDataset, TFRecordWriter

dask = pytest.importorskip("dask")
from torch_tfrecord.engines.dask import to_dataframe  # noqa: E402

pytestmark = pytest.mark.slow


@for_each("name", GOLDEN)
def test_all_rows(golden, name):  # noqa: F811
    frame = to_dataframe(golden[name], target_bytes=2000)
    num_rows, wanted = totals(golden[name])
    with dask.config.set(scheduler="threads"):
        assert len(frame) == num_rows
        rows = frame.compute().to_dict("records")
    rows = [
        {k: None if v is pandas.NA or v is not v else v for k, v in row.items()} for row in rows
    ]
    assert totals_of_rows(rows) == wanted


def test_queries(golden):  # noqa: F811
    frame = to_dataframe(golden["thousand"], THOUSAND, target_bytes=10_000)
    assert frame.npartitions > 3
    with dask.config.set(scheduler="threads"):
        assert frame["i"].sum().compute() == sum(range(1000))
        assert frame[["name"]].head(2).shape == (2, 1)
        one = to_dataframe(golden["thousand"], THOUSAND, columns=["i"])
        assert [*one.columns] == ["i"]
        assert one["i"].max().compute() == 999
        nothing = tuple(map(len, (frame[frame["i"] > 5000], frame[frame["i"] < 5])))
        assert nothing == (0, 5)


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 3, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_verbs_run_on_its_workers(tmp_path, cluster, capsys):
    for number in range(600):
        with TFRecordWriter(tmp_path / f"x-{number:03d}.tfrecord") as writer:
            writer.write({"label": number % 7})
    address = f"dask={cluster.scheduler.address}"
    assert main(["verify", str(tmp_path), "--executor", address]) == 0
    assert capsys.readouterr().out.startswith("600 files, 600 records")
    assert main(["index", str(tmp_path), "--columns", "label", "--executor", address]) == 0
    assert "600 files: 600 indexed" in capsys.readouterr().out
    ds = TFRecordDataset(tmp_path / "x-*", index="require")
    assert len(ds.where("label", 3)) == 86
    data = bytearray((tmp_path / "x-005.tfrecord").read_bytes())
    data[-6] ^= 1
    (tmp_path / "x-005.tfrecord").write_bytes(data)
    assert main(["verify", str(tmp_path), "--executor", address]) == 1
    assert "x-005.tfrecord: record 0 at byte 0" in capsys.readouterr().out


def test_a_damaged_record(golden, tmp_path):  # noqa: F811
    with open(golden["thousand"], "rb") as file:
        data = bytearray(file.read())
    data[TFRecordDataset(golden["thousand"]).locate(500)[1] + 15] ^= 1
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CorruptRecordError, match="/x: record 500 at byte"):
        to_dataframe(str(tmp_path / "x"), THOUSAND)


def test_wrong_executors(capsys, tmp_path):
    assert main(["verify", "x", "--executor", "ray"]) == 2
    assert (
        "argument --executor: expected processes or dask=ADDRESS, got 'ray'"
        in capsys.readouterr().err
    )
