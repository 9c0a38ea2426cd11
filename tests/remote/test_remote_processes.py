"""Processes and remote data: each makes its own clients, also where the parent had read before it
forked.

Covers remote/stores.
"""

import contextlib
import gc
import importlib
import os
import signal
import threading
import traceback
from pathlib import Path
from pkgutil import resolve_name

import pytest
from jobs import run_job
from odd_server import odd_server
from range_server import range_server
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CorruptRecordError,
    RemoteError,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    errors,
    per_process,
)
from torch_tfrecord.files import Access, RemoteInfo, open_file

NUM_RECORDS = 40
ALL = [b"%04d" % number * 500 for number in range(2 * NUM_RECORDS)]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for shard in range(2):
        with TFRecordWriter(folder / f"x-{shard:05d}-of-00002") as writer:
            for record in ALL[shard * NUM_RECORDS : (shard + 1) * NUM_RECORDS]:
                writer.write(record)
    with range_server(folder, latency=0.002) as url:
        yield url


@pytest.fixture(params=["obstore", "fsspec"])
def paths(request, server):
    """Of the files; what has a query goes to fsspec, in every process."""
    pytest.importorskip({"fsspec": "aiohttp"}.get(request.param, request.param))
    query = "?by=fsspec" if request.param == "fsspec" else ""
    return [f"{server}/x-{shard:05d}-of-00002{query}" for shard in range(2)]


