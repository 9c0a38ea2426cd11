"""polars reads only the columns and rows that a query needs."""

import pytest
from golden_tables import GOLDEN, THOUSAND, golden, totals, totals_of_rows  # noqa: F401 - a fixture
from helpers import for_each

from torch_tfrecord import CorruptRecordError, TFRecordDataset

pl = pytest.importorskip("polars")
from torch_tfrecord.engines.polars import scan_tfrecord  # noqa: E402

pytestmark = pytest.mark.slow


@for_each("name", GOLDEN)
@for_each("engine", ["in-memory", "streaming"])
def test_all_rows(golden, name, engine):  # noqa: F811
    frame = scan_tfrecord(golden[name]).collect(engine=engine)
    num_rows, wanted = totals(golden[name])
    assert frame.height == num_rows
    assert totals_of_rows(frame.to_dicts()) == wanted


def test_queries(golden):  # noqa: F811
    lazy = scan_tfrecord(golden["thousand"], THOUSAND)
    assert lazy.collect_schema() == {"i": pl.Int64, "name": pl.String}
    assert lazy.select(pl.len()).collect().item() == 1000
    assert lazy.head(7).collect()["i"].to_list() == [*range(7)]
    assert lazy.filter(pl.col("i") > 990).collect()["i"].to_list() == [*range(991, 1000)]
    assert lazy.filter(pl.col("i") % 2 == 1).head(2).select("name").collect().shape == (2, 1)
    assert (
        lazy.group_by(pl.col("i") // 100).len().sort("i").collect()["len"].to_list() == [100] * 10
    )


def test_damaged_files(golden, tmp_path):  # noqa: F811
    with open(golden["thousand"], "rb") as file:
        data = bytearray(file.read())
    _, offset = TFRecordDataset(golden["thousand"]).locate(500)
    data[offset + 15] ^= 1
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"/x: record 500 at byte"):
        scan_tfrecord(str(tmp_path / "x"), THOUSAND)
    with pytest.warns(UserWarning, match="skipped 1"):
        frame = scan_tfrecord(str(tmp_path / "x"), THOUSAND, on_error="skip").collect()
    assert frame.height == 999
