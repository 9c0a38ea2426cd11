"""Opening a hundred thousand shards with 10^9 records from a manifest, in several processes at
once.

    python benchmarks/manifest.py                # in a temporary folder: files with holes, and a manifest of 4 GB
    python benchmarks/manifest.py --shards 1000  # smaller

The lengths are like those of JPEGs of 100 KB. The shards' bytes are holes: what is measured is
opening, looking records up, and memory, from the disk (the pattern of the files, and the manifest
itself) and over http.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from torch_tfrecord.files.atomic import write_atomically
from torch_tfrecord.manifests.manifest import ShardRow, pack_manifest, shard_row
from torch_tfrecord.records.index import RecordIndex

__all__: list[str] = []

_KINDS = 4  # of shards; their rows are used again and again
_LOOK_UPS = 1000

_PROBE = """
import json, sys, time
def memory():
    lines = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return {name: int(lines[name].split()[0]) / 1024 for name in ("Rss", "Private_Dirty")}
import numpy as np, torch
from torch_tfrecord import TFRecordDataset
TFRecordDataset.__doc__, np.unique(np.zeros(1), return_inverse=True)
before = memory()
begin, begin_cpu = time.perf_counter(), time.process_time()
ds = TFRecordDataset(sys.argv[1], index="require")
opened, opened_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
after = memory()
positions = np.random.default_rng(int(sys.argv[2])).integers(0, len(ds), int(sys.argv[3]))
begin = time.perf_counter()
ds._record_files.table.find(positions)
found = time.perf_counter() - begin
end = memory()
print(json.dumps({"records": len(ds), "shards": len(ds.files), "open_seconds": opened,
                  "open_processor_seconds": opened_cpu, "find_seconds": found,
                  "imports_mib": before["Rss"], "open_mib": after["Rss"] - before["Rss"],
                  "found_mib": end["Rss"] - before["Rss"], "private_mib": end["Private_Dirty"]}))
"""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=10_000, help="of each shard")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = write_shards(folder, options.shards, options.records)
        print(
            f"manifest: {manifest.stat().st_size / options.shards / options.records:.2f} bytes a record"
        )
        with serving(folder) as address:
            for name, paths in {
                "the pattern": f"{folder}/train-*",
                "the manifest": str(manifest),
                "over http": f"{address}/.torch_index/manifest.safetensors",
            }.items():
                rounds = [measure(paths, options.processes) for _ in range(options.rounds)]
                print(name, json.dumps({key: worst(rounds, key) for key in rounds[0][0]}))


def worst(rounds: list[list[dict[str, float]]], key: str) -> float:
    """The median over rounds of the worst process."""
    return round(
        statistics.median(max(found[key] for found in processes) for processes in rounds), 3
    )


def write_shards(folder: Path, num_shards: int, num_records: int) -> Path:
    """Files with holes, and their manifest."""
    rng = np.random.default_rng(0)
    rows = [
        row_of(rng.lognormal(np.log(95_000), 0.4, num_records).astype(np.int64))
        for _ in range(_KINDS)
    ]
    names, of_shards = [], []
    for shard in range(num_shards):
        row = rows[shard % _KINDS]
        names.append(f"../train-{shard:06d}-of-{num_shards:06d}")
        descriptor = os.open(folder / names[-1][3:], os.O_CREAT | os.O_WRONLY)
        os.truncate(descriptor, row.facts.file_size)
        facts = RecordIndex._bare(row.facts.file_size, "", os.fstat(descriptor).st_mtime_ns, 0)
        os.close(descriptor)
        of_shards.append(row._replace(facts=facts))
    (folder / ".torch_index").mkdir()
    manifest = folder / ".torch_index" / "manifest.safetensors"
    write_atomically(str(manifest), pack_manifest(names, of_shards))
    return manifest


def row_of(lengths: np.ndarray) -> ShardRow:
    """The row of a shard of these records."""
    sizes = lengths + 16
    return shard_row(RecordIndex(np.cumsum(sizes) - sizes, lengths, int(sizes.sum())))


def measure(paths: str, num_processes: int) -> list[dict[str, float]]:
    """What each of several processes took that began together."""
    command = [sys.executable, "-c", _PROBE, paths]
    started = [
        subprocess.Popen([*command, str(number), str(_LOOK_UPS)], stdout=subprocess.PIPE)
        for number in range(num_processes)
    ]
    return [json.loads(process.communicate()[0]) for process in started]


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """A folder, with ranges."""

    protocol_version = "HTTP/1.1"

    def send_head(self):  # type: ignore[no-untyped-def]
        """The range that was asked for, as the whole of a file."""
        path = self.translate_path(self.path)
        if not os.path.isfile(path):
            self.send_error(404)
            return None
        size = os.path.getsize(path)
        begin, end = 0, size
        asked = self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, size) if last else size
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{size}"')
        self.send_header("Last-Modified", self.date_time_string(int(os.stat(path).st_mtime)))
        self.end_headers()
        file = open(path, "rb")  # noqa: SIM115
        file.seek(begin)
        self.left = end - begin
        return file

    def copyfile(self, source, outputfile):  # type: ignore[no-untyped-def]
        """As many bytes as were promised."""
        while self.left:
            piece = source.read(min(self.left, 1 << 20))
            outputfile.write(piece)
            self.left -= len(piece)

    def log_message(self, *arguments):  # type: ignore[no-untyped-def]
        """Nothing."""


class serving:  # noqa: N801
    """A folder over http, while a ``with`` lasts."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(_Ranges, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.handle_error = lambda *arguments: None  # type: ignore[method-assign]  # a client that went away

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    begin = time.perf_counter()
    main()
    print(
        f"{time.perf_counter() - begin:.0f} s",
        shutil.disk_usage(tempfile.gettempdir()).free >> 30,
        "GiB free",
    )
