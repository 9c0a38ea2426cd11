"""Ray: exact counts, rows and errors as ours, files that appear when all are whole."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from golden_tables import GOLDEN, THOUSAND, golden, totals, totals_of_rows  # noqa: F401 - a fixture

from torch_tfrecord import CorruptRecordError, FixedLenFeature, TFRecordDataset, build_index

ray = pytest.importorskip("ray")
from torch_tfrecord.engines.ray import (  # noqa: E402
    TFRecordDatasource,
    read_tfrecords,
    write_tfrecords,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
        ray.shutdown()


@pytest.mark.slow
def test_counts_and_rows(golden):  # noqa: F811
    for name in GOLDEN:
        found = read_tfrecords(golden[name], override_num_blocks=2)
        num_rows, wanted = totals(golden[name])
        assert found.count() == num_rows
        assert totals_of_rows(found.take_all()) == wanted


@pytest.mark.daily
def test_tasks_know_their_rows_and_files(golden):  # noqa: F811
    ds = TFRecordDataset(golden["thousand"], THOUSAND)
    tasks = TFRecordDatasource(ds).get_read_tasks(5)
    assert 4 <= len(tasks) <= 6
    assert sum(task.metadata.num_rows for task in tasks) == 1000
    assert {task.metadata.input_files for task in tasks} == {(golden["thousand"],)}
    assert tasks[0].schema == pa.schema({"i": pa.int64(), "name": pa.string()})
    assert [row.as_py() for task in tasks for block in task() for row in block["i"]] == [
        *range(1000)
    ]


@pytest.mark.daily
def test_columns_that_are_dropped_are_not_parsed(golden):  # noqa: F811
    number = THOUSAND["i"]
    wrong = {**THOUSAND, "name": FixedLenFeature((), number.dtype)}
    rows = read_tfrecords(golden["thousand"], wrong).select_columns(["i"]).take_all()
    # Ray keeps no order of blocks unless it is asked to.
    assert sorted(row["i"] for row in rows) == [*range(1000)]
    assert read_tfrecords(golden["thousand"], wrong, columns=["i"]).schema().names == ["i"]
    source = TFRecordDatasource(TFRecordDataset(golden["thousand"], THOUSAND))
    assert source.get_projection_map() is None
    one = source.apply_projection({"i": "i"}).apply_projection({"i": "i", "name": "name"})
    assert one.get_projection_map() == {"i": "i"}
    nothing = source.apply_projection({})
    assert sum(block.num_rows for task in nothing.get_read_tasks(1) for block in task()) == 1000


@pytest.mark.daily
def test_chosen_records(golden, tmp_path):  # noqa: F811
    build_index(golden["thousand"], columns=["i"]).save(tmp_path / "i")
    (tmp_path / "x").symlink_to(golden["thousand"])
    os.replace(tmp_path / "i", tmp_path / "x.index.safetensors")
    ds = TFRecordDataset(tmp_path / "x", THOUSAND).where("i", range(10, 20))
    found = ray.data.read_datasource(TFRecordDatasource(ds))
    assert found.count() == 10
    assert [row["i"] for row in found.take_all()] == [*range(10, 20)]


@pytest.mark.daily
def test_a_damaged_record(golden, tmp_path):  # noqa: F811
    path = tmp_path / "x"
    data = Path(golden["thousand"]).read_bytes()
    path.write_bytes(data)
    found = read_tfrecords(str(path), THOUSAND)
    damaged = bytearray(data)
    damaged[TFRecordDataset(path).locate(500)[1] + 15] ^= 1
    status = path.stat()
    path.write_bytes(damaged)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(Exception, match="/x: record 500 at byte"):
        found.materialize()
    with pytest.raises(CorruptRecordError, match="/x: record 500 at byte"):
        read_tfrecords(str(path), THOUSAND, index="memory")


@pytest.mark.daily
def test_written_and_read_again(golden, tmp_path):  # noqa: F811
    source = read_tfrecords(golden["text"], override_num_blocks=2)
    write_tfrecords(source, tmp_path / "out", compression_type="GZIP")
    assert all(name.endswith(".tfrecord.gz") for name in os.listdir(tmp_path / "out"))
    assert totals(f"{tmp_path}/out/part-*") == totals(golden["text"])


@pytest.mark.daily
def test_a_job_that_fails_leaves_no_file(golden, tmp_path):  # noqa: F811
    def fail(batch):
        if batch["i"][0] > 700:
            raise ValueError("stop")
        return batch

    source = read_tfrecords(golden["thousand"], THOUSAND, override_num_blocks=8)
    with pytest.raises(Exception, match="stop"):
        write_tfrecords(source.map_batches(fail, batch_size=None), tmp_path / "out")
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
