"""Does what the docs promise for an installation: ``python .ci/promises.py NAME``, from an empty folder.

NAME is `none`, or one of the extras `remote`, `arrow`, `tools` and `arrayrecord`; `.ci/environment` makes
an environment with nothing else. Each function below is a program of a user of that installation. It needs
no package for tests, and compares values. `remote` reads and writes the S3 server at PROMISES_S3.
"""

import contextlib
import importlib.util
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from torch.utils.data import DataLoader

import torch_tfrecord as tfr
from index_tools.main import main as run_verb
from torch_tfrecord import FixedLenFeature, TFRecordDataset, TFRecordWriter, VarLenFeature

ROWS = 60
FEATURES = {
    "id": FixedLenFeature((), torch.int64),
    "x": FixedLenFeature((2,), torch.float32),
    "name": FixedLenFeature((), str),
    "tokens": VarLenFeature(torch.int64),
}
METHODS = multiprocessing.get_all_start_methods()
EXTRAS = {  # the packages that come with each
    "remote": {"obstore"},
    "arrow": {"pyarrow", "pandas"},
    "tools": {"pyarrow", "pandas", "flask", "matplotlib", "torchmetrics", "argcomplete"},
    "arrayrecord": {"array_record"},
}
# In no environment here: what other extras and the tests bring.
OTHERS = {"s3fs", "aiohttp", "moto", "pytest", "polars", "dask", "ray", "pyspark", "cramjam"}


def row(number: int) -> dict[str, Any]:
    tokens = np.arange(number % 3)
    return {"id": number, "x": [number, number / 2], "name": f"row {number}", "tokens": tokens}


def write(path: str, num_shards: int | None = None, **options: Any) -> None:
    sharded = partial(tfr.ShardedTFRecordWriter, num_shards=num_shards)
    with (sharded if num_shards else TFRecordWriter)(path, **options) as writer:
        for number in range(ROWS):
            writer.write(row(number))


def ids(paths: Any, **options: Any) -> list[int]:
    """In the order of the records."""
    return [sample["id"].item() for sample in TFRecordDataset(paths, FEATURES, **options)]


def check_row(sample: dict[str, Any], number: int) -> None:
    assert sample["id"] == number
    assert sample["x"].tolist() == [number, number / 2]
    assert sample["name"] == f"row {number}"
    assert sample["tokens"].tolist() == [*range(number % 3)]


def check_batches(batches: Any, wanted: Any = range(ROWS)) -> None:
    """Each record exactly once, each value beside its own id."""
    seen = []
    for batch in batches:
        numbers = batch["id"].tolist()
        assert batch["x"].tolist() == [[number, number / 2] for number in numbers]
        assert batch["name"] == [f"row {number}" for number in numbers]
        tokens = [row.tolist() for row in batch["tokens"].unbind()]
        assert tokens == [[*range(number % 3)] for number in numbers]
        seen += numbers
    assert sorted(seen) == [*wanted], sorted(seen)


def check_loading(paths: Any, methods: Sequence[str] = METHODS, **options: Any) -> None:
    """A dataset, its loaders and a stream, without workers and with two of each start method."""
    ds = TFRecordDataset(paths, FEATURES, **options)
    assert len(ds) == ROWS
    check_row(ds[ROWS - 2], ROWS - 2)
    check_row(ds[3:9][1], 4)
    stream = tfr.TFRecordIterableDataset(paths, FEATURES, batch_size=7, **options)
    for num_workers, method in [(0, None), *((2, method) for method in methods)]:
        workers: dict[str, Any] = {"num_workers": num_workers, "multiprocessing_context": method}
        check_batches(tfr.make_dataloader(paths, 8, FEATURES, **options, **workers))
        if method in (None, "fork"):  # a worker of the others takes seconds to import torch
            check_batches(DataLoader(ds, 8, shuffle=True, collate_fn=tfr.collate, **workers))
            check_batches(DataLoader(stream, batch_size=None, **workers))