def in_child(check):
    """Whether the check passes in a forked process, within a minute."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # also where it stands in code that is not Python's
            code = 0 if check() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
@needs_fork
def test_a_child_leaves_the_connections_of_a_client_that_was_dropped(tmp_path, monkeypatch):
    """fsspec's, whose sessions share the parent's epoll."""
    pytest.importorskip("aiohttp")
    gc.collect()  # what other tests have dropped, such as iterators that would wait for threads of the parent
    with TFRecordWriter(tmp_path / "a") as writer:
        for record in ALL[:4]:
            writer.write(record)
    data = (tmp_path / "a").read_bytes()

    def answer(request):  # by a connection that stays
        begin, end = request.asked(len(data))
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}", "ETag": '"1"'}
        request.send(206 if "Range" in request.headers else 200, headers, data[begin:end])

    # else it waits five minutes
    monkeypatch.setattr("torch_tfrecord.remote.fsspec_store.REQUEST_SECONDS", 2)
    monkeypatch.setattr("torch_tfrecord.remote.transfers.MOST_ATTEMPTS", 1)
    options = {"storage_options": {"headers": {"X-Key": "1"}}, "index": "memory"}
    with odd_server(answer) as server:
        assert TFRecordDataset(f"{server.url}/a", **options)[1] == ALL[1]
        # as after many other options
        resolve_name("torch_tfrecord.remote.stores._STORES").get().found.clear()
        other = TFRecordDataset(f"{server.url}/a?by=fsspec", index="memory")
        assert in_child(lambda: other[2] == ALL[2] and gc.collect() >= 0)
        assert TFRecordDataset(f"{server.url}/a", **options)[3] == ALL[3]


@pytest.mark.slow
@needs_fork
def test_forked_after_the_parent_has_read(paths):
    dataset = TFRecordDataset(paths, index="memory")
    assert dataset.__getitems__([1, 70]) == [ALL[1], ALL[70]]
    for _ in range(3):
        assert in_child(lambda: dataset.__getitems__([5, 41, 79]) == [ALL[5], ALL[41], ALL[79]])
    assert in_child(lambda: [*TFRecordIterableDataset(paths)] == ALL)
    assert dataset[7] == ALL[7]


@needs_fork
def test_an_iterator_goes_on_on_both_sides(paths):
    stream = iter(TFRecordIterableDataset(paths))
    assert [next(stream) for _ in range(3)] == ALL[:3]
    assert in_child(lambda: [*stream] == ALL[3:])
    assert [*stream] == ALL[3:]


@pytest.mark.daily
@needs_fork
def test_forked_while_threads_read(paths):
    dataset = TFRecordDataset(paths, index="memory")
    is_ended = threading.Event()

    def read():
        while not is_ended.is_set():
            dataset.__getitems__([*range(0, 80, 7)])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert all(
            in_child(lambda: dataset.__getitems__([0, 60]) == [ALL[0], ALL[60]]) for _ in range(5)
        )
    finally:
        is_ended.set()
        for thread in threads:
            thread.join(200)


@needs_fork
def test_a_child_reads_and_lists_by_obstore_as_its_parent_does(server):
    pytest.importorskip("obstore")
    path = f"{server}/x-00000-of-00002"

    def answers():
        found = []
        for call in (
            lambda: open_file(path).read(70_000, 3),
            lambda: open_file(f"{path}.no"),
            lambda: open_file(path, info=RemoteInfo(90_000, "another")).read(9, 3),
        ):
            try:
                found.append(call())
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    here = answers()
    assert [kind for kind, _ in here[1:]] == [FileNotFoundError, CorruptRecordError]
    assert len(here[0]) == 70_000
    assert in_child(lambda: answers() == here)


@needs_fork
def test_the_process_of_a_child_ends(server):
    """When it is killed, that is an error; after the child, nothing stays."""
    pytest.importorskip("obstore")
    psutil = pytest.importorskip("psutil")
    dataset = TFRecordDataset(f"{server}/x-00000-of-00002", index="memory")
    assert dataset[1] == ALL[1]
    ours, theirs = os.pipe()

    def check():
        assert dataset[2] == ALL[2]
        (process,) = psutil.Process().children()
        os.write(theirs, b"%d" % process.pid)
        process.kill()
        process.wait(60)
        for _ in range(2):  # also whoever asks later
            with pytest.raises(RemoteError, match="the process that uses obstore for this forked"):
                dataset[3]
        return True

    def leave():
        assert dataset[2] == ALL[2]
        os.write(theirs, b"%d" % psutil.Process().children()[0].pid)
        return True

    for task in (check, leave):
        assert in_child(task)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int(os.read(ours, 20))).wait(60)
    os.close(ours)
    os.close(theirs)


def test_an_obstore_that_does_not_load_is_told(server, monkeypatch, take_client):
    """In one warning with the reason, not in silence."""
    take_client("obstore")
    import_module = importlib.import_module

    def broken(name):
        if name == "obstore":
            raise ImportError(f"{name}: undefined symbol: PyFoo")
        return import_module(name)

    monkeypatch.setattr(per_process, "_loaded", {})
    monkeypatch.setattr(importlib, "import_module", broken)
    errors.warn_once.cache_clear()
    text = r"^obstore is installed, but does not load \(obstore: undefined symbol: PyFoo\): fsspec"
    with pytest.warns(RuntimeWarning, match=text):
        assert TFRecordDataset(f"{server}/x-00000-of-00002", index="memory")[1] == ALL[1]
    assert TFRecordDataset(f"{server}/x-00001-of-00002", index="memory")[0]  # and not again


@pytest.mark.slow
def test_options_that_obstore_does_not_take_are_told(monkeypatch, take_client):
    take_client("s3fs")

    def refuse(root, config, access):
        raise ValueError("no key of this kind: top-s3cret")

    monkeypatch.setattr("torch_tfrecord.remote.stores.obstore_stores", lambda: refuse)
    errors.warn_once.cache_clear()
    text = r"^s3://bucket: obstore: no key of this kind: \.\.\.: fsspec reads in its place$"
    options = {"key": "me", "secret": "top-s3cret", "endpoint_url": "http://127.0.0.1:1"}
    with pytest.warns(RuntimeWarning, match=text), pytest.raises(RemoteError, match="EndpointConn"):
        open_file("s3://bucket/x", Access(options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fork", marks=pytest.mark.slow),
        pytest.param("spawn", marks=pytest.mark.daily),
        pytest.param("forkserver", marks=pytest.mark.daily),
    ],
)
def test_a_bucket_by_the_extra_alone(method):
    """Without s3fs and aiohttp, workers read and write as their parent does."""
    pytest.importorskip("obstore")
    boto3, moto_server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"aws_access_key_id": "somebody", "aws_secret_access_key": "s3cret"}
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="alone")
        done = run_job(Path(__file__).with_name("bucket_job.py"), url, method)
        client.close()
    finally:
        server.stop()
    told = [line for line in done.stderr.splitlines() if "DataLoader will create" not in line]
    assert (done.returncode, told) == (0, []), done.stderr
    name = {"fork": "_ForkedStore"}.get(method, "ObstoreStore")
    assert done.stdout.splitlines() == [f"True {{'{name}'}}", "[0, 20]"]


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("style", ["map", "stream"])
def test_forked_workers(paths, style):
    if style == "map":
        dataset = TFRecordDataset(paths, index="memory")
        assert dataset[0] == ALL[0]
    else:
        dataset = TFRecordIterableDataset(paths)
        assert next(iter(dataset)) == ALL[0]
    batch_size = 10 if style == "map" else None
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=list,
        num_workers=2,
        multiprocessing_context="fork",
        timeout=120,
    )
    records = [record for batch in loader for record in (batch if style == "map" else [batch])]
    assert sorted(map(bytes, records)) == ALL
