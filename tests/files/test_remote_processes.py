"""Processes and remote data: each makes its own clients, also where the parent had read before it
forked.

Covers files/stores.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback

import pytest
from range_server import range_server
from torch.utils.data import DataLoader

from torch_tfrecord import TFRecordDataset, TFRecordIterableDataset, TFRecordWriter
from torch_tfrecord.files import stores

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
    found = [f"{server}/x-{shard:05d}-of-00002{query}" for shard in range(2)]
    assert type(stores.store_of(found[0])[0]).__name__ == ("HttpStore" if query else "ObstoreStore")
    return found


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
def test_forked_after_the_parent_has_read(paths):
    dataset = TFRecordDataset(paths, index="memory")
    assert dataset.__getitems__([1, 70]) == [ALL[1], ALL[70]]
    for _ in range(3):
        assert in_child(lambda: dataset.__getitems__([5, 41, 79]) == [ALL[5], ALL[41], ALL[79]])
    assert in_child(lambda: [*TFRecordIterableDataset(paths)] == ALL)
    assert dataset[7] == ALL[7]


@pytest.mark.slow
@needs_fork
def test_a_child_of_a_child(paths):
    dataset = TFRecordDataset(paths, index="memory")
    assert dataset[1] == ALL[1]
    assert in_child(
        lambda: (
            dataset[2] == ALL[2] and in_child(lambda: dataset[3] == ALL[3]) and dataset[4] == ALL[4]
        )
    )


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
def test_the_childs_module_is_another_one_and_nobody_elses():
    pytest.importorskip("obstore")
    own = stores.obstore_module()
    assert own is sys.modules["obstore"]

    def check():
        mine = stores.obstore_module()
        return mine is not own and sys.modules["obstore"] is own and stores.obstore_module() is mine

    assert in_child(check)
    assert stores.obstore_module() is own


@needs_fork
def test_without_a_copy_of_the_module_the_child_reads_by_fsspec(server, monkeypatch):
    pytest.importorskip("obstore")
    pytest.importorskip("aiohttp")

    def no_copy():
        raise ImportError("no executable memory")

    monkeypatch.setattr(stores, "_own_copy", no_copy)
    path = f"{server}/x-00000-of-00002"
    dataset = TFRecordDataset(path, index="memory")
    assert dataset[1] == ALL[1]
    assert in_child(
        lambda: type(stores.store_of(path)[0]).__name__ == "HttpStore" and dataset[2] == ALL[2]
    )


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


@pytest.mark.daily
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_started_workers(paths, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    dataset = TFRecordDataset(paths, index="memory")
    assert dataset[0] == ALL[0]
    loader = DataLoader(
        dataset, batch_size=10, collate_fn=list, num_workers=2, multiprocessing_context=method
    )
    assert [record for batch in loader for record in batch] == ALL
