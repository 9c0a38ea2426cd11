"""No user, password or query of a URL, and no value of storage_options, stands where others read
it.

That is in errors and their pickles, tracebacks, logs, warnings, `repr`, names and contents of files
that are kept.

Covers shown.
"""

import contextlib
import io
import logging
import os
import pickle
import socket
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from odd_server import odd_server
from torch.utils.data import DataLoader

from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RecordIndex,
    ShardedTFRecordWriter,
    Source,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    build_manifest,
    encode_example,
    find_files,
    make_dataloader,
    read_records,
    shown,
    tfds,
)

pytest.importorskip("aiohttp")

SECRET = "s3ntinel"
OPTIONS = {"headers": {"X-Key": f"{SECRET}-of-options"}}
QUERIES = [
    "X-Amz-Signature={}",
    "X-Goog-Signature={}&X-Goog-Date=1",
    "sv=2024&sig={}%2B%2Fx",
    "token={}",
    "{}",
    "a=b%2F{}",
]
RECORDS = [encode_example({"id": number, "image": b"no image"}) for number in range(4)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, options in {"a.tfrecord": {}, "b.tfrecord.gz": {"compression_type": "GZIP"}}.items():
        with TFRecordWriter(folder / name, **options) as writer:
            for record in RECORDS:
                writer.write(record)
    damaged = bytearray((folder / "a.tfrecord").read_bytes())
    damaged[20] ^= 1
    (folder / "damaged.tfrecord").write_bytes(damaged)
    (folder / "text.tfrecord").write_text("no records at all\n" * 9)
    (folder / "bad.safetensors").write_bytes(b"x" * 100)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}

    def answer(request):
        name = request.path.partition("?")[0].rpartition("/")[2]
        if name.isdecimal():
            request.send(int(name), {})
        elif name == "closed":
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
        elif name == "short":
            request.send(200 if request.command == "HEAD" else 206, {}, b"x" * 100)
        elif (
            name not in files
            or "torch_index" in request.path
            or "index.safetensors" in request.path
        ):
            request.send(404, {})
        else:
            data = files[name]
            begin, end = request.asked(len(data))
            is_range = "Range" in request.headers
            headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"} if is_range else {}
            request.send(206 if is_range else 200, {"ETag": '"1"', **headers}, data[begin:end])

    with odd_server(answer) as server:
        yield server


@pytest.fixture(autouse=True)
def new_clients(take_client):
    take_client("obstore")


def urls(server, name):
    """An address with each place where a secret may stand."""
    yield f"{server.url.replace('//', f'//me:{SECRET}@')}/{name}"
    yield f"{server.url.replace('//', f'//{SECRET}@')}/{name}"
    for query in QUERIES:
        yield f"{server.url}/my data/{name}?{query.format(SECRET)}"
    yield f"{server.url}/{name}#access_token={SECRET}"


def told(call, level=logging.DEBUG):
    """All that somebody may read of a call: what it raised in every form, what it warned of, logged
    and printed.
    """
    log, out = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(level)
    error = None
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
            warnings.simplefilter("always")
            with contextlib.redirect_stderr(out):
                call()
    except Exception as raised:
        error = raised
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    texts = [log.getvalue(), out.getvalue(), *(str(one.message) for one in caught)]
    while error is not None:
        texts += [
            str(error),
            repr(error),
            repr(vars(error)),
            repr(error.args),
            *getattr(error, "__notes__", ()),
        ]
        # Once Dask was imported, an error pickles with its causes, which of an HTTP library may not.
        with contextlib.suppress(TypeError):
            pickled = pickle.dumps(error)
            texts += [pickled.decode("latin-1"), str(pickle.loads(pickled))]
        texts += traceback.format_exception(error)
        error = error.__cause__
    return texts


def check(call, *options):
    for text in told(call, *options):
        assert SECRET not in text


def fail(sample):
    raise RuntimeError("no good")


