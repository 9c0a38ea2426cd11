"""Spark in local mode: partitions, filters by the index, files that appear when all are whole."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from golden_tables import TEXT, THOUSAND, golden, totals, totals_of_rows  # noqa: F401 - a fixture

from torch_tfrecord import TFRecordDataset, TFRecordWriter, build_index

pyspark = pytest.importorskip("pyspark")
from torch_tfrecord.engines.spark import TFRecordDataSource  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        support = str(Path(__file__).parents[1] / "support")
        patch.setenv("PYTHONPATH", support)
        builder = SparkSession.builder.master("local[2, 3]")  # each task may fail twice
        for name, value in {
            "spark.executorEnv.PYTHONPATH": support,  # where another test has started Java
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.python.filterPushdown.enabled": "true",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        session.dataSource.register(TFRecordDataSource)
        yield session
        session.stop()


def read(spark, path, **options):
    return spark.read.format("tfrecord").options(**options).load(path)


@pytest.mark.daily
def test_rows(spark, golden):  # noqa: F811
    for name in ("pipeline", "text"):
        frame = read(spark, golden[name])
        num_rows, wanted = totals(golden[name])
        rows = [row.asDict() for row in frame.collect()]
        assert len(rows) == num_rows
        assert totals_of_rows(rows) == wanted


@pytest.mark.slow
def test_partitions_and_columns(spark, golden):  # noqa: F811
    frame = read(spark, golden["thousand"], target_bytes="10000", features="golden_tables:THOUSAND")
    assert frame.schema.simpleString() == "struct<i:bigint,name:string>"
    found = frame.selectExpr("i", "spark_partition_id() as p").collect()
    assert [row.i for row in found] == [*range(1000)]
    assert len({row.p for row in found}) > 3


@pytest.mark.daily
def test_fewer_columns(spark, golden):  # noqa: F811
    one = spark.read.format("tfrecord").schema("i long").load(golden["thousand"])
    assert one.agg({"i": "sum"}).first()[0] == 499500


@pytest.mark.daily
def test_filters_by_the_index(spark, golden, tmp_path):  # noqa: F811
    path = shutil.copy(golden["thousand"], tmp_path / "x.tfrecord")
    build_index(path, columns=["i"])
    # Whoever reads another record than 5 and 7 meets damage.
    ds = TFRecordDataset(path, THOUSAND)
    status = os.stat(path)
    data = bytearray(Path(path).read_bytes())
    data[ds.locate(400)[1] + 15] ^= 1
    Path(path).write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    frame = read(spark, str(path), push_filters="true", features="golden_tables:THOUSAND")
    assert [row.i for row in frame.filter("i in (5, 7)").collect()] == [5, 7]
    assert frame.filter("i = 3 and name = 'no'").count() == 0
    with pytest.raises(Exception, match=r"x\.tfrecord: record 400 at byte"):
        frame.filter("i > 5").collect()


@pytest.mark.daily
def test_written_and_read_again(spark, golden, tmp_path):  # noqa: F811
    frame = read(spark, golden["text"])
    writer = frame.write.format("tfrecord").option("compression_type", "GZIP")
    writer.mode("append").save(str(tmp_path / "out"))
    assert totals(f"{tmp_path}/out/part-*") == totals(golden["text"])
    assert TFRecordDataset(tmp_path / "out", TEXT).to_arrow().num_rows == totals(golden["text"])[0]
    frame.limit(2).write.format("tfrecord").mode("overwrite").save(str(tmp_path / "out"))
    assert totals(f"{tmp_path}/out/part-*")[0] == 2


@pytest.mark.daily
def test_a_task_that_is_killed_runs_again(spark, golden, tmp_path):  # noqa: F811
    marker = str(tmp_path / "killed")

    def die_once(batches):
        for batch in batches:
            if batch["i"][0].as_py() == 0 and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    frame = read(spark, golden["thousand"], target_bytes="10000")
    dying = frame.mapInArrow(die_once, frame.schema)
    dying.write.format("tfrecord").mode("append").save(str(tmp_path / "out"))
    assert os.path.exists(marker)
    assert totals(f"{tmp_path}/out/part-*") == totals(golden["thousand"])
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]


@pytest.mark.daily
def test_a_job_that_fails_leaves_no_file(spark, golden, tmp_path):  # noqa: F811
    def fail(batches):
        for batch in batches:
            if batch["i"][-1].as_py() > 900:
                raise ValueError("stop")
            yield batch

    frame = read(spark, golden["thousand"], target_bytes="10000")
    with pytest.raises(Exception, match="stop"):
        failing = frame.mapInArrow(fail, frame.schema)
        failing.write.format("tfrecord").mode("append").save(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


@pytest.mark.daily
def test_types_that_spark_lacks(spark, tmp_path):
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write({"a": [1, 2]})
    frame = read(spark, str(tmp_path / "x"), features="engine_features:SMALL")
    assert frame.schema.simpleString() == "struct<a:array<smallint>>"
    assert frame.first().a == [1, 2]
