"""A file system of fsspec's: for every scheme that it knows."""

from __future__ import annotations

import html
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from functools import cached_property
from itertools import chain
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urljoin

from torch_tfrecord.files import Access, RemoteInfo
from torch_tfrecord.remote.obstore_store import REQUEST_SECONDS, nanoseconds
from torch_tfrecord.remote.store import PASSING_STATUSES, StoreError, part_bytes

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FsspecStore", "HttpStore", "fsspec_filesystem"]

# File systems that threads may use at once, beside those that are written for many requests.
_SAFE_FROM_THREADS = frozenset({"memory", "hf", "local", "file"})
# Where a folder is a part of names, and making one may make a bucket.
_OBJECT_STORES = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oss", "obs", "cos", "oci"}
)
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "last_commit", "created")
# Their errors of the connection have no class in common.
_CLIENTS = frozenset({"aiohttp", "botocore", "requests", "httpx", "urllib3"})


def fsspec_filesystem(path: str, access: Access) -> tuple[AbstractFileSystem, str]:
    """The fsspec file system of a path, and the path as that file system calls it."""
    import fsspec.core  # takes 50 ms, and most paths are local

    return fsspec.core.url_to_fs(path, **access.storage_options)


class FsspecStore:
    """See `Store`.

    Args:
        filesystem: This process's.
        access: For errors.
    """

    checks_etag = False

    def __init__(self, filesystem: AbstractFileSystem, access: Access) -> None:
        self._filesystem, self._access = filesystem, access
        protocol = filesystem.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._has_folders = not names & _OBJECT_STORES
        is_safe = filesystem.async_impl or bool(names & _SAFE_FROM_THREADS)
        self._turn = None if is_safe else threading.Lock()

    def path_of(self, name: str) -> str:
        """The whole path of a name, with its scheme."""
        return str(self._filesystem.unstrip_protocol(name))

    def info(self, name: str) -> RemoteInfo:
        """See `Store`."""
        return _info(self._ask("info", name))

    def read_range(
        self, name: str, begin: int, end: int, etag: str | None = None
    ) -> bytes | memoryview:
        """The bytes of a range of a file; no change of it is noticed."""
        return bytes(self._ask("cat_file", name, start=begin, end=end))

    def listing(self, prefix: str, recursive: bool = False) -> list[tuple[str, RemoteInfo]]:
        """See `Store`."""
        # Its memory of a folder may be older than the files there.
        self._filesystem.invalidate_cache()
        if recursive:
            found: Mapping[str, Any] = self._ask("find", prefix, detail=True)
            return [(name, _info(entry)) for name, entry in found.items()]
        return [(entry["name"], _info(entry)) for entry in self._ask("ls", prefix, detail=True)]

    def upload(self, name: str, file: IO[bytes], size: int) -> RemoteInfo:
        """Write all of a local file; also where folders are no mere part of names."""
        with self._translated():
            if self._has_folders:
                self._filesystem.makedirs(name.rpartition("/")[0], exist_ok=True)
            target = self._filesystem.open(
                name, "wb", autocommit=False, block_size=part_bytes(size)
            )
            try:
                shutil.copyfileobj(file, target, part_bytes(size))
                target.close()
                target.commit()
            except BaseException:
                target.closed = True  # or it would finish when it is dropped
                with suppress(Exception):
                    target.discard()
                raise
            self._filesystem.invalidate_cache()
        return self.info(name)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._ask("rm_file", name)

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self._translated(), self._turn or nullcontext():
            if self._filesystem.async_impl and not self._filesystem.asynchronous:
                return self._await(getattr(self._filesystem, f"_{method}"), *args, **kwargs)
            return getattr(self._filesystem, method)(*args, **kwargs)

    def _await(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from fsspec.asyn import sync  # no request may take for ever

        return sync(self._filesystem.loop, call, *args, timeout=REQUEST_SECONDS, **kwargs)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (
            FileNotFoundError,
            PermissionError,
            IsADirectoryError,
            NotADirectoryError,
            StoreError,
        ):
            raise
        except Exception as error:
            raise _failure(error, self._access) from None


def _failure(error: Exception, access: Access) -> StoreError:
    # Each client calls it by a name of its own, and some say it as text.
    said = (getattr(error, name, None) for name in ("status", "code", "status_code"))
    status = next((int(one) for one in said if one and str(one).isdecimal()), None)
    headers = getattr(error, "headers", None)
    after = headers.get("Retry-After") if isinstance(headers, Mapping) else None
    if status is not None:
        reason, is_passing = f"status {status}", status in PASSING_STATUSES
    else:
        reason = access.without_secrets(f"{type(error).__name__}: {error}")[:300]
        is_client = type(error).__module__.partition(".")[0] in _CLIENTS
        is_passing = is_client or isinstance(error, (OSError, EOFError))
    return StoreError(
        reason,
        status=status,
        is_passing=is_passing,
        retry_after=float(after) if after and after.replace(".", "", 1).isdecimal() else None,
    )


def _info(entry: Mapping[str, Any]) -> RemoteInfo:
    size = entry.get("size")
    etag = next(
        (str(value) for name, value in entry.items() if name.lower() == "etag" and value), None
    )
    time = next((time for name in _TIMES if (time := _nanoseconds(entry.get(name)))), 0)
    return RemoteInfo(
        None if size is None else int(size), etag, time, entry.get("type") == "directory"
    )


def _nanoseconds(time: object) -> int:
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.replace("Z", "+00:00"))
        except ValueError:
            return 0
    if isinstance(time, datetime):
        return nanoseconds(time if time.tzinfo else time.replace(tzinfo=timezone.utc))
    return int(time * 1_000_000) * 1000 if isinstance(time, (int, float)) and time > 0 else 0