READERS = {
    "random": lambda url: TFRecordDataset(url, storage_options=OPTIONS)[2],
    "memory": lambda url: TFRecordDataset(url, index="memory")[3],
    "required": lambda url: TFRecordDataset(url, index="require"),
    "far": lambda url: TFRecordDataset(url)[99],
    "stream": lambda url: list(TFRecordIterableDataset(url, storage_options=OPTIONS)),
    "records": lambda url: list(read_records(url)),
    "skipping": lambda url: list(read_records(url, on_error="skip")),
    "compressed": lambda url: list(read_records(url, compression_type="ZLIB")),
    "index": lambda url: build_index(url),
    "load": lambda url: RecordIndex.load(url),
    "manifest": lambda url: build_manifest(url, out="manifest.safetensors"),
    "find": lambda url: find_files([url, url]),
    "glob": lambda url: find_files(url.replace("tfrecord", "*", 1)),
    "set": lambda url: TFRecordDataset(url.replace("tfrecord", "tfrecord@3", 1)),
    "folder": lambda url: find_files(url.replace(".tfrecord", "/", 1)),
    "features": lambda url: TFRecordDataset(url, {"no": FixedLenFeature((), torch.int64)})[0],
    "image": lambda url: TFRecordDataset(url, {"image": Image()})[1],
    "images": lambda url: next(iter(make_dataloader(url, 2, {"image": Image()}, num_workers=0))),
    "transform": lambda url: TFRecordDataset(
        url, {"id": FixedLenFeature((), torch.int64)}, transform=fail
    )[1],
    "locate": lambda url: print(TFRecordDataset(url).locate),
    "tfds": lambda url: tfds.load(url),
    "info": lambda url: tfds.info(url.rpartition("/")[0]),
    "write": lambda url: TFRecordWriter(url).close(),
    "shards": lambda url: ShardedTFRecordWriter(url, 2, storage_options=OPTIONS).close(),
    "show": lambda url: main(["show", url]),
    "verify": lambda url: main(["verify", url]),
    "command": lambda url: main(["index", url, "--output-dir", "indexes"]),
}
NAMES = [
    "a.tfrecord",
    "b.tfrecord.gz",
    "damaged.tfrecord",
    "text.tfrecord",
    "bad.safetensors",
    "missing.tfrecord",
]
NAMES += ["401", "403", "404", "412", "500", "429", "closed", "short"]


