"""An HTTP server in a thread of the test's own process, whose answers the test words itself.

def answer(request):
    request.send(200, {"Content-Encoding": "gzip"}, body)

with odd_server(answer) as server:
    read(f"{server.url}/a.tfrecord")
    assert "X-Key" not in server.requests[0].headers
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["OddServer", "Request", "odd_server"]


class Request(BaseHTTPRequestHandler):
    """One request, as `http.server` tells it: `command`, `path`, `headers`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def send(
        self, status: int, headers: Mapping[str, str], body: bytes | Iterable[bytes] = b""
    ) -> None:
        """Answer; a body in pieces has no Content-Length, and ends with the connection."""
        self.send_response(status)
        pieces = [body] if isinstance(body, bytes) else body
        if isinstance(body, bytes):
            headers = {"Content-Length": str(len(body)), **headers}
        else:
            self.close_connection = True
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in pieces if self.command != "HEAD" else ():
            self.wfile.write(piece)

    def asked(self, size: int) -> tuple[int, int]:
        """Begin and end of the range that is asked for; of everything without one."""
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(first), min(int(last or size) + 1, size)

    def do_GET(self) -> None:
        self.server.requests.append(self)
        with contextlib.suppress(ConnectionError):  # the client has had enough
            self.server.answer(self)

    do_HEAD = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


class OddServer(ThreadingHTTPServer):
    """The server, and all that it was asked.

    Attributes:
        url: Without a slash at the end.
        requests: In the order of arrival.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Callable[[Request], None]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer, self.requests = answer, []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a connection that the client broke off


@contextlib.contextmanager
def odd_server(answer: Callable[[Request], None]) -> Iterator[OddServer]:
    """Serve while the block runs."""
    server = OddServer(answer)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
