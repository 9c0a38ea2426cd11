"""`tfrecord verify --decode`: every record is read, its pictures and sounds decoded.

Covers index_tools/verify.
"""

import json
import struct
from pathlib import Path

import pytest
import torch

from index_tools.main import main
from torch_tfrecord import TFRecordWriter, encode_example, encode_image, encode_sequence_example

PICTURE = encode_image(torch.arange(768, dtype=torch.uint8).reshape(3, 16, 16), "png")
SOUND = b"RIFF" + struct.pack("<I4s4sIHHIIHH", 44, b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
SOUND += struct.pack("<4sI4h", b"data", 8, 1, 2, 3, 4)
FEATURES = """\
import torch
from torch_tfrecord import FixedLenFeature, Image

features = {"image": Image(), "label": FixedLenFeature((), torch.int64)}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("features.py").write_text(FEATURES)
    return tmp_path


def write(path, rows, **options):
    with TFRecordWriter(path, **options) as writer:
        for row in rows:
            writer.write(row)


def offset_of(rows, number):
    """Where a record begins: 16 bytes are around each."""
    return sum(len(encode_example(row)) + 16 for row in rows[:number])


GOOD = {"image": PICTURE, "sound": SOUND, "label": 3, "name": "x"}
CUT = GOOD | {"image": PICTURE[:-20]}
# whole by its header, but not by its pixels
CHANGED = GOOD | {"image": PICTURE[:45] + b"\xff" * 8 + PICTURE[53:]}


def test_good_files(capsys):
    write("a.tfrecord", [GOOD] * 3)
    write("b.tfrecord.gz", [{"label": [1, 2]}, {"other": 3.5}])
    steps = encode_sequence_example({"id": 1}, {"frame": [PICTURE] * 2})
    write("c.tfrecord", [steps])
    write("d.tfrecord", [])
    assert main(["verify", ".", "--decode"]) == 0
    assert capsys.readouterr().out.endswith(" 0 bad files\n")


def test_a_picture_that_does_not_decode(capsys):
    rows = [GOOD, CUT, GOOD, CHANGED]
    write("a.tfrecord", rows)
    write("b.tfrecord", [GOOD])
    assert main(["verify", "a.tfrecord", "b.tfrecord"]) == 0
    capsys.readouterr()
    assert main(["verify", "a.tfrecord", "b.tfrecord", "--decode"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"bad: a.tfrecord: record 1 at byte {offset_of(rows, 1)}: feature 'image': expected a whole PNG image, got "
        f"{len(PICTURE) - 20} bytes that end early"
    )
    assert lines[1].startswith(
        f"bad: a.tfrecord: record 3 at byte {offset_of(rows, 3)}: feature 'image': "
    )
    assert lines[2].startswith("2 files, 5 records, ")
    assert lines[2].endswith(" 1 bad file")


def test_a_sound_that_does_not_decode(capsys):
    rows = [GOOD, GOOD | {"sound": SOUND[:-2]}]
    write("a.tfrecord", rows)
    assert main(["verify", "a.tfrecord", "--decode"]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(
        f"bad: a.tfrecord: record 1 at byte {offset_of(rows, 1)}: feature 'sound': "
    )
    assert "WAV" in line


def test_a_step_that_does_not_decode(capsys):
    write("a.tfrecord", [encode_sequence_example({"id": 1}, {"frame": [PICTURE, PICTURE[:-9]]})])
    assert main(["verify", "a.tfrecord", "--decode"]) == 1
    assert capsys.readouterr().out.startswith(
        "bad: a.tfrecord: record 0 at byte 0: feature 'frame': "
    )


def test_a_record_that_is_no_example(capsys):
    write("a.tfrecord", [b"a line of text", encode_example(GOOD)])
    assert main(["verify", "a.tfrecord", "--decode"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "bad: a.tfrecord: record 0 at byte 0: expected an Example or SequenceExample, got 14 bytes that look like "
        "text: features=Text() reads them"
    )


def test_features(capsys):
    rows = [
        GOOD,
        {"image": PICTURE, "label": [1, 2]},
        {"image": b"\0" * 9, "label": 1},
        {"label": 1},
    ]
    write("a.tfrecord", rows)
    assert main(["verify", "a.tfrecord", "--decode", "--features", "features.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    places = [
        f"bad: a.tfrecord: record {number} at byte {offset_of(rows, number)}: "
        for number in (1, 2, 3)
    ]
    assert [line.startswith(place) for line, place in zip(lines, places, strict=False)] == [
        True
    ] * 3
    assert "label" in lines[0]
    assert "image" in lines[1]
    assert "image" in lines[2]
    # the option alone says it, too
    assert main(["verify", "a.tfrecord", "--features", "features.py", "--jobs", "1"]) == 1
    capsys.readouterr()
    assert main(["verify", "a.tfrecord", "--features", "features.py", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["bad_records"]) == 3


def test_json_has_all_and_a_terminal_ten(capsys):
    rows = [GOOD] + [CUT] * 12
    write("a.tfrecord", rows)
    assert main(["verify", "a.tfrecord", "--decode", "--json"]) == 1
    (fact,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(fact["bad_records"]) == 12
    assert fact["error"] == fact["bad_records"][0]
    assert fact["num_records"] == 13
    assert main(["verify", "a.tfrecord", "--decode"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[10] == "bad: a.tfrecord: 12 records in all"


def test_damage_and_a_missing_file_besides(capsys):
    rows = [GOOD, GOOD, CUT]
    write("a.tfrecord", rows)
    data = bytearray(Path("a.tfrecord").read_bytes())
    data[offset_of(rows, 1) + 30] ^= 1
    Path("a.tfrecord").write_bytes(data)
    write("b.tfrecord", [CUT])
    assert main(["verify", "a.tfrecord", "no.tfrecord", "b.tfrecord", "--decode"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bad: no.tfrecord: ")
    assert lines[1].startswith(f"bad: a.tfrecord: record 1 at byte {offset_of(rows, 1)}: ")
    assert "damaged in 1 place" in lines[1]
    assert lines[2].startswith(
        f"bad: a.tfrecord: record 2 at byte {offset_of(rows, 2)}: feature 'image'"
    )
    assert lines[3].startswith("bad: b.tfrecord: record 0 at byte 0: feature 'image'")
    assert lines[4].endswith("3 bad files")


def test_wrong_features(capsys):
    write("a.tfrecord", [GOOD])
    Path("none.py").write_text("x = 1\n")
    assert main(["verify", "a.tfrecord", "--features", "none.py"]) == 2
    assert "none.py: expected code that assigns `features`" in capsys.readouterr().out
    assert main(["verify", "a.tfrecord", "--features", "no.py"]) == 2
    assert "no.py" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.daily
def test_in_processes(capsys):
    for number in range(3):
        write(f"{number}.tfrecord", [GOOD] * 3 + [CUT] * (number == 1))
    assert main(["verify", "*.tfrecord", "--decode", "--jobs", "2"]) == 1
    assert capsys.readouterr().out.startswith("bad: 1.tfrecord: record 3 at byte ")
    options = ["--features", "features.py", "--jobs", "2"]
    assert main(["verify", "*.tfrecord", *options]) == 1
    assert capsys.readouterr().out.startswith("bad: 1.tfrecord: record 3 at byte ")
