"""A local HTTP server of a folder's files that stands for a bucket: ranges, ETags, latency,
bandwidth, faults.

    with range_server(folder, latency=0.02, bytes_per_second=60e6, faults=[Fault("reset", request=3)]) as url:
        read(f"{url}/train-00000.tfrecord")
        assert url.stats()["most_at_once"] > 1

It runs in a process of its own, so that client and server do not share an interpreter's lock, with
a thread for each connection, which sleeps or stands in sendfile. Folders answer S3's ListObjectsV2,
too: with the URL as endpoint, each is a bucket to read from, whatever the credentials.
"""

import contextlib
import dataclasses
import email.utils
import functools
import html
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["KINDS", "Fault", "RangeServer", "range_server"]

KINDS = ("403", "404", "500", "503", "changed", "closed", "reset", "short", "stall", "whole")

_SLICE = 256 << 10  # of one sendfile: at 60 MB/s a connection, 4 ms
_CONTROL = "/.control/"  # what the test asks the server itself; neither counted nor delayed


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong, and with which request.

    Args:
        kind: One of `KINDS`: a status; "reset" (RST in mid-body), "short" (half of the body, then
            the end), "stall" (half of the body, then nothing), "closed" (no answer at all),
            "changed" (from here on the file is another: another ETag, and the bytes of
            ``replacement`` if there is one), "whole" (200 and all of the file, whatever range was
            asked for).
        request: The number of the request, from 0 in the order of arrival; None: the next one.
        path: Only requests of this path (``train.tfrecord``) count; None: all.
        times: How many requests in succession have it.
        retry_after: For "503": the header's seconds.
        replacement: For "changed": the file that stands there from now on.
    """

    kind: str
    request: int | None = None
    path: str | None = None
    times: int = 1
    retry_after: float | None = None
    replacement: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")


class RangeServer(str):
    """The server's URL, without a slash at the end, and what it can be asked."""

    def stats(self) -> dict[str, int]:
        """Counts since the start or `reset`: requests, most_at_once, bytes_sent (of bodies),
        connections, faults.
        """
        return self._ask("stats")

    def requests(self) -> list[tuple[str, str, str, int]]:
        """Each request since then as (method, path, Range header, status), in the order of
        arrival.
        """
        return [tuple(entry) for entry in self._ask("requests")]

    def reset(self, faults: "Iterable[Fault] | Mapping[int, str]" = (), **options: float) -> None:
        """All counts to 0, and these faults in place of those before; options of `range_server`
        change as given.
        """
        self._ask("reset", {"faults": _as_dicts(faults), **options})

    def _ask(self, what: str, body: object = None) -> object:
        address = urllib.parse.urlsplit(self)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", _CONTROL + what, body=json.dumps(body))
            return json.loads(connection.getresponse().read())


