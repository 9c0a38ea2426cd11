"""`salvage` of files that are damaged in known ways.

Covers damage/saved_records, compression/deflate.
"""

import gzip
import json
import os
import random
import re
import zlib

import pytest
import torch
from damaged import between, damage
from helpers import framed, header

from index_tools.main import main
from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    FixedLenFeature,
    SalvageReport,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    read_records,
    salvage,
)

KINDS = [
    *[(kind,) for kind in ("flip", "cut", "insert", "zero", "double", "tail")],
    *[("flip", "cut"), ("zero", "insert"), ("double", "flip"), ("double", "zero"), ("cut", "tail")],
]


def payloads(rng, count):
    return [b"%07d|" % number + rng.randbytes(rng.randrange(20, 300)) for number in range(count)]


def whole_records(content, frames):
    """Number, begin and end of each record that is in a file byte for byte."""
    for found in re.finditer(rb"\d{7}\|", content):
        number, at = int(found[0][:7]), found.start() - 12
        frame = frames[number] if number < len(frames) else None
        if frame is not None and at >= 0 and content.startswith(frame, at):
            yield number, at, at + len(frame)


def check_plain(folder, seed, kinds, count, places):
    """All records whose checksums fit come out, in order, and none else; what is lost is exact."""
    rng = random.Random(f"{seed} {kinds}")
    records = payloads(rng, count)
    frames = [framed(record) for record in records]
    content, _ = damage(rng, b"".join(frames), kinds, places)
    good = [*whole_records(content, frames)]
    bad = folder / "bad"
    bad.write_bytes(content)
    report = salvage(bad, folder / "good", compression_type="")
    found = list(read_records(folder / "good"))
    assert found == [records[number] for number, _, _ in good], (seed, kinds)
    assert report.lost == between([range_ for _, *range_ in good], len(content)), (seed, kinds)
    assert report.num_records == len(found)
    assert len(report.kinds) == len(report.lost)
    assert bad.read_bytes() == content
    return len(found) - len(set(found))


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_all_that_is_good_comes_out(tmp_path, kinds):
    twice = sum(check_plain(tmp_path, seed, kinds, 600, 10) for seed in range(3))
    assert (twice > 0) == ("double" in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_two_rounds(tmp_path, kinds):
    for seed in range(200, 202):
        check_plain(tmp_path, seed, kinds, 3000, 30)


@pytest.mark.daily
@pytest.mark.parametrize("first", range(0, 100, 20))
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_a_hundred_rounds(tmp_path, kinds, first):
    for seed in range(first, first + 20):
        check_plain(tmp_path, seed, kinds, 4000, 25)


# Compressed files.


def texts(rng, count):
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(800)]
    return [
        b"%07d " % number + b" ".join(rng.choices(words, k=rng.randrange(5, 120)))
        for number in range(count)
    ]


def compressed(rng, frames, way, folder):
    """A file, and the begin, end, first and last record of each member that has whole ones."""
    if way == "zlib":
        return zlib.compress(b"".join(frames)), []
    if way == "one":
        return gzip.compress(b"".join(frames), 6, mtime=0), []
    out, found, first = b"", [], 0
    while first < len(frames):
        last = min(len(frames), first + rng.choice([20, 100, 300]))
        if way == "ours":
            path = folder / "member.gz"
            with TFRecordWriter(path, member_bytes=1 << 14) as writer:
                for frame in frames[first:last]:
                    writer.write(frame[12:-4])
            member = path.read_bytes()
        else:
            member = gzip.compress(b"".join(frames[first:last]), 6, mtime=0)
        found.append((len(out), len(out) + len(member), first, last))
        out += member
        first = last
    return out, found


def check_compressed(folder, seed, kinds, count, places, way):
    """The records of undamaged members come out, in order, as often as they are there; of the
    others none that is wrong.
    """
    rng = random.Random(f"{seed} {kinds} {way}")
    records = texts(rng, count)
    data, members = compressed(rng, [framed(record) for record in records], way, folder)
    content, kept = damage(rng, data, kinds, places)
    (folder / "bad").write_bytes(content)
    kind = "ZLIB" if way == "zlib" else "GZIP"
    report = salvage(folder / "bad", folder / "good", compression_type=kind)
    numbers = {record: number for number, record in enumerate(records)}
    found = [numbers[record] for record in read_records(folder / "good")]  # none that is wrong
    assert len(found) == report.num_records
    rest = iter(found)
    for low, high, _ in kept:
        for begin, end, first, last in members:
            if low <= begin and end <= high:
                assert all(number in rest for number in range(first, last)), (seed, kinds)
    assert report.gaps