def command(*arguments: object, status: int = 0) -> str:
    """What `tfrecord` prints; checks its exit status. In this process, which has imported torch."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        found = run_verb([*map(str, arguments)])
    assert found == status, (arguments, found, printed.getvalue())
    return printed.getvalue()


def refuses(extra: str, use: Callable[[], object]) -> None:
    """What needs an extra that is not installed says how to install it."""
    try:
        use()
    except ImportError as error:
        assert f"pip install 'torch-tfrecord[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"expected an error that names the extra {extra}")


def refuses_verb(extra: str, *arguments: object) -> None:
    text = command(*arguments, status=2)
    assert f"pip install 'torch-tfrecord[{extra}]'" in text, text


def far(image: torch.Tensor, other: Pillow.Image) -> int:
    """How much the pixels of two pictures differ, at most."""
    return int(np.abs(image.permute(1, 2, 0).numpy().astype(int) - np.array(other)).max())


def pictures(folder: Path) -> None:
    """Two classes of three JPEG files."""
    for number in range(6):
        place = folder / f"class {number % 2}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        rows, columns = torch.meshgrid(torch.arange(96), torch.arange(128), indexing="ij")
        image = torch.stack([2 * rows, columns, rows + columns + number]).to(torch.uint8)
        place.write_bytes(tfr.encode_image(image, "jpeg"))


def none() -> None:
    """The plain installation: everything but the extras, which it asks for by name."""
    Path("rows").mkdir()
    write("rows/train", 3)
    write("rows.tfrecord.gz", write_index=True)
    write("rows.tfrecord")
    check_loading("rows.tfrecord")
    check_loading("rows.tfrecord.gz", ["fork"])
    for path in ("rows.tfrecord", "rows.tfrecord.gz"):
        found = [tfr.decode_example(record)["id"].item() for record in tfr.read_records(path)]
        assert found == [*range(ROWS)]
    check_batches(tfr.make_dataloader("rows/train-*", 8, FEATURES, num_threads=2))
    assert len(tfr.build_index("rows.tfrecord")) == ROWS
    found = TFRecordDataset("rows.tfrecord", tfr.infer_features("rows.tfrecord"))[7]
    assert found["id"] == 7 and found["x"].tolist() == [7, 3.5]

    loader = tfr.make_dataloader("rows.tfrecord", 8, FEATURES, seed=1)
    batches = iter(loader)
    first = [number for _ in range(3) for number in next(batches)["id"].tolist()]
    again = tfr.make_dataloader("rows.tfrecord", 5, FEATURES, seed=1, num_workers=2)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    check_batches(again, sorted({*range(ROWS)} - {*first}))

    damaged = bytearray(Path("rows.tfrecord").read_bytes())
    damaged[TFRecordDataset("rows.tfrecord").locate(10)[1] + 20] ^= 1
    Path("damaged.tfrecord").write_bytes(damaged)
    assert tfr.salvage("damaged.tfrecord", "good.tfrecord").num_records == ROWS - 1
    assert ids("good.tfrecord") == [*range(10), *range(11, ROWS)]

    pictures(Path("photos"))
    command("convert", "photos", "shots/train", "--num-shards", 2)
    key, size = "image/encoded", (40, 50)
    whole, encoded = tfr.Image(key=key), FixedLenFeature((), bytes, key=key)
    label = FixedLenFeature((), torch.int64, key="image/class/label")
    # The oldest torchcodec decodes none, which is told.
    warnings.filterwarnings("ignore", "torchcodec .* does not decode images")
    spec = {"crop": tfr.Image(key=key, crop=tfr.ResizedCenterCrop(size, resize=size))}
    shots = TFRecordDataset("shots/train-*", {"whole": whole, "encoded": encoded, "label": label})
    assert sorted(shot["label"].item() for shot in shots) == [0, 0, 0, 1, 1, 1]
    for workers in (0, 2):
        loader = tfr.make_dataloader("shots/train-*", 6, spec, shuffle=False, num_workers=workers)
        for crop, shot in zip(next(iter(loader))["crop"], shots, strict=True):
            pillow = Pillow.open(io.BytesIO(shot["encoded"]))
            assert far(shot["whole"], pillow) <= 2
            assert far(crop, pillow.resize(size[::-1], Pillow.Resampling.BILINEAR)) <= 3

    assert "row 3" in command("show", "rows.tfrecord", "-n", 4)
    command("index", "rows/train-*", "--columns", "id", "--manifest")
    chosen = TFRecordDataset("rows/train-*", FEATURES).where("id", 5)
    check_row(chosen[0], 5)
    assert "0 bad" in command("verify", "rows/train-*")
    assert "record 10" in command("verify", "damaged.tfrecord", status=1)
    command("salvage", "damaged.tfrecord", "saved.tfrecord")
    assert Path("saved.tfrecord").read_bytes() == Path("good.tfrecord").read_bytes()
    command("reshard", "rows/train-*", "mixed/train", "--num-shards", 2, "--shuffle")
    check_batches(tfr.make_dataloader("mixed/train-*", 8, FEATURES))
    command("split", "rows/train-*", "sets/", "train=0.9", "test=0.1")
    assert len(TFRecordDataset("sets/test-*")) == ROWS // 10
    command("merge", "rows/train-*", "merged.tfrecord")
    command("head", "rows.tfrecord", "head.tfrecord", "-n", 5)
    command("sample", "rows.tfrecord", "some.tfrecord", "-n", 9)
    assert sorted(ids("merged.tfrecord")) == [*range(ROWS)] and ids("head.tfrecord") == [*range(5)]
    assert len({*ids("some.tfrecord")}) == 9
    command("reencode", "shots/train-*", "small/train", "--image-quality", 50)
    assert len(TFRecordDataset("small/train-*")) == 6
    Path("state.json").write_text(json.dumps(again.state_dict()))
    command("replay", "state.json", "--step", 0)
    command("bench", "rows.tfrecord")
    command("cache")
    assert "compiled (records and checksums)" in command("doctor")
    assert command("--version").strip() == f"tfrecord {tfr.__version__}"

    ds = TFRecordDataset("rows.tfrecord", FEATURES)
    refuses("arrow", ds.to_arrow)
    refuses("arrow", ds.to_pandas)
    refuses("arrow", lambda: next(iter(ds.iter_arrow(8))))
    refuses("arrow", lambda: tfr.write_arrow(ds, "arrow.tfrecord"))
    refuses("tools", lambda: tfr.show(ds[0]))
    refuses("remote", lambda: TFRecordDataset("s3://data/train-*", FEATURES))
    with TFRecordWriter("eight.tfrecord") as writer:
        writer.write(b"12345678")
    framed = Path("eight.tfrecord").read_bytes()  # 24, as a literal of Snappy in one block
    Path("eight.snappy").write_bytes(bytes([0, 0, 0, 26, 24, 23 << 2]) + framed)
    refuses("snappy", lambda: [*tfr.read_records("eight.snappy", compression_type="SNAPPY")])
    if sys.version_info < (3, 14):
        packed = tfr.encode_example({"x": b"(\xb5/\xfd \x00\x01\x00\x00"})
        spec = {"x": tfr.RawTensor((-1,), torch.uint8, compression="zstd")}
        refuses("zstd", lambda: tfr.parse_single_example(packed, spec))
    for name in ("dask", "polars", "ray", "spark"):
        refuses(name, partial(importlib.import_module, f"torch_tfrecord.engines.{name}"))
    refuses_verb("tools", "stats", "rows.tfrecord")
    refuses_verb("tools", "gallery", "rows.tfrecord", "--png", "sheet.png")
    refuses_verb("tools", "gallery", "rows.tfrecord", "--no-browser")
    refuses_verb("tools", "completion", "bash")
    refuses_verb("tools", "convert", "photos", "table/train", "--image-quality", "table")
    for kind in ("parquet", "csv", "jsonl", "tar"):
        refuses_verb("arrow", "convert", "rows.tfrecord", f"rows.{kind}")


def remote() -> None:
    """A bucket: written, found, read by map-style datasets and streams, and over plain http."""
    server = os.environ["PROMISES_S3"]
    put(f"{server}/data", b"")
    options = {"endpoint_url": server, "key": "somebody", "secret": "s3cret"}
    options = {"storage_options": {**options, "client_kwargs": {"region_name": "us-east-1"}}}
    write("s3://data/set/train", 2, **options)
    write("s3://data/one.tfrecord", write_index=True, **options)
    assert len(tfr.find_files("s3://data/set/train-*", **options)) == 2
    for paths in ("s3://data/set/train-*", "s3://data/set/train@2", "s3://data/set"):
        assert sorted(ids(paths, **options)) == [*range(ROWS)]
    check_loading("s3://data/one.tfrecord", **options)
    cache = {"cache_dir": "cache", "num_workers": 2}
    cached = tfr.make_dataloader("s3://data/set/train-*", 8, FEATURES, **cache, **options)
    check_batches(cached)
    check_batches(cached)
    write("one.tfrecord")
    assert [*tfr.read_records("s3://data/one.tfrecord", **options)] == [
        *tfr.read_records("one.tfrecord")
    ]
    put(f"{server}/data/public.tfrecord", Path("one.tfrecord").read_bytes())
    check_loading(f"{server}/data/public.tfrecord", ["fork"])
    assert "row 3" in command("show", f"{server}/data/public.tfrecord", "-n", 4)


def put(address: str, data: bytes) -> None:
    """Make a bucket or an object that everybody may read."""
    head = {"x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(address, data, head, method="PUT")
    urllib.request.urlopen(request, timeout=300).close()


def arrow() -> None:
    """Tables from records and back; records chosen by kept columns; parts for other processes."""
    import pandas
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{**row(number), "tokens": [*range(number % 3)]} for number in range(ROWS)]
    types = [("id", pa.int64()), ("x", pa.list_(pa.float32(), 2)), ("name", pa.string())]
    table = pa.Table.from_pylist(rows, pa.schema([*types, ("tokens", pa.list_(pa.int64()))]))
    tfr.write_arrow(table, "rows.tfrecord")
    check_loading("rows.tfrecord")
    ds = TFRecordDataset("rows.tfrecord", FEATURES)
    assert ds.to_arrow().to_pylist() == pa.table(ds).to_pylist() == rows
    assert pa.Table.from_batches(ds.iter_arrow(7)).to_pylist() == rows
    assert isinstance(ds.to_pandas(), pandas.DataFrame)
    assert ds.to_pandas()["name"].tolist() == table["name"].to_pylist()
    parts = [batch for task in ds.scan_tasks(500) for batch in task.read()]
    assert len(ds.scan_tasks(500)) > 1 and pa.Table.from_batches(parts).to_pylist() == rows
    command("index", "rows.tfrecord", "--columns", "id,name,len(tokens)")
    ds = TFRecordDataset("rows.tfrecord", FEATURES)
    assert ds.find("name", ["row 5", "row 7"]).tolist() == [5, 7]
    assert ds.where("len(tokens)", 2).to_arrow(None)["id"].to_pylist() == [*range(2, ROWS, 3)]

    command("convert", "rows.tfrecord", "rows.parquet")
    command("convert", "rows.parquet", "back.tfrecord")
    assert Path("back.tfrecord").read_bytes() == Path("rows.tfrecord").read_bytes()
    assert parquet.read_table("rows.parquet")["id"].to_pylist() == [*range(ROWS)]
    parquet.write_table(table.select(["id", "name"]), "flat.parquet")
    command("convert", "flat.parquet", "flat.tfrecord")
    for kind in ("csv", "jsonl", "tar"):
        command("convert", "flat.tfrecord", f"flat.{kind}")
        command("convert", f"flat.{kind}", f"{kind}.tfrecord")
        names = {"id": FEATURES["id"], "name": FEATURES["name"]}
        found = TFRecordDataset(f"{kind}.tfrecord", names).to_arrow()
        assert found.to_pylist() == table.select(["id", "name"]).to_pylist()


def tools() -> None:
    """Measures, pictures and pages of records; the table of image prices; completion."""
    Path("rows").mkdir()
    write("rows/train", 2)
    for jobs in (1, 2):
        words = ["--json", "--jobs", jobs, "--plot", f"{jobs}.png"]
        facts = json.loads(command("stats", "rows/train-*", *words))["features"]
        fact = next(fact for fact in facts if fact["feature"] == "id")
        assert (fact["min"], fact["max"], fact["mean"]) == (0, ROWS - 1, (ROWS - 1) / 2)
        assert np.array(Pillow.open(f"{jobs}.png").convert("L")).std() > 1
    pictures(Path("photos"))
    command("convert", "photos", "shots/train")
    command("gallery", "shots/train-*", "--png", "sheet.png")
    sheet = np.array(Pillow.open("sheet.png").convert("RGB"))
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 100
    words = [sys.executable, "-m", "index_tools", "gallery", "shots/train-*", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            address = re.findall(r"http://127\.0\.0\.1:\d+/", line)[0]
            with urllib.request.urlopen(f"{address}record/3", timeout=60) as page:
                assert "image/class/label" in page.read().decode()
        finally:
            server.terminate()
    prices = command("convert", "photos", "table/train", "--image-quality", "table")
    assert re.search(r"JPEG 75 +\d+ +\d\.\d+ +\d+\.\d+", prices), prices
    assert "complete" in command("completion", "bash")
    spec = {"image": tfr.Image(key="image/encoded")}
    assert tfr.show(TFRecordDataset("shots/train-*", spec)[0]).axes


def arrayrecord() -> None:
    """Files that the package array-record wrote, read, streamed, and copied to a TFRecord file."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter("rows.array_record", "group_size:7")
    records = [tfr.encode_example(row(number)) for number in range(ROWS)]
    for record in records:
        writer.write(record)
    writer.close()
    # From Python 3.12 on a forked worker cannot load a second copy of the package: docs/tfds.md.
    methods = METHODS if sys.version_info < (3, 12) else ["spawn", "forkserver"]
    check_loading("rows.array_record", methods)
    assert [*tfr.read_records("rows.array_record")] == records
    assert "row 3" in command("show", "rows.array_record", "-n", 4)
    command("salvage", "rows.array_record", "rows.tfrecord")
    check_loading("rows.tfrecord", ["fork"])


def main(name: str) -> None:
    others = OTHERS.union(*EXTRAS.values()) - EXTRAS.get(name, set())
    surplus = [module for module in others if importlib.util.find_spec(module)]
    assert surplus == [], surplus
    start = time.perf_counter()
    programs = (none, remote, arrow, tools, arrayrecord)
    {program.__name__: program for program in programs}[name]()
    print(f"{name}: all promises kept, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1])