@pytest.mark.daily
@pytest.mark.parametrize("way", READERS)
def test_no_error_tells_it(server, tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    # each way has other pairs of a file and an address
    for number, name in enumerate(NAMES, [*READERS].index(way)):
        all_urls = [*urls(server, name), f"{server.url}/{name}"]
        url = all_urls[number % len(all_urls)]
        check(lambda url=url: READERS[way](url))
    kept = [
        path
        for folder in (Path(os.environ["XDG_CACHE_HOME"]), tmp_path)
        for path in folder.rglob("*")
    ]
    for path in kept:
        assert SECRET not in path.name
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


@pytest.mark.slow
def test_no_error_tells_an_option(server):
    for name in NAMES:
        # for obstore, and for fsspec
        for options in ({"headers": {"Authorization": SECRET}}, OPTIONS):
            check(
                lambda path=f"{server.url}/{name}", options=options: TFRecordDataset(
                    path, storage_options=options
                )
            )


@pytest.mark.parametrize(
    "url", ["http://me:{}@127.0.0.1:1/a.tfrecord", "http://127.0.0.1:1/a.tfrecord?sig={}"]
)
def test_hosts_that_are_not_there(url):
    for other in (
        url,
        url.replace("127.0.0.1:1", "no.such.host.invalid"),
        url.replace(":1/", ":pa/"),
    ):
        check(lambda other=other: TFRecordDataset(other.format(SECRET)))
    for other in ("nobody", "memory", "ftp", "simplecache::http"):
        # Their clients tell all they do to who asks for it.
        check(
            lambda other=other: TFRecordDataset(other + url.format(SECRET).removeprefix("http")),
            logging.INFO,
        )


def test_an_error_still_names_the_file(server):
    with pytest.raises(FileNotFoundError) as caught:
        TFRecordDataset(f"{server.url}/my data/missing.tfrecord?sig={SECRET}")
    assert caught.value.filename == f"{server.url}/my data/missing.tfrecord?..."
    with pytest.raises(FileNotFoundError) as caught:
        TFRecordDataset(f"http://me:{SECRET}@{server.url[7:]}/missing.tfrecord")
    assert caught.value.filename == f"http://...@{server.url[7:]}/missing.tfrecord"


@pytest.mark.slow  # torch waits five seconds for a worker after an error
def test_a_worker_tells_it_not(server):
    dataset = TFRecordDataset(f"{server.url}/a.tfrecord?sig={SECRET}", {"image": Image()})
    check(lambda: next(iter(DataLoader(dataset, 2, num_workers=1, multiprocessing_context="fork"))))


def test_what_is_shown(server):
    for url in urls(server, "a.tfrecord"):
        dataset = TFRecordDataset(url, {"source": Source("path")}, storage_options=OPTIONS)
        assert dataset.files == [url]
        assert dataset[0]["source"] == url
        for one in (
            dataset,
            TFRecordIterableDataset(url, storage_options=OPTIONS),
            make_dataloader(dataset, 2, num_workers=0),
        ):
            assert SECRET not in repr(one) + str(one)
        assert (
            SECRET not in repr(dataset.locate(1)) + str(dataset.locate(1))
            or dataset.locate(1)[0] == url
        )


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
def test_what_is_kept(server, tmp_path, monkeypatch, cached):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {"cache_dir": tmp_path / "blocks", "cache_bytes": 1 << 20} if cached else {}
    for url in urls(server, "a.tfrecord"):
        for index_dir in (None, tmp_path / "indexes"):
            dataset = TFRecordDataset(url, index_dir=index_dir, storage_options=OPTIONS, **options)
            assert [*dataset] == RECORDS
            assert list(TFRecordIterableDataset(url, **options)) == RECORDS
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name.endswith(".index.safetensors") for path in kept)
    for path in kept:
        assert SECRET not in str(path)
        assert SECRET.encode() not in path.read_bytes()


def test_an_index_is_found_again_by_another_signature(server):
    url = f"{server.url}/a.tfrecord?X-Amz-Signature="
    TFRecordDataset(url + SECRET)
    assert [*TFRecordDataset(url + "another", index="require")] == RECORDS
    with pytest.raises(Exception, match="expected an index at"):
        TFRecordDataset(f"{server.url}/a.tfrecord?id=other", index="require")


def test_a_manifest_holds_none(server, tmp_path):
    for url in urls(server, "a.tfrecord"):
        with pytest.raises(ValueError, match="a manifest tells its names to whoever has it"):
            build_manifest(url, tmp_path / "manifest.safetensors")
    assert os.listdir(tmp_path) == []
    build_manifest(f"{server.url}/a.tfrecord", tmp_path / "manifest.safetensors")
    assert [*TFRecordDataset(tmp_path / "manifest.safetensors")] == RECORDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/train-????.tfrecord", "s3://bucket/train-????.tfrecord"),
        ("az://box/a.tfrecord?sv=1&sig=x", "az://box/a.tfrecord?..."),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            "abfss://box@account.dfs.core.windows.net/a",
        ),
        ("https://a:b@c@host/x@10", "https://...@host/x@10"),
        ("hf://datasets/me/name@main/a", "hf://datasets/me/name@main/a"),
        ("/data/a?b=c@d", "/data/a?b=c@d"),
        (
            "at https://h/a?x=1, not 'https://h/b?y' (why?)",
            "at https://h/a?..., not 'https://h/b?...' (why?)",
        ),
        (
            "https://h/a b?x=1: record 3 at byte 7: no?",
            "https://h/a b?...: record 3 at byte 7: no?",
        ),
        ("simplecache::https://me:pw@h/a#t=1", "simplecache::https://...@h/a#..."),
    ],
)
def test_texts(text, expected):
    assert (
        shown.without_secrets(text)
        == shown.without_secrets(expected)
        == shown.printable(text)
        == expected
    )