@pytest.mark.slow
@pytest.mark.parametrize("way", ["members", "ours", "one", "zlib"])
@pytest.mark.parametrize("kinds", KINDS[:7], ids="+".join)
def test_compressed_files(tmp_path, kinds, way):
    check_compressed(tmp_path, 0, kinds, 1500, 6, way)


@pytest.mark.daily
@pytest.mark.parametrize("way", ["members", "ours", "one", "zlib"])
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_twenty_compressed_rounds(tmp_path, kinds, way):
    for seed in range(20):
        check_compressed(tmp_path, seed, kinds, 2000, 12, way)


def test_behind_a_damaged_block_the_next_one_is_found(tmp_path):
    # Blocks without references to others: what is behind a damaged one is whole.
    records = [random.Random(number).randbytes(900) for number in range(900)]
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    parts = [packer.compress(framed(record)) for record in records] + [packer.flush()]
    content = bytearray(b"".join(parts))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "bad.gz").write_bytes(content)
    report = salvage(tmp_path / "bad.gz", tmp_path / "good")
    assert set(read_records(tmp_path / "good")) <= set(records)
    assert report.num_records > 840


def test_snappy_by_the_same_rule(tmp_path):
    """A block whose bytes are wrong loses their records, one that does not decompress all behind."""
    snappy = pytest.importorskip("cramjam").snappy
    records = payloads(random.Random(0), 30)
    parts = [bytes(snappy.compress_raw(framed(*records[at : at + 10]))) for at in (0, 10, 20)]
    blocks = [len(part).to_bytes(4, "big") + part for part in parts]
    wrong, broken = bytearray(b"".join(blocks)), bytearray(b"".join(blocks))
    wrong[len(blocks[0]) + 100] ^= 1  # in the middle of a literal
    broken[len(blocks[0]) + 4] ^= 0x7F  # its length
    for content, found in ((wrong, records[:10] + records[11:]), (broken, records[:10])):
        (tmp_path / "bad").write_bytes(content)
        report = salvage(tmp_path / "bad", tmp_path / "good", compression_type="SNAPPY")
        assert [*read_records(tmp_path / "good")] == found
        assert ("snappy: the stream is damaged" in report.error) == (len(found) == 10)


# Records inside others.


@pytest.mark.parametrize("at", ["length checksum", "payload", "footer", "inner"])
@pytest.mark.parametrize("before", [b"", b"junk"])
@pytest.mark.parametrize("after", [b"", b"junk"])
def test_records_in_a_payload_are_not_taken_for_records(tmp_path, at, before, after):
    inner = before + framed(b"one", b"two" * 9, b"") + after
    frames = [framed(b"first"), framed(inner), framed(b"last")]
    begin, size = len(frames[0]), len(frames[1])
    place = {"length checksum": 9, "payload": 12, "footer": size - 1, "inner": 26}[at]
    content = bytearray(b"".join(frames))
    content[begin + place] ^= 4
    (tmp_path / "bad").write_bytes(content)
    report = salvage(tmp_path / "bad", tmp_path / "good", compression_type="")
    assert list(read_records(tmp_path / "good")) == [b"first", b"last"]
    assert report.lost == [(begin, begin + size)]
    assert report.kinds == ["header CRC" if "length" in at else "payload CRC"]
    assert report.num_behind == 1


def test_records_of_a_payload_whose_end_nothing_shows_come_out(tmp_path):
    inner = framed(b"one", b"two" * 9)
    frames = [framed(b"first"), framed(bytes(50) + inner), framed(b"last")]
    content = bytearray(b"".join(frames))
    begin = len(frames[0])
    found = [b"first", b"one", b"two" * 9, b"last"]
    cut = content[:begin] + content[begin + 30 :]  # the beginning is lost
    content[begin] ^= 4  # the length is wrong
    for bad, skipped in ((cut, 32), (content, 62)):
        (tmp_path / "bad").write_bytes(bad)
        report = salvage(tmp_path / "bad", tmp_path / "good", compression_type="")
        assert list(read_records(tmp_path / "good")) == found
        end = begin + skipped + len(inner)
        assert report.lost == [(begin, begin + skipped), (end, end + 4)]


