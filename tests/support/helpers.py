"""Shared by the tests: TFRecord framing by an independent implementation, damage, and fault
injection.
"""

import contextlib
import errno
import functools
import gzip
import importlib.util
import inspect
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pytest

from torch_tfrecord import TFRecordError, TFRecordWriter, infer_features, native

RECORDS = Path(__file__).parents[1] / "data" / "records"


def for_each(names, values, ids=repr):
    """Run a test with each of many values, as `pytest.mark.parametrize` does, but as one test.

    For cases of microseconds: each test costs milliseconds. An error names its case. They share
    their fixtures.
    """
    names, values = [names] if isinstance(names, str) else names, [*values]

    def decorate(test):
        @functools.wraps(test)
        def run(**fixtures):
            for value in values:
                case = dict(zip(names, [value] if len(names) == 1 else value, strict=True))
                try:
                    test(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    shown = ", ".join(f"{name}={ids(one):.80}" for name, one in case.items())
                    raise AssertionError(f"with {shown}: {error}") from error

        signature = inspect.signature(test)
        others = [field for name, field in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=others)
        return run

    return decorate


def run_program(code, folder, *arguments, timeout=120):
    """What `python -c` with a program printed, and its exit status: in a process that knows nothing
    of this one.

    Not for what importing does: torch is imported there (conftest.py), which takes three seconds
    otherwise.
    """
    context = multiprocessing.get_context("forkserver")
    outputs = [Path(folder) / name for name in ("stdout", "stderr")]
    process = context.Process(target=_run_here, args=(code, arguments, outputs))
    process.start()
    process.join(timeout)
    process.kill()
    process.join()
    return subprocess.CompletedProcess(
        "program", process.exitcode, *(path.read_text() for path in outputs)
    )


def _run_here(code, arguments, outputs):
    for number, path in enumerate(outputs, 1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["-c", *map(str, arguments)]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def slow_crc32c(data):
    """CRC-32C bit by bit's table, in plain Python."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def slow_masked(data):
    crc = slow_crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def header(length):
    field = struct.pack("<Q", length)
    return field + struct.pack("<I", slow_masked(field))


def framed(*payloads):
    """Records as the format says, without the package's code."""
    return b"".join(header(len(p)) + p + struct.pack("<I", slow_masked(p)) for p in payloads)


def gzip_member(data, level=6, name=None, extra=None):
    """One gzip member; `name` and `extra` put those fields into its header."""
    flags = (8 if name else 0) | (4 if extra else 0)
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff"
    if extra:
        head += struct.pack("<H", len(extra)) + extra
    if name:
        head += name + b"\0"
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = deflater.compress(data) + deflater.flush()
    return head + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


BGZIP_EXTRA = b"BC\x02\x00\x00\x00"
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def compressed(data, kind):
    return {"": bytes, "GZIP": lambda d: gzip.compress(d, mtime=0), "ZLIB": zlib.compress}[kind](
        data
    )


def inferred(records):
    """The features that are proposed for serialized records."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tfrecord")
        with TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
        try:
            return infer_features(path, num_records=max(len(records), 1))
        except TFRecordError as error:
            error.path = error.offset = None
            raise


def random_payloads(count, seed, max_bytes=200):
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 3, rng.randrange(max_bytes)])) for _ in range(count)]


def collect(iterator, error_type):
    """Items up to the first error of a type, and that error (None at a normal end)."""
    items = []
    try:
        for item in iterator:
            items.append(item)
    except error_type as error:
        return items, error
    return items, None


class FaultyRead:
    """Stands in for os.preadv: what happens at the call with number `at` is `fault`, else the real
    thing.
    """

    def __init__(self, fault, at):
        self._fault, self._at, self._real = fault, at, os.preadv
        self.calls = 0

    def __call__(self, fd, buffers, offset):
        self.calls += 1
        if self.calls - 1 != self._at:
            return self._real(fd, buffers, offset)
        if self._fault == "short":
            (buffer,) = buffers
            return self._real(fd, [buffer[: max(1, len(buffer) // 2)]], offset)
        if self._fault == "memory":
            raise MemoryError
        number = getattr(errno, self._fault)
        raise OSError(number, os.strerror(number))


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def run_python(code, *arguments, timeout=120, **options):
    """Run code in a fresh process; returns the CompletedProcess."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def load_script(path):
    """The module of a file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def pure_python(wanted=True):
    """The Python fallbacks (or with False the compiled core) for a while, as the environment
    chooses.
    """
    switch = "TORCH_TFRECORD_PURE_PYTHON"
    before = os.environ.get(switch)
    try:
        os.environ[switch] = "1" if wanted else "0"
        _forget_choice()
        yield
    finally:
        os.environ.pop(switch) if before is None else os.environ.update({switch: before})
        _forget_choice()


def _forget_choice():
    native._is_forced_off.cache_clear()
    native.native_module.cache_clear()
    native.optional_module.cache_clear()
