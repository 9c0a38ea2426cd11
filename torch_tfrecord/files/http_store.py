"""Files of http servers, by the clients of fsspec's file system: no more is taken than was asked
for.

That file system itself takes and unpacks whatever a server sends, and shows the user's headers to
all hosts it is sent to.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.fsspec_store import FsspecStore
from torch_tfrecord.files.store import RemoteInfo, StoreError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["HttpStore"]

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
        super().__init__(type(filesystem)(**{**options, "client_kwargs": client}), access)

    def info(self, name: str) -> RemoteInfo:
        """What the server says of a file."""
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
        """The links on a page to what lies below it; of a folder's, those on its page."""
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
        return type(self._filesystem)(**options)

    def _request(self, *asked: Any) -> tuple[RemoteInfo, bytes]:
        with self._translated():
            found: tuple[RemoteInfo, bytes] = self._awaited(self._answer, *asked)
            return found

    async def _answer(
        self, method: str, name: str, headers: Mapping[str, str], begin: int = 0, most: int = 0
    ) -> tuple[RemoteInfo, bytes]:
        """What the headers say, and the bytes from `begin`: `most`, and of a range one more, where
        it is too long.
        """
        filesystem = self._filesystem
        options, url = filesystem.kwargs, filesystem.encode_url(name)
        for _ in range(_MOST_REDIRECTS + 1):
            given = {**(options.get("headers") or {}), "Accept-Encoding": "identity", **headers}
            session = await filesystem.set_session()
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