def test_bytes_missing_from_a_payload_hide_no_records(tmp_path):
    """As many as the records behind them have, so that the header seems right."""
    frames = [framed(b"a" * 100), framed(b"b"), framed(b"c"), framed(b"last")]
    content = b"".join(frames)
    (tmp_path / "bad").write_bytes(content[:20] + content[20 + len(frames[1]) :])
    report = salvage(tmp_path / "bad", tmp_path / "good", compression_type="")
    assert list(read_records(tmp_path / "good")) == [b"b", b"c", b"last"]
    assert report.lost == [(0, len(frames[0]) - len(frames[1]))]


def test_a_stray_byte_loses_no_record(tmp_path):
    """The length that it makes of a header leads to where another record begins."""
    frames = [framed(b"x" * 61)] * 300  # 256 * 61 + 15 is a multiple of 77
    (tmp_path / "bad").write_bytes(frames[0] + b"\0" + b"".join(frames[1:]))
    report = salvage(tmp_path / "bad", tmp_path / "good", compression_type="")
    assert report.num_records == 300
    assert report.lost == [(77, 78)]
    assert report.kinds == ["header CRC"]


def test_first_bytes_that_look_compressed(tmp_path):
    junk = b"\0\1\0\0\x7f\xec"  # a block of Snappy's that begins with 60 bytes as they are
    content = junk + framed(b"x" * 90, b"y")
    (tmp_path / "bad").write_bytes(content)
    for kind in ("", None):
        report = salvage(tmp_path / "bad", tmp_path / "good", compression_type=kind)
        assert report.num_records == 2
        assert report.lost == [(0, 6)]
    (tmp_path / "bad").write_bytes(b"\x78\x9c" + framed(b"y"))
    assert salvage(tmp_path / "bad", tmp_path / "good", compression_type="").num_records == 1
    (tmp_path / "bad").write_bytes(gzip.compress(framed(b"y")))
    with pytest.raises(CompressionError, match="got a gzip stream"):
        salvage(tmp_path / "bad", tmp_path / "good", compression_type="")


# Data that repeat themselves.


@pytest.mark.parametrize("begin", [0, 5])
def test_a_piece_that_is_there_twice_comes_out_twice(tmp_path, begin):
    """A write that began again: at a record, or in the midst of one."""
    records = payloads(random.Random(0), 40)
    content = framed(*records)
    borders = [len(framed(*records[:number])) for number in range(41)]
    at = borders[20] + 3 * begin  # in record 20
    (tmp_path / "bad").write_bytes(content[:at] + content[borders[10] + begin :])
    report = salvage(tmp_path / "bad", tmp_path / "good")
    again = 11 if begin else 10
    assert list(read_records(tmp_path / "good")) == records[:20] + records[again:]
    size = at - borders[20] + borders[again] - borders[10] - begin
    assert report.lost == ([(borders[20], borders[20] + size)] if begin else [])
    assert report.kinds == ["payload CRC"] * len(report.lost)


# The report.


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data[:40] + b"\xff" + data[41:], "header CRC"),
        (lambda data: data[:60] + b"\xff" + data[61:], "payload CRC"),
        (lambda data: data[:-3], "cut"),
        (lambda data: data + b"trailing bytes", "trailing bytes"),
    ],
)
def test_kinds_of_damage(tmp_path, change, kind):
    (tmp_path / "bad").write_bytes(change(framed(bytes(20), bytes(40), bytes(60))))
    report = salvage(tmp_path / "bad", tmp_path / "good")
    assert report.kinds == [kind]
    assert report.gaps == []
    assert str(tmp_path / "bad") in report.error


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data[:-6] + b"\xff" + data[-5:], "gzip CRC"),
        (lambda data: data[: len(data) // 2], "cut"),
        (lambda data: data + b"trailing bytes", "trailing bytes"),
    ],
)
def test_kinds_of_damage_of_a_gzip_file(tmp_path, change, kind):
    data = gzip.compress(framed(*payloads(random.Random(0), 50)), mtime=0)
    (tmp_path / "bad").write_bytes(change(data))
    report = salvage(tmp_path / "bad", tmp_path / "good")
    assert [kind for *_, kind in report.gaps] == [kind]
    assert report.num_records == (
        50 if kind != "cut" else len(list(read_records(tmp_path / "good")))
    )


