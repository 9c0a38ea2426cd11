"""zlib's decompression with the places of blocks: what comes out, and where it goes on, is what
Python's zlib says.
"""

import random
import zlib

import pytest
from helpers import framed, pure_python

from torch_tfrecord import build_index, errors
from torch_tfrecord.compression import seek_points
from torch_tfrecord.compression.deflate import lead_in
from torch_tfrecord.native import how_to_install, optional_module

inflate = optional_module("inflate")
needs_inflate = pytest.mark.skipif(inflate is None, reason="built without zlib's headers")
BITS = (31, 15, -15)


def packed(rng, bits):
    """A stream of any kind, and what is in it."""
    words = [rng.randbytes(rng.randrange(1, 12)) for _ in range(rng.choice([3, 90]))]
    data = b"".join(rng.choices(words, k=rng.randrange(20_000)))
    packer = zlib.compressobj(
        rng.randrange(10), zlib.DEFLATED, bits, rng.randrange(1, 10), rng.randrange(5)
    )
    parts = []
    for at in range(0, len(data), 30_000):
        parts.append(packer.compress(data[at : at + 30_000]))
        parts.append(packer.flush(rng.choice([zlib.Z_NO_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_BLOCK])))
    return b"".join(parts) + packer.flush(), data


def damaged(rng, stream):
    stream = bytearray(stream)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(stream))
        kind = rng.randrange(4)
        if kind == 0:
            stream[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            stream[at : at + 9] = rng.randbytes(9)
        elif kind == 2:
            del stream[at : at + rng.randrange(1, 99)]
        else:
            stream += stream[at : at + 99]
        stream = stream or bytearray(1)
    return bytes(stream)


def outcome(engine, bits, stream, sizes):
    """What comes out call by call, how it ends, and the borders."""
    inflater, found, borders, done, place = engine.decompressobj(bits), [], [], 0, 0
    rest = b""
    for size, most in sizes:
        data, done = rest + stream[done : done + size], done + size
        try:
            found.append(inflater.decompress(data, most))
        except zlib.error:
            return found, "error", b"", borders
        if (border := getattr(inflater, "border", None)) is not None:
            begin = min(done, len(stream)) - len(data)
            borders.append((8 * begin + border[1], place + border[0], border[2]))
        place += len(found[-1])
        if inflater.eof:
            return found, "end", inflater.unused_data + stream[done:], borders
        rest = inflater.unconsumed_tail
    return found, "open", b"", borders


def check(seed):
    rng = random.Random(seed)
    bits = rng.choice(BITS)
    stream, data = packed(rng, bits)
    is_whole = rng.random() < 0.2
    stream = stream if is_whole else damaged(rng, stream)
    size, most = rng.choice([1 << 17, 5000, 99]), rng.choice([1 << 18, 40_000, 3000])
    sizes = [(size, most)] * (len(stream) // size + len(data) // most + 3)
    found, end, rest, borders = outcome(inflate, bits, stream, sizes)
    expected = outcome(zlib, bits, stream, sizes)
    assert (b"".join(found), end, rest) == (b"".join(expected[0]), *expected[1:3])
    if is_whole:
        assert (b"".join(found), end) == (data, "end")
        for bit, place, window in rng.sample(borders, min(len(borders), 3)):
            assert window == data[max(place - (1 << 15), 0) : place][-len(window) :]
            following = lead_in(stream[bit >> 3 :], bit & 7)
            assert zlib.decompressobj(-15, zdict=window).decompress(following) == data[place:]
            needed = seek_points._needed_window(window, following)
            if needed is not None:
                again = zlib.decompressobj(-15, zdict=needed).decompress(following, 1 << 15)
                assert again == data[place:][: 1 << 15]
    return borders


@needs_inflate
def test_it_is_as_zlib():
    assert sum(len(check(seed)) for seed in range(60)) > 100


@needs_inflate
@pytest.mark.daily
def test_it_is_as_zlib_of_many_streams():
    for seed in range(10_000):
        check(seed)


@needs_inflate
def test_what_it_refuses():
    with pytest.raises(MemoryError, match="refuses the window"):
        inflate.decompressobj(31, b"a window of no raw stream")
    with pytest.raises(MemoryError):
        inflate.decompressobj(99)
    with pytest.raises(TypeError):
        inflate.decompressobj(31).decompress(None, 10)
    assert inflate.decompressobj(31).decompress(b"", 10) == b""
    assert inflate.decompressobj(31).decompress(zlib.compress(b"abc", wbits=31), 0) == b""


def test_without_it_a_stream_is_entered_at_its_beginning(tmp_path, monkeypatch, recwarn):
    records = tmp_path / "a.gz"
    records.write_bytes(zlib.compress(framed(*[b"a" * 9000] * 400), wbits=31))
    with pure_python(True):
        assert len(build_index(records)._points) == 1
        assert not recwarn.list  # the user has chosen that
        monkeypatch.setattr(seek_points, "fallback_reason", lambda name: "not built")
        errors.warn_once.cache_clear()
        for _ in range(2):
            assert len(build_index(records)) == 400
    errors.warn_once.cache_clear()
    (told,) = [str(each.message) for each in recwarn.list]
    assert told.startswith("a gzip or zlib file is entered at its beginning")
    assert told.endswith(how_to_install())
