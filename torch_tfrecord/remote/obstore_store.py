"""A bucket, or a host's files, by `obstore`: the fast way, also in a process that was forked."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any, cast

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.files import Access, RemoteInfo
from torch_tfrecord.remote.obstore_options import ObstoreConfig
from torch_tfrecord.remote.store import PASSING_STATUSES, Store, StoreError, part_bytes

__all__ = [
    "REQUEST_SECONDS",
    "ObstoreProcess",
    "ObstoreStore",
    "answer_requests",
]

CONNECT_SECONDS = 10
STALL_SECONDS = 20  # in which no byte comes
REQUEST_SECONDS = 300  # for a whole answer
_REGION_SECONDS = 5

_STATUS = re.compile(r"status code: (\d{3})")
_NO_RANGES = "Range request not supported"
_LISTED_AT_ONCE = 1000
_PARTS_AT_ONCE = 4
_UPLOAD_RETRIES = 5  # a part's
_MOST_THREADS = 128  # as many requests as `requests` ever has in flight


class ObstoreStore:
    """See `Store`.

    Args:
        module: `obstore`, of this process.
        root: The path before each name: ``s3://bucket/``.
        config: What makes the client.
        access: For errors.
    """

    checks_etag = True

    def __init__(self, module: Any, root: str, config: ObstoreConfig, access: Access) -> None:
        self._module, self._root, self._access = module, root, access
        self._client = _client(module, config)
        self._config = config

    def path_of(self, name: str) -> str:
        """The whole path of a name, with its scheme."""
        return self._root + name

    def info(self, name: str) -> RemoteInfo:
        """See `Store`."""
        with self._translated():
            try:
                return _info(self._module.head(self._client, name))
            except FileNotFoundError:
                if not self._root.startswith("http"):
                    below = self._module.list(self._client, name.rstrip("/"), chunk_size=1)
                    if next(iter(below), None):  # a folder is what has something below it
                        return RemoteInfo(None, is_folder=True)
                raise

    def read_range(
        self, name: str, begin: int, end: int, etag: str | None = None
    ) -> bytes | memoryview:
        """The bytes of a range of a file."""
        try:
            answer = self._module.get(self._client, name, options={"range": (begin, end)})
            found = answer.meta["e_tag"]
            if etag is None or found is None or found == etag:
                return memoryview(answer.bytes())
        except Exception as error:  # not by `_translated`, which takes longer
            raise self._failure(error) from None
        raise CorruptRecordError(
            f"expected the file that was opened, got another one in its place (ETag {found}, not {etag})",
            path=self.path_of(name),
        )

    def listing(self, prefix: str, recursive: bool = False) -> list[tuple[str, RemoteInfo]]:
        """See `Store`."""
        folder = prefix.rstrip("/") or None
        with self._translated():
            if recursive:
                stream = self._module.list(self._client, folder, chunk_size=_LISTED_AT_ONCE)
                return [(entry["path"], _info(entry)) for entries in stream for entry in entries]
            found = self._module.list_with_delimiter(self._client, folder)
        folders = [
            (name.rstrip("/"), RemoteInfo(None, is_folder=True))
            for name in found["common_prefixes"]
        ]
        return [*folders, *((entry["path"], _info(entry)) for entry in found["objects"])]

    def upload(self, name: str, file: IO[bytes], size: int) -> RemoteInfo:
        """Write all of a local file."""
        # A part that fails is sent again by the client: `transfers` would begin with the first.
        client = _client(self._module, self._config, max_retries=_UPLOAD_RETRIES)
        with self._translated():
            found = self._module.put(
                client, name, file, chunk_size=part_bytes(size), max_concurrency=_PARTS_AT_ONCE
            )
        return RemoteInfo(size, found["e_tag"])

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._translated():
            self._module.delete(self._client, name)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, OSError):  # there is no such file, or the local one of an upload fails
            return error
        text, kind = str(error), type(error).__name__
        status = int(found[1]) if (found := _STATUS.search(text)) else None
        is_passing = (
            status in PASSING_STATUSES
            if status
            else kind in ("GenericError", "NotSupportedError", "JoinError")
            and _NO_RANGES not in text
        )
        return StoreError(_reason(text, status, self._access), status=status, is_passing=is_passing)


def _reason(text: str, status: int | None, access: Access) -> str:
    """The client's error in one line: the first of those that describe the request."""
    if status is not None:
        return f"status {status}"
    for words, reason in (
        ("TimedOut", "no answer in time"),
        ("Timeout", "no answer in time"),
        ("ConnectionReset", "the connection was reset"),
        ("IncompleteBody", "the answer was cut"),
        ("IncompleteMessage", "the connection was closed"),
        ("ConnectionRefused", "the connection was refused"),
        (_NO_RANGES, "the server does not send ranges, as python -m http.server: take another one"),
    ):
        if words in text:
            return reason
    return access.without_secrets(text.partition("\n")[0])[:300]


def _info(entry: Any) -> RemoteInfo:
    time = entry["last_modified"]
    return RemoteInfo(
        entry["size"], entry["e_tag"], nanoseconds(time) if isinstance(time, datetime) else 0
    )


def nanoseconds(time: datetime) -> int:
    """Since the epoch; 0 for the epoch itself, which means no time."""
    return int(time.timestamp() * 1_000_000) * 1000