def test_an_undamaged_file_is_copied(tmp_path):
    path = tmp_path / "a.gz"
    with TFRecordWriter(path) as writer:
        writer.write(b"abc")
    assert salvage(path, tmp_path / "b.gz") == SalvageReport(1)
    assert list(read_records(tmp_path / "b.gz")) == [b"abc"]
    assert TFRecordDataset(tmp_path / "b.gz", index="require").raw(0) == b"abc"


def test_an_empty_file_is_copied(tmp_path):
    (tmp_path / "a").touch()
    assert salvage(tmp_path / "a", tmp_path / "b") == SalvageReport(0)


@pytest.mark.parametrize("content", [b"no records at all" * 9, b"\x89PNG", header(7)])
def test_a_file_without_a_good_record_gives_none(tmp_path, content):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(CorruptRecordError, match=r"bad: no good record: .*bad: record 0 at byte 0"):
        salvage(tmp_path / "bad", tmp_path / "good")
    assert os.listdir(tmp_path) == ["bad"]


def test_wrong_arguments(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(framed(b"abc"))
    with pytest.raises(ValueError, match="out must be another file than the damaged one"):
        salvage(path, f"{tmp_path}/../{tmp_path.name}/a")
    with pytest.raises(ValueError, match="compression_type must be"):
        salvage(path, tmp_path / "b", compression_type="LZ4")
    with pytest.raises(FileNotFoundError):
        salvage(tmp_path / "gone", tmp_path / "b")
    with pytest.raises(CompressionError, match="expected a gzip stream"):
        salvage(path, tmp_path / "b", compression_type="GZIP")
    assert os.listdir(tmp_path) == ["a"]


# A dataset of what is good.


@pytest.mark.parametrize("suffix", ["", ".gz", ".zlib"])
def test_a_dataset_of_the_good_records(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    with TFRecordWriter(path, member_bytes=4000) as writer:
        for number in range(500):
            text = random.Random(number).randbytes(30)
            writer.write(encode_example({"id": number, "text": text}))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 30] = bytes(30)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"on_error='skip': skipped \d+ "):
        ds = TFRecordDataset(path, {"id": FixedLenFeature((), torch.int64)}, on_error="skip")
    found = [sample["id"].item() for sample in ds.__getitems__(range(len(ds)))]
    assert found == sorted(set(found))
    assert 350 < len(found) < 500
    assert "Error" in str(ds.report)


# The command.


def test_the_command(tmp_path, capsys):
    bad, good = tmp_path / "bad", tmp_path / "good.gz"
    bad.write_bytes(framed(b"abc") + b"junk" + framed(b"defg"))
    assert main(["salvage", str(bad), str(good)]) == 0
    assert capsys.readouterr().out == (
        f"lost [19, 23): header CRC\n2 records -> {good} (4 bytes damaged in 1 place, 2 good records, "
        "1 behind the first damage)\n"
    )
    assert list(read_records(good)) == [b"abc", b"defg"]
    assert main(["salvage", str(bad), str(good), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_records"] == 2
    assert found["lost"] == [[19, 23]]
    assert main(["verify", str(bad), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        **found,
        "path": str(bad),
        "error": found["error"],
    }


def test_the_command_without_a_good_record(tmp_path, capsys):
    (tmp_path / "bad").write_bytes(b"nothing good")
    assert main(["salvage", str(tmp_path / "bad"), str(tmp_path / "good")]) == 1
    assert "no good record" in capsys.readouterr().err
    assert main(["salvage", str(tmp_path / "gone"), str(tmp_path / "good")]) == 2
    assert os.listdir(tmp_path) == ["bad"]
