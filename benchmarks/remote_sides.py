"""The sides of `remote.py`, each in a process of its own.

A side is a class with a method for each task it has ("open", "batch", "epoch", "blocks", "stream");
a method yields lists of payloads, or of larger pieces where `has_records` is False. `prepare` is
not timed. Only the side's own packages are imported: the interpreter may have no others.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import queue
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from child import answer

__all__ = ["SIDES", "TASKS"]

TASKS = ("open", "batch", "epoch", "blocks", "stream")

BATCH = 64
PIECE = 4 << 20  # of a stream

Range = tuple[str, int, int]  # path below the server, first byte, end


class Side:
    """All sides know where the data is, and the ranges of its records.

    Args:
        url: Of the server.
        data: Of one data set: "folder", "files" with "name", "size", "starts" (of payloads),
            "lengths"; "indexes"; "tars".
    """

    has_records = True

    def __init__(self, url: str, data: dict[str, Any]) -> None:
        self.url = url
        self.folder = data["folder"]
        self.tars = [f"{url}/{self.folder}-tar/{name}" for name in data["tars"]]
        self.indexes = [f"/{self.folder}/{name}" for name in data["indexes"]]
        self.files = data["files"]
        self.ranges: list[Range] = [
            (f"/{self.folder}/{file['name']}", start, start + length)
            for file in data["files"]
            for start, length in zip(file["starts"], file["lengths"], strict=True)
        ]

    def prepare(self, task: str) -> None:
        """Get ready, before the clock starts."""


class Ours(Side):
    """torch_tfrecord as its users call it."""

    def prepare(self, task: str) -> None:
        import torch_tfrecord

        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # no index of a round before
        self.package = torch_tfrecord
        self.paths = f"{self.url}/{self.folder}/*.tfrecord"
        if task in ("batch", "epoch", "blocks"):
            self.dataset = torch_tfrecord.TFRecordDataset(self.paths)

    def open(self) -> Iterator[list[bytes]]:
        assert len(self.package.TFRecordDataset(self.paths)) == len(self.ranges)
        yield []

    def batch(self) -> Iterator[list[bytes]]:
        yield self.dataset.__getitems__(random.sample(range(len(self.dataset)), BATCH))

    def epoch(self, shuffle: object = True) -> Iterator[list[bytes]]:
        yield from self.package.make_dataloader(
            self.dataset, BATCH, shuffle=shuffle, seed=random.randrange(2**31)
        )

    def blocks(self) -> Iterator[list[bytes]]:
        yield from self.epoch("blocks")

    def stream(self) -> Iterator[list[bytes]]:
        yield from self.package.TFRecordIterableDataset(self.paths, batch_size=BATCH)


class Ranges(Side):
    """Reads ranges of bytes, and looks at nothing of them: `get` yields them as they come."""

    has_records = False

    def get(self, ranges: list[Range]) -> Iterator[list[bytes]]:
        raise NotImplementedError

    def batch(self) -> Iterator[list[bytes]]:
        yield from self.get(random.sample(self.ranges, BATCH))

    def epoch(self) -> Iterator[list[bytes]]:
        yield from self.get(random.sample(self.ranges, len(self.ranges)))

    def stream(self) -> Iterator[list[bytes]]:
        yield from self.get(
            [
                (f"/{self.folder}/{file['name']}", begin, min(begin + PIECE, file["size"]))
                for file in self.files
                for begin in range(0, file["size"], PIECE)
            ]
        )


class Bare(Ranges):
    """As fast as the server: threads that receive into one buffer each, and look at nothing."""

    connections = 64

    def __init__(self, url: str, data: dict[str, Any]) -> None:
        super().__init__(url, data)
        self.jobs: queue.SimpleQueue[Range] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for _ in range(self.connections):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        address = urllib.parse.urlsplit(self.url)
        client = socket.create_connection((address.hostname, address.port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(PIECE))
        while True:
            path, begin, end = self.jobs.get()
            asked = f"Range: bytes={begin}-{end - 1}\r\n" if end else ""
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: bare\r\n{asked}\r\n".encode())
            head, _, body = self._head(client)
            size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            if size > len(body):
                client.recv_into(buffer, size - len(body), socket.MSG_WAITALL)
            self.done.put(buffer[:size])

    def _head(self, client: socket.socket) -> tuple[bytes, bytes, bytes]:
        received = b""
        while b"\r\n\r\n" not in received:
            received += client.recv(4096) or os._exit(1)  # the server ended the connection
        return received.partition(b"\r\n\r\n")

    def get(self, jobs: list[Range]) -> Iterator[list[bytes]]:
        left, under_way = iter(jobs), 0
        try:
            for job in itertools.islice(left, self.connections):
                self.jobs.put(job)
                under_way += 1
            while under_way:
                arrived = self.done.get()
                under_way -= 1
                for job in itertools.islice(left, 1):
                    self.jobs.put(job)
                    under_way += 1
                yield [arrived]
        finally:  # an epoch that was ended
            for _ in range(under_way):
                self.done.get()

    def open(self) -> Iterator[list[bytes]]:
        yield from self.get([(f"/{self.folder}/", 0, 0)])
        yield from self.get([(path, 0, 0) for path in self.indexes])


class Bare128(Bare):
    """As `Bare`, more at once."""

    connections = 128


class Bare32(Bare):
    """As `Bare`, fewer at once."""

    connections = 32


class CatRanges(Ranges):
    """fsspec: the ranges of a batch in one call, 64; of the stream 16 pieces."""

    def prepare(self, task: str) -> None:
        import fsspec

        self.filesystem = fsspec.filesystem("http")
        self.at_once = 16 if task == "stream" else BATCH

    def get(self, ranges: list[Range]) -> Iterator[list[bytes]]:
        for begin in range(0, len(ranges), self.at_once):
            paths, begins, ends = zip(*ranges[begin : begin + self.at_once], strict=True)
            urls = [self.url + path for path in paths]
            yield self.filesystem.cat_ranges(urls, begins, ends, on_error="raise")


class Obstore(Ranges):
    """obstore by itself: a request for each range, 64 at once over all files."""

    def prepare(self, task: str) -> None:
        from obstore.store import HTTPStore

        self.store = HTTPStore.from_url(self.url, client_options={"allow_http": True})

    def get(self, ranges: list[Range]) -> Iterator[list[bytes]]:
        """Each as it arrives: what is held no longer than needed is memory that the next one
        takes.
        """
        import obstore

        loop = asyncio.new_event_loop()

        async def one(path: str, begin: int, end: int) -> Any:
            return await obstore.get_range_async(self.store, path.lstrip("/"), start=begin, end=end)

        async def next_ones(tasks: set[Any]) -> tuple[set[Any], set[Any]]:
            tasks |= {
                loop.create_task(one(*piece))
                for piece in itertools.islice(left, BATCH - len(tasks))
            }
            return await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

        left, tasks, arrived = iter(ranges), set(), 0
        try:
            while arrived < len(ranges):
                done, tasks = loop.run_until_complete(next_ones(tasks))
                arrived += len(done)
                yield [task.result() for task in done]
        finally:
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.close()


class WebDataset(Side):
    """WebDataset's reader of tars of the same bytes: a curl for each shard; shuffled by a buffer of
    1,000.
    """

    num_workers = 0

    def prepare(self, task: str) -> None:
        import webdataset

        self.package = webdataset

    def _read(self, buffer: int) -> Iterator[list[bytes]]:
        shards = self.package.SimpleShardList(self.tars)
        stages = [shards, self.package.split_by_worker, self.package.tarfile_to_samples()]
        stages += [self.package.shuffle(buffer)] if buffer else []
        stages += [self.package.to_tuple("bin"), self.package.batched(BATCH, collation_fn=None)]
        dataset = self.package.DataPipeline(*stages)
        loader = self.package.WebLoader(dataset, batch_size=None, num_workers=self.num_workers)
        for batch in loader:
            yield [payload for (payload,) in batch]

    def epoch(self) -> Iterator[list[bytes]]:
        yield from self._read(1000)

    def stream(self) -> Iterator[list[bytes]]:
        yield from self._read(0)


class WebDataset4(WebDataset):
    """As `WebDataset`, with four workers."""

    num_workers = 4


class S3Connector(Ranges):
    """s3torchconnector, to which the same server is S3: ranges of objects one after another, or
    objects whole.
    """

    def prepare(self, task: str) -> None:
        from s3torchconnector import (
            S3ClientConfig,
            S3IterableDataset,
            S3MapDataset,
            S3ReaderConstructor,
        )

        options: dict[str, Any] = {"region": "us-east-1", "endpoint": self.url}
        options["s3client_config"] = S3ClientConfig(force_path_style=True, unsigned=True)
        prefix = f"s3://{self.folder}/{Path(self.files[0]['name']).stem.split('-')[0]}-"
        if task == "stream":
            self.objects = S3IterableDataset.from_prefix(prefix, **options)
        else:
            reader = S3ReaderConstructor.range_based(buffer_size=0)  # else 8 MiB around each record
            dataset = S3MapDataset.from_prefix(prefix, reader_constructor=reader, **options)
            self.readers = {
                f"/{self.folder}/{dataset[i].key}": dataset[i] for i in range(len(dataset))
            }

    def get(self, ranges: list[Range]) -> Iterator[list[bytes]]:
        for path, begin, end in ranges:
            reader = self.readers[path]
            reader.seek(begin)
            yield [reader.read(end - begin)]

    def stream(self) -> Iterator[list[bytes]]:
        for reader in self.objects:
            yield [reader.read()]


SIDES = {
    "torch_tfrecord": Ours,
    "bare client, 32": Bare32,
    "bare client, 64": Bare,
    "bare client, 128": Bare128,
    "fsspec cat_ranges": CatRanges,
    "obstore, 64 at once": Obstore,
    "WebDataset": WebDataset,
    "WebDataset, 4 workers": WebDataset4,
    "s3torchconnector": S3Connector,
}


def timed(side: Side, task: str, most: float) -> dict[str, Any]:
    """One round: seconds, bytes and records; ended after `most` seconds."""
    begin = time.perf_counter()
    size, numbers, whole = 0, [], True
    arriving = getattr(side, task)()
    for payloads in arriving:
        size += sum(map(len, payloads))
        if side.has_records:
            numbers += [int.from_bytes(payload[:8], "little") for payload in payloads]
        if time.perf_counter() - begin > most:
            whole = False
            break
    seconds = time.perf_counter() - begin
    arriving.close()
    if side.has_records and task not in ("open", "batch") and whole:
        assert sorted(numbers) == [*range(len(side.ranges))], "each record once"
    return {"seconds": seconds, "bytes": size, "whole": whole}


def functions() -> dict[str, Callable[..., Any]]:
    name, url, spec = sys.argv[1:]
    described = json.loads(Path(spec).read_text())
    sides = {data: SIDES[name](url, each) for data, each in described.items()}
    return {
        "tasks": lambda data: [task for task in TASKS if hasattr(sides[data], task)],
        "prepare": lambda data, task: sides[data].prepare(task),
        "run": lambda data, task, most: timed(sides[data], task, most),
    }


if __name__ == "__main__":
    answer(functions)