# fsspec would drop it in a forked child, which takes its connections from the parent's epoll: an
# answer to the parent would never be seen.
_OWN = {"skip_instance_cache": True}
_MOST_REDIRECTS = 10
_MOST_PAGE_BYTES = 1 << 24
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)""", re.IGNORECASE)
# Options that say who the user is: they are for the host that the user named.
_SAYS_WHO = {"auth", "cookie_jar", "cookies", "get_client", "headers", "params"}


class HttpStore(FsspecStore):
    """See `Store`."""

    checks_etag = True

    def __init__(self, filesystem: AbstractFileSystem, access: Access) -> None:
        options = filesystem.storage_options
        # before anybody sees a header
        client = {**(options.get("client_kwargs") or {}), "auto_decompress": False}
        super().__init__(type(filesystem)(**{**options, **_OWN, "client_kwargs": client}), access)

    def info(self, name: str) -> RemoteInfo:
        """The server's answer about a file."""
        with suppress(FileNotFoundError, StoreError):  # a signed address may be for GET alone
            found, _ = self._request("HEAD", name, {})
            if found.size is not None:
                return found
        return self._request("GET", name, {})[0]

    def read_range(
        self, name: str, begin: int, end: int, etag: str | None = None
    ) -> bytes | memoryview:
        """The bytes of a range of a file, or one more."""
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        if etag is not None and not etag.startswith("W/"):  # a weak one matches nothing
            headers["If-Match"] = etag
        return self._request("GET", name, headers, begin, end - begin)[1]

    def listing(self, prefix: str, recursive: bool = False) -> list[tuple[str, RemoteInfo]]:
        """The links on a page to addresses below it; of a folder's, those on its page."""
        page = self._request("GET", prefix, {}, 0, _MOST_PAGE_BYTES + 1)[1]
        if len(page) > _MOST_PAGE_BYTES:
            raise StoreError(
                f"expected a page of at most {_MOST_PAGE_BYTES} bytes, got more", is_passing=False
            )
        links = {
            urljoin(prefix, html.unescape(link))
            for link in _LINK.findall(page.decode(errors="replace"))
        }
        below = sorted(link for link in links if link.startswith(prefix) and link != prefix)
        if recursive:
            parts = [
                self.listing(link, True) if link.endswith("/") else [(link, RemoteInfo(None))]
                for link in below
            ]
            return [*chain(*parts)]
        return [(link, RemoteInfo(None, is_folder=link.endswith("/"))) for link in below]

    @cached_property
    def _elsewhere(self) -> AbstractFileSystem:
        """For the hosts that a server sends to."""
        options = _of_nobody(self._filesystem.storage_options)
        options["client_kwargs"] = _of_nobody(options["client_kwargs"])
        return type(self._filesystem)(**options, **_OWN)

    def _request(self, *asked: Any) -> tuple[RemoteInfo, bytes]:
        with self._translated():
            found: tuple[RemoteInfo, bytes] = self._await(self._answer, *asked)
            return found

    async def _answer(
        self, method: str, name: str, headers: Mapping[str, str], begin: int = 0, most: int = 0
    ) -> tuple[RemoteInfo, bytes]:
        """The facts in the headers, and the bytes from `begin`: `most`, and of a range one more, where
        it is too long.
        """
        filesystem = self._filesystem
        options, url = filesystem.kwargs, filesystem.encode_url(name)
        for _ in range(_MOST_REDIRECTS + 1):
            given = {**(options.get("headers") or {}), "Accept-Encoding": "identity", **headers}
            session = await filesystem.set_session()
            # We follow redirects ourselves: the user's headers are not for another host.
            asked = {**options, "headers": given, "allow_redirects": False}
            async with session.request(method, url, **asked) as answer:
                found = answer.headers
                if answer.status in (404, 410):
                    raise FileNotFoundError
                answer.raise_for_status()
                if answer.status < 300:
                    encoding = found.get("Content-Encoding", "identity")
                    if encoding != "identity":
                        text = f"expected the bytes as they are, got Content-Encoding {encoding!r}"
                        raise StoreError(text, is_passing=False)
                    size = int(found["Content-Length"]) if "Content-Length" in found else None
                    is_whole = answer.status == 200  # the server sends no ranges
                    data = await _read(answer.content, begin * is_whole, most + 1 - is_whole)
                    return RemoteInfo(size, found.get("ETag")), data
                target = url.join(filesystem.encode_url(found["Location"]))
            if target.origin() == url.origin():
                target = target.with_user(url.user).with_password(url.password)
            else:
                filesystem = self._elsewhere
            options, url = {**filesystem.kwargs, "params": None}, target
        raise StoreError(f"more than {_MOST_REDIRECTS} redirects", is_passing=False)


async def _read(content: Any, skipped: int, most: int) -> bytes:
    pieces = []
    while most and (piece := await content.read(skipped or most)):
        if skipped:
            skipped -= len(piece)
        else:
            pieces.append(piece)
            most -= len(piece)
    return b"".join(pieces)


def _of_nobody(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _SAYS_WHO}
