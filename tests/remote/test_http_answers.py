"""What an http server answers beside the bytes that it was asked for: more of them, packed ones,
another address.

Covers remote/fsspec_store.
"""

import functools
import gzip
import itertools
import tracemalloc

import pytest
from odd_server import odd_server

from torch_tfrecord import RemoteError, TFRecordDataset, TFRecordIterableDataset, TFRecordWriter
from torch_tfrecord.files import Access, open_file
from torch_tfrecord.remote import RemoteNames

pytest.importorskip("aiohttp")

MIB = 1 << 20
RECORDS = [b"%d" % number * 1000 for number in range(9)]
KEYS = {"Authorization": "Bearer s3ntinel", "X-Key": "s3ntinel", "Cookie": "id=s3ntinel"}


@pytest.fixture
def query(client):
    """At the end of each address: what has a query goes to fsspec."""
    return "?by=fsspec" if client == "fsspec" else ""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    return path.read_bytes()


class Site:
    """A file as it is, until `odd` says how ranges of it are answered instead."""

    def __init__(self, data):
        self.data, self.odd, self.head = data, None, None

    def __call__(self, request):
        if not request.path.startswith("/a.tfrecord") or "index" in request.path:
            request.send(404, {})
        elif request.command == "HEAD" or "Range" not in request.headers:
            (self.head or self.whole)(request)
        elif self.odd is None:
            begin, end = request.asked(len(self.data))
            request.send(
                206,
                {"Content-Range": f"bytes {begin}-{end - 1}/{len(self.data)}"},
                self.data[begin:end],
            )
        else:
            self.odd(request)

    def whole(self, request):
        request.send(200, {"Accept-Ranges": "bytes"}, self.data)


@pytest.fixture
def site(data):
    return Site(data)


@pytest.fixture
def server(site):
    with odd_server(site) as server:
        yield server


def endless(request, status=206):
    """256 MiB, where main would take all there is."""
    begin, end = request.asked(1 << 40)
    ranges = {"Content-Range": f"bytes {begin}-{end - 1}/*"} if status == 206 else {}
    request.send(status, ranges, itertools.repeat(bytes(MIB), 256))


def packed(request):
    begin, end = request.asked(1 << 40)
    headers = {"Content-Encoding": "gzip", "Content-Range": f"bytes {begin}-{end - 1}/*"}
    request.send(206, headers, packed_zeros())


@functools.cache
def packed_zeros():
    """256 MiB, made before anything is measured: the server shares this process."""
    return gzip.compress(bytes(256 * MIB), 1)


