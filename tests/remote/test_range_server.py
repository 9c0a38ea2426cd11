"""The server that stands for a bucket: it must be right itself, and its faults must come when they
were asked for.
"""

import http.client
import os
from urllib.parse import urlsplit

import pytest
from range_server import Fault, range_server

BYTES = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.bin").write_bytes(BYTES)
    (tmp_path / "b c.bin").write_bytes(b"b")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "d.bin").write_bytes(b"d")
    return tmp_path


class Client:
    """A connection that is kept, as long as the server keeps it."""

    def __init__(self, url, timeout=10):
        address = urlsplit(url)
        self.connection = http.client.HTTPConnection(
            address.hostname, address.port, timeout=timeout
        )

    def ask(self, path="/a.bin", method="GET", **headers):
        self.connection.request(
            method, path, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.connection.close()


@pytest.mark.parametrize(
    ("header", "begin", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-99", 10, 100),
        ("bytes=10000-", 10000, 10240),
        ("bytes=-7", 10233, 10240),
        ("bytes=10200-99999", 10200, 10240),
    ],
)
def test_ranges(folder, header, begin, end):
    with range_server(folder) as url, Client(url) as client:
        status, body, headers = client.ask(Range=header)
    assert (status, body) == (206, BYTES[begin:end])
    assert headers["Content-Range"] == f"bytes {begin}-{end - 1}/10240"
    assert headers["Accept-Ranges"] == "bytes"


def test_whole_file_head_and_the_statuses_of_what_is_not_there(folder):
    with range_server(folder) as url, Client(url) as client:
        assert client.ask()[:2] == (200, BYTES)
        status, body, headers = client.ask(method="HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", "10240")
        assert headers["Last-Modified"].endswith("GMT")
        assert client.ask("/b%20c.bin")[:2] == (200, b"b")
        assert client.ask("/inner/d.bin")[:2] == (200, b"d")
        assert [client.ask(path)[0] for path in ("/none", "/../a.bin", "/inner/../../x")] == [
            404
        ] * 3
        assert client.ask(Range="bytes=10240-")[0] == 416
        assert client.ask(method="PUT")[0] == 405
        assert url.stats()["connections"] == 1, "kept through all of it"


def test_conditions_hold_the_version(folder):
    with range_server(folder) as url, Client(url) as client:
        etag = client.ask(method="HEAD")[2]["ETag"]
        assert client.ask(If_Match=etag, Range="bytes=0-3")[:2] == (206, BYTES[:4])
        assert client.ask(If_None_Match=etag)[0] == 304
        assert client.ask(If_Range=etag, Range="bytes=0-3")[0] == 206
        (folder / "next").write_bytes(b"changed")
        os.replace(folder / "next", folder / "a.bin")
        assert client.ask(If_Match=etag, Range="bytes=0-3")[0] == 412
        assert client.ask(If_Range=etag, Range="bytes=0-3")[:2] == (200, b"changed")


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_a_status_comes_at_its_request_and_only_there(folder, status):
    with range_server(folder, faults={2: str(status)}) as url, Client(url) as client:
        assert [client.ask()[0] for _ in range(5)] == [200, 200, status, 200, 200]
        assert url.stats()["faults"] == 1


def test_faults_by_path_by_next_request_and_several_times(folder):
    faults = [
        Fault("500", request=1, path="a.bin", times=2),
        Fault("503", path="inner/d.bin", retry_after=2),
    ]
    with range_server(folder, faults=faults) as url, Client(url) as client:
        assert client.ask("/b%20c.bin")[0] == 200
        assert [client.ask()[0] for _ in range(4)] == [200, 500, 500, 200]
        status, _, headers = client.ask("/inner/d.bin")
        assert (status, headers["Retry-After"]) == (503, "2")
        assert client.ask("/inner/d.bin")[0] == 200
        url.reset([Fault("404")])
        assert [client.ask()[0] for _ in range(2)] == [404, 200]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("reset", ConnectionResetError),
        ("short", http.client.IncompleteRead),
        ("stall", TimeoutError),
        ("closed", http.client.RemoteDisconnected),
    ],
)
def test_bodies_that_do_not_come_whole(folder, kind, error):
    with range_server(folder, faults={1: kind}) as url, Client(url, timeout=0.5) as client:
        assert client.ask()[1] == BYTES
        with pytest.raises(error):
            client.ask()
        client.connection.close()
        assert client.ask()[1] == BYTES


def test_a_file_that_changes_between_two_ranges(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "a.bin"
    other.write_bytes(b"other bytes")
    faults = [Fault("changed", request=2, replacement=str(other))]
    with range_server(folder, faults=faults) as url, Client(url) as client:
        before = [client.ask(Range="bytes=0-4") for _ in range(2)]
        after = [client.ask(Range="bytes=0-4") for _ in range(2)]
        assert [body for _, body, _ in before + after] == [BYTES[:5]] * 2 + [b"other"] * 2
        etags = [headers["ETag"] for _, _, headers in before + after]
        assert etags[0] == etags[1] != etags[2] == etags[3]
        assert client.ask(Range="bytes=0-4", If_Match=etags[0])[0] == 412