# `transfers` asks again
def _client(module: Any, config: ObstoreConfig, max_retries: int = 0) -> Any:
    options = {
        **config.client,
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "read_timeout": f"{STALL_SECONDS}s",
        "timeout": f"{REQUEST_SECONDS}s",
    }
    more: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": max_retries}}
    kind = getattr(module.store, config.kind)
    if config.kind == "HTTPStore":
        return kind.from_url(config.place, **more)
    client = kind(config.place, **config.config, **more)
    if (
        config.kind == "S3Store"
        and "region" not in client.config
        and "endpoint" not in client.config
    ):
        # A request to another region than the bucket's is refused, and few users name it.
        region = bucket_region(config.place)
        return kind(config.place, **config.config, region=region, **more) if region else client
    return client


def bucket_region(bucket: str) -> str | None:
    """The region of a bucket of Amazon's, which its host tells anybody; None where it cannot be
    asked.
    """
    request = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_REGION_SECONDS) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:  # 301 and 403 have it, too
        headers = error.headers
    except (OSError, ValueError):
        return None
    region: str | None = headers.get("x-amz-bucket-region")
    return region


# obstore's threads do not survive a fork (its maintainers: "not fork safe", obstore#441; tokio's
# runtime documents the same), and a child that waits for them hangs. So where it was used before the
# fork, a new process uses it, which this one asks through a socket and which ends with it.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from torch_tfrecord.remote.obstore_store import answer_requests
answer_requests()
"""


class ObstoreProcess:
    """Makes stores for a process that was forked from one that has used `obstore`: see `Store`.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps([*map(str, sys.path)])],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
                setsigmask=[signal.SIGINT],  # a Ctrl-C is for those who ask
            )
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._waiting: dict[int, Future[Any]] | None = {}  # None once the process has ended
        threading.Thread(target=self._receive, name="tfrecord-obstore", daemon=True).start()

    def __call__(self, root: str, config: ObstoreConfig, access: Access) -> Store:
        """The store of a bucket or host: see `ObstoreStore`."""
        number = self._ask("", root, config, access.without_cache())
        return cast("Store", _ForkedStore(self._ask, number, root))

    def _ask(self, method: str, *arguments: object) -> Any:
        """Call a method of a store, whose number is the first argument; without a name, make one."""
        future: Future[Any] = Future()
        with self._lock:
            if self._waiting is None:
                raise _ended()
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                self._pipe.send((number, method, arguments))
            except OSError:
                raise _ended() from None
        return future.result()

    def _receive(self) -> None:
        try:
            while True:
                number, kind, answer = self._pipe.recv()
                found: Any = self._read(answer) if kind == "bytes" else answer
                future = (self._waiting or {}).pop(number)
                if kind == "error":
                    future.set_exception(found)
                else:
                    future.set_result(found)
        except Exception as error:  # whatever it is, nobody waits for answers any more
            with self._lock:
                left, self._waiting = self._waiting or {}, None
            for future in left.values():
                future.set_exception(_ended(f": {error}"))

    def _read(self, num_bytes: int) -> memoryview:
        """Bytes that come after an answer, at once into their place: `recv_bytes` takes four times
        as long.
        """
        data, done = memoryview(bytearray(num_bytes)), 0
        while done < num_bytes:
            got = os.readv(self._pipe.fileno(), [data[done:]])
            if not got:
                raise EOFError
            done += got
        return data


def _ended(reason: str = "") -> StoreError:
    return StoreError(
        f"the process that uses obstore for this forked one has ended{reason}", is_passing=False
    )


class _ForkedStore:
    """The methods of a store of the process that is asked."""

    checks_etag = True

    def __init__(self, ask: Callable[..., Any], number: int, root: str) -> None:
        self._ask, self._number, self._root = ask, number, root

    def path_of(self, name: str) -> str:
        return self._root + name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._ask, method, self._number)

    def upload(self, name: str, file: IO[bytes], size: int) -> Any:
        place = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if not os.path.exists(place):
            text = "needs /proc after a fork: write in a process that was started by spawn"
            raise StoreError(text, is_passing=False)
        return self._ask("upload", self._number, name, place, size)


def answer_requests() -> None:
    """Be the process that is asked, until nobody has the other end of standard input any more."""
    pipe, lock = Connection(0), threading.Lock()
    module, stores = importlib.import_module("obstore"), list[ObstoreStore]()

    def answer(number: int, method: str, arguments: Any) -> None:
        try:
            found = _call(module, stores, method, *arguments)
            kind = "bytes" if isinstance(found, memoryview) else "value"
        except Exception as error:
            kind, found = "error", error
        with lock:
            pipe.send((number, kind, len(found) if kind == "bytes" else found))
            while kind == "bytes" and found:
                found = found[os.write(pipe.fileno(), found) :]

    threads = ThreadPoolExecutor(_MOST_THREADS)
    try:
        while True:
            threads.submit(answer, *pipe.recv())
    except (EOFError, OSError):
        os._exit(0)


def _call(module: Any, stores: list[ObstoreStore], method: str, *arguments: Any) -> Any:
    if not method:
        stores.append(ObstoreStore(module, *arguments))
        return len(stores) - 1
    number, *rest = arguments
    if method == "upload":
        name, place, size = rest
        with open(place, "rb") as file:  # noqa: PTH123
            return stores[number].upload(name, file, size)
    return getattr(stores[number], method)(*rest)