def peak_of(call):
    """The most bytes that Python's objects took beyond those before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def ways(url, site, odd):
    """Everything that reads bytes: one record, a batch, a stream, the bytes of a whole file."""
    dataset = TFRecordDataset(url, index="memory")
    site.odd = odd
    yield lambda: dataset[3]
    yield lambda: dataset.__getitems__([1, 7])
    yield lambda: list(TFRecordIterableDataset(url))
    yield lambda: TFRecordDataset(url, index="memory")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (endless, r"expected \d+ bytes, got \d+ \(6 attempts\)"),
        (packed, r"Content-Encoding 'gzip' \(1 attempt\)"),
    ],
)
def test_no_more_is_taken_than_was_asked_for(server, site, odd, text):
    packed_zeros()
    for way in ways(f"{server.url}/a.tfrecord?sig=1", site, odd):

        def fails(way=way):
            with pytest.raises(RemoteError, match=text):
                way()

        assert peak_of(fails) < 24 * MIB


def test_a_server_without_ranges_is_read_up_to_the_end_of_the_range(server, site):
    dataset = TFRecordDataset(f"{server.url}/a.tfrecord?sig=1", index="memory")
    site.odd = lambda request: request.send(
        200, {}, itertools.chain([site.data], itertools.repeat(bytes(MIB), 256))
    )
    found = []
    assert peak_of(lambda: found.extend(dataset[:])) < 24 * MIB
    assert found == RECORDS


def test_every_request_asks_for_the_bytes_as_they_are(server, query):
    assert TFRecordDataset(f"{server.url}/a.tfrecord{query}")[3] == RECORDS[3]
    wanted = {request.headers.get("Accept-Encoding", "identity") for request in server.requests}
    assert wanted == {"identity"}


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (
            lambda request: request.send(200, {"Content-Encoding": "gzip"}, b"x"),
            "Content-Encoding 'gzip'",
        ),
        (
            lambda request: request.send(
                405 if request.command == "HEAD" else 200, {}, itertools.repeat(bytes(MIB), 256)
            ),
            "a file whose size the storage tells",
        ),
    ],
)
def test_a_size_is_asked_without_a_body(server, site, head, text):
    site.head = head

    def fails():
        with pytest.raises((RemoteError, OSError), match=text):
            TFRecordDataset(f"{server.url}/a.tfrecord?sig=1")

    assert peak_of(fails) < 24 * MIB


def test_a_server_that_answers_no_HEAD(server, site):
    site.head = lambda request: (
        request.send(403, {}) if request.command == "HEAD" else site.whole(request)
    )
    assert TFRecordDataset(f"{server.url}/a.tfrecord?sig=1")[3] == RECORDS[3]


def test_a_page_without_an_end_is_not_listed():
    def answer(request):
        request.send(
            200,
            {"Content-Type": "text/html"},
            itertools.repeat(b"<a href='x'>x</a>\n" * 50_000, 300),
        )

    with odd_server(answer) as server:

        def fails():
            with pytest.raises(RemoteError, match="expected a page of at most"):
                RemoteNames(Access.DEFAULT).listing(f"{server.url}/folder/")

        assert peak_of(fails) < 100 * MIB


# Redirects.


@pytest.fixture
def far(server):
    """Another address, which sends everybody to `server`: 127.0.0.1 and localhost are two hosts."""

    def answer(request):
        request.send(
            302, {"Location": f"{server.url.replace('127.0.0.1', 'localhost')}{request.path}"}
        )

    with odd_server(answer) as first:
        yield first


def sent(server):
    return {
        name: value
        for request in server.requests
        for name, value in request.headers.items()
        if "s3ntinel" in value
    }


OPTIONS = [
    {"headers": KEYS},
    {"client_kwargs": {"headers": KEYS}},
    {"headers": {"X-Key": "s3ntinel"}, "simple_links": True},
    {"headers": {"Authorization": "Bearer s3ntinel"}},
    {"cookies": {"id": "s3ntinel"}},
    {"client_kwargs": {"cookies": {"id": "s3ntinel"}}},
    {"params": {"key": "s3ntinel"}},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_no_header_goes_to_another_host(server, far, query, options):
    path = f"{far.url}/a.tfrecord{query}"
    assert TFRecordDataset(path, storage_options=options)[3] == RECORDS[3]
    assert sent(far) or any("s3ntinel" in request.path for request in far.requests)
    assert server.requests
    assert not sent(server)
    assert not any(
        "s3ntinel" in request.path for request in server.requests if "params" not in options
    )
    with pytest.raises(FileNotFoundError):
        open_file(f"{far.url}/missing{query}", Access(options))
    RemoteNames(Access(options)).listing(f"{far.url}/a.tfrecord/")
    assert not sent(server)


def test_no_password_goes_to_another_host(server, far):
    path = f"{far.url.replace('//', '//user:s3ntinel@')}/a.tfrecord"
    assert TFRecordDataset(path)[3] == RECORDS[3]
    assert any("Authorization" in request.headers for request in far.requests)
    assert server.requests
    assert not any("Authorization" in request.headers for request in server.requests)


def test_headers_stay_on_the_same_host(data):
    site = Site(data)

    def answer(request):
        if request.path.startswith("/from/"):
            request.send(307, {"Location": request.path.removeprefix("/from")})
        elif request.headers.get("Authorization") is None:
            request.send(401, {})
        else:
            site(request)

    with odd_server(answer) as server:
        options = {"headers": {"Authorization": "Bearer s3ntinel", "X-Key": "1"}}
        assert (
            TFRecordDataset(f"{server.url}/from/a.tfrecord", storage_options=options)[3]
            == RECORDS[3]
        )
        path = f"{server.url.replace('//', '//user:s3ntinel@')}/from/a.tfrecord"
        assert TFRecordDataset(path)[3] == RECORDS[3]


def test_redirects_without_an_end(far):
    text = r"its size: more than 10 redirects \(1 attempt\)"
    with (
        odd_server(lambda request: request.send(302, {"Location": request.path})) as server,
        pytest.raises(RemoteError, match=text),
    ):
        TFRecordDataset(f"{server.url}/a.tfrecord?sig=s3ntinel")