@contextlib.contextmanager
def range_server(
    folder: str | os.PathLike[str],
    *,
    latency: float = 0.0,
    bytes_per_second: float = 0.0,
    faults: Iterable[Fault] | Mapping[int, str] = (),
    listing: bool = True,
    stall_seconds: float = 60.0,
    payer: tuple[str, str, int] | None = None,
) -> Iterator[RangeServer]:
    """Serve a folder's files over HTTP while the block runs.

    Args:
        folder: Its files are read anew for each request: what a test writes there is there.
        latency: Seconds before the first byte of each answer.
        bytes_per_second: Of each connection; 0: as fast as it goes.
        faults: What goes wrong: `Fault`s, or kinds by number of request, ``{3: "reset"}``.
        listing: Whether a folder's URL answers with links to its files (404 otherwise).
        stall_seconds: How long a stalled body stands still before the connection ends.
        payer: A header that says who pays, its value, and the status of requests without it.
    """
    options = {
        "latency": latency,
        "bytes_per_second": bytes_per_second,
        "faults": _as_dicts(faults),
    }
    options |= {"listing": listing, "stall_seconds": stall_seconds, "payer": payer}
    command = [sys.executable, "-I", "-S", __file__, os.fspath(folder), json.dumps(options)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        port = int(process.stdout.readline())
        yield RangeServer(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _as_dicts(faults: Iterable[Fault] | Mapping[int, str]) -> list[dict[str, object]]:
    if isinstance(faults, Mapping):
        faults = [Fault(kind, request) for request, kind in faults.items()]
    return [dataclasses.asdict(fault) for fault in faults]


# The server's own process, from here on.


class _State:
    """What all connections share: the options, the counts, the faults that are still to come."""

    def __init__(self, folder: str, options: dict[str, object]) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.options = options
        self.start_counting()

    def start_counting(self) -> None:
        self.log: list[list[object]] = []
        self.seen: dict[str, int] = {}
        self.now = self.most = self.sent = self.connections = self.faults_made = 0
        self.faults = [dict(fault) for fault in self.options["faults"]]
        # the request that found it so, and the file there now
        self.replaced: dict[str, tuple[int, str | None]] = {}

    def begin(
        self, method: str, path: str, headers: dict[str, str], first: bool
    ) -> tuple[int, dict[str, object] | None]:
        """Count a request, the first of its connection or a later one; its number, and the fault
        that it has.
        """
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            number, number_of_path = len(self.log), self.seen.get(path, 0)
            self.seen[path] = number_of_path + 1
            self.log.append([method, "/" + path, headers.get("range", ""), 0])
            self.connections += first
            fault = self._fault_of(number, number_of_path, path)
            if fault is not None and fault["kind"] == "changed":
                self.replaced[path] = (number, fault["replacement"])
            return number, fault

    def _fault_of(self, number: int, number_of_path: int, path: str) -> dict[str, object] | None:
        for fault in self.faults:
            if fault["path"] is not None and fault["path"].lstrip("/") != path:
                continue
            at = number if fault["path"] is None else number_of_path
            if fault["request"] is None:
                fault["request"] = at  # the next one has come
            if fault["request"] <= at < fault["request"] + fault["times"]:
                self.faults_made += 1
                return fault
        return None

    def end(self, number: int, status: int, sent: int) -> None:
        with self.lock:
            self.now -= 1
            self.sent += sent
            if number < len(self.log):  # a reset may have come between
                self.log[number][3] = status

    def answer(self, what: str, body: object) -> object:
        """What the test asks."""
        with self.lock:
            if what == "requests":
                return self.log
            if what == "reset":
                self.options |= body
                self.start_counting()
            names = ("requests", "most_at_once", "bytes_sent", "connections", "faults")
            counts = (len(self.log), self.most, self.sent, self.connections, self.faults_made)
            return dict(zip(names, counts, strict=True))


class _End(Exception):
    """The connection ends here."""


class _Connection:
    """One client's connection: requests one after another."""

    def __init__(self, state: _State, client: socket.socket) -> None:
        self.state = state
        self.socket = client
        self.first = True
        self.number: int | None = None  # of the request under way
        self.buffer = b""

    def run(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.socket, contextlib.suppress(_End, OSError):
            while True:
                self.answer_one()

    def answer_one(self) -> None:
        method, target, headers = self.request()
        address = urllib.parse.urlsplit(target)
        path = urllib.parse.unquote(address.path)
        if path.startswith(_CONTROL):
            body = json.loads(self.body(int(headers.get("content-length", 0))))
            self.send(200, {}, json.dumps(self.state.answer(path[len(_CONTROL) :], body)).encode())
            return
        self.body(int(headers.get("content-length", 0)))
        path = path.lstrip("/")
        self.number, fault = self.state.begin(method, path, headers, self.first)
        self.first = False
        self.status = self.sent = 0
        try:
            time.sleep(self.state.options["latency"])
            self.respond(method, path, headers, fault, dict(urllib.parse.parse_qsl(address.query)))
        finally:
            self.end()

    def end(self) -> None:
        """Count the request as answered: before its last bytes leave, since the client may ask for
        the counts then.
        """
        if self.number is not None:
            self.state.end(self.number, self.status, self.sent)
        self.number = None

    def request(self) -> tuple[str, str, dict[str, str]]:
        while b"\r\n\r\n" not in self.buffer:
            self.receive()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.split(":", 1) for line in lines)
        return method, target, {name.strip().lower(): value.strip() for name, value in pairs}

    def body(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self.receive()
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return body

    def receive(self) -> None:
        received = self.socket.recv(65536)
        if not received:
            raise _End
        self.buffer += received

    def respond(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        fault: dict[str, object] | None,
        query: dict[str, str],
    ) -> None:
        kind = fault["kind"] if fault else ""
        if kind == "closed":
            raise _End
        if kind.isdigit():
            seconds = fault["retry_after"]
            extra = {} if seconds is None else {"Retry-After": f"{seconds:g}"}
            self.send(
                int(kind),
                extra,
                b"" if method == "HEAD" else b"injected",
                head_only=method == "HEAD",
            )
            return
        name, value, status = self.state.options["payer"] or ("", None, 0)
        if headers.get(name) != value:
            self.send(status, {}, b"who pays?", head_only=method == "HEAD")
            return
        if method not in ("GET", "HEAD"):
            self.send(405, {"Allow": "GET, HEAD"}, b"")
            return
        place = self.place(path)
        is_folder = place is not None and os.path.isdir(place)
        if place is None or (is_folder and not self.state.options["listing"]):
            self.send(
                404, {}, b"" if method == "HEAD" else b"not found", head_only=method == "HEAD"
            )
        elif is_folder and query.get("list-type") == "2":
            self.send(200, {"Content-Type": "application/xml"}, _objects(Path(place), query))
        elif is_folder:
            self.send(
                200,
                {"Content-Type": "text/html"},
                _links(Path(place), path),
                head_only=method == "HEAD",
            )
        else:
            self.send_file(method, path, place, headers, kind)

    def place(self, path: str) -> str | None:
        """The file or folder of a path; None where there is none, or it would lie outside."""
        _, replacement = self.state.replaced.get(path, (0, None))
        place = replacement or os.path.join(self.state.folder, path)
        outside = ".." in path.split("/")
        return place if not outside and os.path.exists(place) else None

    def send_file(
        self, method: str, path: str, place: str, headers: dict[str, str], kind: str
    ) -> None:
        with open(place, "rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            version = self.state.replaced.get(path, ("",))[0]
            etag = f'"{_etag(stat)}{version}"'
            common = {
                "Accept-Ranges": "bytes",
                "Content-Type": "application/octet-stream",
                "ETag": etag,
                "Last-Modified": _http_date(int(stat.st_mtime)),
            }
            if headers.get("if-match", "*") not in ("*", etag):
                self.send(412, common, b"")
                return
            if headers.get("if-none-match", "") in ("*", etag):
                self.send(304, common, b"")
                return
            asked = (
                ""
                if headers.get("if-range", etag) != etag or kind == "whole"
                else headers.get("range", "")
            )
            begin, end = _range(asked, stat.st_size)
            if begin >= end and asked:
                self.send(416, common | {"Content-Range": f"bytes */{stat.st_size}"}, b"")
                return
            if asked:
                common["Content-Range"] = f"bytes {begin}-{end - 1}/{stat.st_size}"
            self.head(206 if asked else 200, common, end - begin, more=method == "GET")
            if method == "GET":
                self.send_body(file.fileno(), begin, end, kind)

    def send_body(self, file: int, begin: int, end: int, kind: str) -> None:
        """A body at the connection's bandwidth; its half only, where the fault says so."""
        stop = begin + (end - begin) // 2 if kind in ("reset", "short", "stall") else end
        speed = self.state.options["bytes_per_second"]
        start, position = time.perf_counter(), begin
        while position < stop:
            piece = min(_SLICE, stop - position)
            if speed:  # bytes arrive when they have been sent: the piece comes after its time
                time.sleep(
                    max(0.0, start + (position + piece - begin) / speed - time.perf_counter())
                )
            if position + piece == stop:
                self.sent = stop - begin
                if stop == end:
                    self.end()
            while piece:
                sent = os.sendfile(self.socket.fileno(), file, position, piece)
                if not sent:
                    raise _End  # the file became shorter
                position, piece = position + sent, piece - sent
        if kind == "stall":
            self.socket.settimeout(self.state.options["stall_seconds"])
            self.receive()  # ends when the client does
        if kind == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if kind in ("reset", "short", "stall"):
            raise _End

    def send(
        self, status: int, headers: dict[str, str], body: bytes, *, head_only: bool = False
    ) -> None:
        self.head(status, headers, len(body), more=bool(body) and not head_only)
        if body and not head_only:
            self.end()
            self.socket.sendall(body)

    def head(self, status: int, headers: dict[str, str], length: int, *, more: bool) -> None:
        self.status = status
        lines = [f"HTTP/1.1 {status} {http.client.responses[status]}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        # In one packet with the body's first bytes, where the system can.
        more = more and length > 0
        flags = getattr(socket, "MSG_MORE", 0) if more else 0
        if not more:
            self.end()
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"), flags)


def _range(header: str, size: int) -> tuple[int, int]:
    """The bytes of a Range header: begin and end; all of them without one, begin >= end where there
    are none.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if not found:
        return 0, size
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(int(last) + 1, size) if last else size


def _links(folder: Path, path: str) -> bytes:
    """A folder's page: a link for each file, as Apache and nginx make them."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    lines = [f'<a href="{urllib.parse.quote(name)}">{html.escape(name)}</a>' for name in names]
    return "\n".join(
        ["<html><body>", f"<h1>Index of /{html.escape(path)}</h1>", *lines, "</body></html>"]
    ).encode()


def _objects(bucket: Path, query: dict[str, str]) -> bytes:
    """S3's ListObjectsV2: the files whose path in the bucket begins with a prefix; all in one
    answer.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    files = sorted(
        path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file()
    )
    names = [name for name in files if name.startswith(prefix)]
    folders = {
        prefix + name[len(prefix) :].partition("/")[0] + "/"
        for name in names
        if "/" in name[len(prefix) :]
    }
    if not delimiter:
        folders = set()
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines += [
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        f"<Name>{bucket.name}</Name>",
    ]
    lines += [f"<Prefix>{html.escape(prefix)}</Prefix>", "<IsTruncated>false</IsTruncated>"]
    for name in names:
        if not any(name.startswith(folder) for folder in folders):
            stat = (bucket / name).stat()
            time_text = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
            lines += [
                f"<Contents><Key>{html.escape(name)}</Key><LastModified>{time_text}</LastModified>"
            ]
            lines += [f"<ETag>&quot;{_etag(stat)}&quot;</ETag><Size>{stat.st_size}</Size>"]
            lines += ["<StorageClass>STANDARD</StorageClass></Contents>"]
    lines += [
        f"<CommonPrefixes><Prefix>{html.escape(folder)}</Prefix></CommonPrefixes>"
        for folder in sorted(folders)
    ]
    return "\n".join([*lines, f"<KeyCount>{len(names)}</KeyCount></ListBucketResult>"]).encode()


@functools.cache
def _http_date(seconds: int) -> str:
    return email.utils.formatdate(seconds, usegmt=True)


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _serve(folder: str, options: dict[str, object]) -> None:
    state = _State(folder, options)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(state, listener), daemon=True).start()
    sys.stdin.buffer.read()  # ends with the process that started this one


def _accept(state: _State, listener: socket.socket) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_Connection(state, client).run, daemon=True).start()


if __name__ == "__main__":
    threading.stack_size(256 << 10)
    _serve(sys.argv[1], json.loads(sys.argv[2]))
