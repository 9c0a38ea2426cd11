"""The viewer of docs/viewer.md in headless Chromium, over a file of 5 GB on a range server.

The server is the tests' range server in a process of its own. Measured are the seconds until the
records are shown, and the bytes that the server sent for them: the first page of records, from the
navigation of a fresh page on; the next one; a byte in the middle; a record far inside. Records of
100 KB ("photos": random bytes) and of 1 KB ("rows").

    pip install -e '.[dev]' playwright && apt-get install chromium
    python benchmarks/viewer.py --folder /tmp
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torch_tfrecord import TFRecordWriter, encode_example

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from browser import open_browser
from range_server import range_server
from viewer_page import write_page

__all__ = ["main"]

_BLOCK_BYTES = 1 << 26
_SIZES = {"photos": 100_000, "rows": 1_000}
_SHOWN = """() => document.querySelector("#tfrecord-viewer section") &&
  document.querySelector("#tfrecord-viewer .bar > span > button").hidden &&
  document.querySelector("[role=status]").textContent === "" """


def main() -> None:
    """Write each file, measure, remove it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the file is written")
    parser.add_argument("--gigabytes", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    arguments = parser.parse_args()
    print("| records | size | what | median s | largest s | bytes sent | requests |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for kind, size in _SIZES.items():
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path = Path(folder, f"{kind}.tfrecord")
            num_records = _write(path, size, int(arguments.gigabytes * 1e9))
            write_page(Path(folder))
            _measure(Path(folder), kind, num_records, arguments.rounds, arguments.latency)


def _write(path: Path, size: int, file_bytes: int) -> int:
    """The same records again and again; their number."""
    source = np.random.default_rng(0)
    with TFRecordWriter(path) as writer:
        for number in range(_BLOCK_BYTES // size):
            writer.write(encode_example({"id": number, "image": source.bytes(size)}))
    block = path.read_bytes()
    num_blocks = -(-file_bytes // len(block))
    with path.open("ab") as file:
        for _ in range(num_blocks - 1):
            file.write(block)
    return num_blocks * (_BLOCK_BYTES // size)


def _measure(folder: Path, kind: str, num_records: int, rounds: int, latency: float) -> None:
    found: dict[str, list[tuple[float, int, int]]] = {}
    file_bytes = (folder / f"{kind}.tfrecord").stat().st_size
    with range_server(folder, latency=latency) as server, open_browser() as browser:
        address = f"{server}/viewer.html#url={server}/{kind}.tfrecord"

        def time_it(what: str, page: Any, act: Callable[[], object]) -> None:
            server.reset()
            begin = time.perf_counter()
            act()
            page.wait_for_function(_SHOWN, timeout=300_000)
            seconds = time.perf_counter() - begin
            asked = [each for each in server.requests() if each[1].endswith(".tfrecord")]
            sent = server.stats()["bytes_sent"]
            found.setdefault(what, []).append((seconds, sent, len(asked)))

        def new_page() -> Any:
            page = browser.new_page()
            # The range server says of no file what it is.
            page.route("**/viewer.html", lambda route: route.fulfill(path=folder / "viewer.html"))
            page.route(
                "**/site/*",
                lambda route: route.fulfill(
                    path=folder / "site" / route.request.url.rpartition("/")[2]
                ),
            )
            return page

        for number in range(rounds):
            page = new_page()
            time_it("first page, with the viewer itself", page, partial(page.goto, address))
            time_it("next page", page, partial(page.click, "text=next →"))
            middle = f"location.hash += '&byte={file_bytes // 2}'"
            time_it("a byte in the middle", page, partial(page.evaluate, middle))
            if number == 0:
                wanted = min(num_records // 10, 1000)
                page.fill("input[name=record]", str(wanted))
                go = partial(page.press, "input[name=record]", "Enter")
                time_it(f"record {wanted:,}", page, go)
            page.close()
    for what, runs in found.items():
        seconds, sent, requests = zip(*runs, strict=True)
        print(
            f"| {kind} | {file_bytes / 1e9:.2f} GB | {what} | {statistics.median(seconds):.2f} "
            f"| {max(seconds):.2f} | {max(sent):,} | {max(requests)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
