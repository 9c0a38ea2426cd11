"""`tfrecord show`: records as text that a terminal survives, without reading more than is
needed.
"""

import gzip

import numpy as np
import pytest
import torch
from helpers import framed

import torch_tfrecord
from index_tools.main import main
from index_tools.show import describe_bytes, show_record
from torch_tfrecord import (
    ParseError,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    encode_image,
    encode_sequence_example,
    infer_features,
    serialize_tensor,
)
from torch_tfrecord.tables import FoundRecord


def write(path, records, **options):
    with TFRecordWriter(path, **options) as writer:
        for record in records:
            writer.write(record)


def positions(text):
    return [int(line.split()[1][:-1]) for line in text.splitlines() if line.startswith("record ")]


def test_an_example_of_every_kind(folder, capsys):
    picture = encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png")
    record = encode_example(
        {
            "image/encoded": picture,
            "label": 7,
            "many": np.arange(784, dtype=np.float32) / 4,
            "name": 'caf\xe9\n\t"quoted" \\',
            "none": np.empty(0, np.int64),
            "several": [b"a", b"\xff\x00", b"", b"d"],
            "shape": (2, 3, -4),
            "tensor": serialize_tensor(torch.zeros(3, 4, dtype=torch.bfloat16)),
        }
    )
    write("a.tfrecord", [record])
    assert main(["show", "a.tfrecord", "--no-features"]) == 0
    assert capsys.readouterr().out == (
        f"record 0: a.tfrecord, offset 0, {len(record)} bytes, Example, 8 features\n"
        f"  image/encoded  bytes      1  png 6x4, {len(picture)} bytes\n"
        "  label          int64      1  7\n"
        "  many           float32  784  0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, ...\n"
        '  name           bytes      1  "caf\xe9\\n\\t\\"quoted\\" \\\\"\n'
        "  none           int64      0\n"
        '  several        bytes      4  "a", 0xff00 (2 bytes), "", ...\n'
        "  shape          int64      3  2, 3, -4\n"
        "  tensor         bytes      1  TensorProto bfloat16 [3, 4], 38 bytes\n"
        "\n"
    )


def test_a_sequence_example(capsys):
    steps = [[1, 2], [3], np.empty(0, np.int64), [4], [5]]
    record = encode_sequence_example({"id": 7}, {"tokens": steps, "words": [["a"], ["b", "c"]]})
    write("a.tfrecord", [record])
    assert main(["show", "a.tfrecord"]) == 0
    assert capsys.readouterr().out == (
        f"record 0: a.tfrecord, offset 0, {len(record)} bytes, SequenceExample, 1 context feature, 2 feature lists\n"
        "  context id   int64  1  7\n"
        "  list tokens  int64  5  [1, 2], [3], [], [4], ...\n"
        '  list words   bytes  2  ["a"], ["b", "c"]\n'
        "\n"
        "# inferred from 1 record of 1 file\n"
        "import torch\n"
        "from torch_tfrecord import FixedLenFeature, SequenceFeatures, VarLenFeature\n"
        "\n"
        "features = SequenceFeatures(\n"
        "    context_features={\n"
        '        "id": FixedLenFeature((), torch.int64),\n'
        "    },\n"
        "    sequence_features={\n"
        '        "tokens": VarLenFeature(torch.int64),\n'
        '        "words": VarLenFeature(str),\n'
        "    },\n"
        ")\n"
    )


@pytest.mark.parametrize(
    ("record", "looks", "spec"),
    [
        (b"a line of text", "text", "Text()"),
        ("Zeile f\xfcr Zeile".encode(), "text", "Text()"),
        (b'{"a": [1, 2]}', "JSON text", "Json()"),
        (encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png"), "a PNG image", "Image()"),
        (
            b"\x09" + bytes(8) + b"\x10\x01\x2a\x01\xff",
            "a TensorFlow event, as in tfevents files",
            "Proto(...)",
        ),
        (b"\xff\xfe" * 9, "an unknown format", "None"),
    ],
)
def test_records_that_are_no_examples_say_what_reads_them(record, looks, spec, capsys):
    write("a.tfrecord", [record] * 2)
    assert main(["show", "a.tfrecord"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"record 0: a.tfrecord, offset 0, {len(record)} bytes, looks like {looks}"
    assert lines[-1] == "# no features: " + (
        told
        := f"a.tfrecord: record 0 at byte 0: expected an Example or SequenceExample, got {len(record)} bytes that "
        f"look like {looks}: features={spec} reads them"
    )
    with pytest.raises(ParseError) as caught:  # the two agree
        infer_features("a.tfrecord")
    assert str(caught.value) == told
    if spec.endswith("()"):
        assert (
            len(TFRecordDataset("a.tfrecord", getattr(torch_tfrecord, spec[:-2])(), index="memory"))
            == 2
        )


def test_an_image_that_does_not_decode_says_why_it_is_read_as_bytes(capsys):
    png = encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png")
    rows = [{"image": png, "data": b"\xff", "text": "x"}] * 3
    write("a.tfrecord", [*rows, rows[0] | {"image": png[:-5]}])
    offset = 3 * (len(encode_example(rows[0])) + 16)
    assert main(["show", "a.tfrecord", "-n", "0"]) == 0
    assert capsys.readouterr().out == (
        "# inferred from 4 records of 1 file\n"
        f"# image is not Image(): a.tfrecord: record at byte {offset}: expected a whole PNG image, got {len(png) - 5} "
        "bytes that end early\n"
        "from torch_tfrecord import FixedLenFeature, Text\n"
        "\n"
        "features = {\n"
        '    "data": FixedLenFeature((), bytes),\n'
        '    "image": FixedLenFeature((), bytes),\n'
        '    "text": Text(),\n'
        "}\n"
    )


@pytest.mark.parametrize(
    ("record", "kind", "lines"),
    [
        (b"", "Example, 0 features", []),
        (encode_example({}), "Example, 0 features", []),
        (b"hello world", "looks like text", ['  "hello world"']),
        (
            b"\xff" * 40,
            "looks like an unknown format",
            ["  0xffffffffffffffffffffffff... (40 bytes)"],
        ),
        (b"\x12\x00", "Example, 0 features", []),  # feature_lists, but without a list
        (encode_sequence_example({"a": 1}, {}), "Example, 1 feature", ["  a  int64  1  1"]),
        (
            encode_sequence_example({}, {"a": []}),
            "SequenceExample, 0 context features, 1 feature list",
            ["  list a  -  0"],
        ),
        (
            bytes.fromhex("0a070a050a01611200"),
            "Example, 1 feature",
            ["  a  -  0"],
        ),  # a kind that is not set
    ],
)
def test_what_a_record_is(record, kind, lines):
    head, *found = show_record(FoundRecord("a", 0, 0, record)).split("\n")
    size = f"{len(record)} byte{'s' * (len(record) != 1)}"
    assert (head, found) == (f"record 0: a, offset 0, {size}, {kind}", [*lines, ""])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"x" * 60, '"' + "x" * 60 + '"'),
        (b"x" * 1234, '"' + "x" * 60 + '..." (1.2 KB)'),
        ("\u65e5\u672c".encode(), '"\u65e5\u672c"'),
        (b"\x1b[2J", "0x1b5b324a (4 bytes)"),
        ("\u202e".encode(), "0xe280ae (3 bytes)"),
        (b"GIF89a\x01", "gif (damaged), 7 bytes"),
        (serialize_tensor([[b"\x01", b"b"], [b"c", b"d"]]), "TensorProto string [2, 2], 24 bytes"),
        (serialize_tensor(torch.tensor(1.0)), "TensorProto float32 [], 10 bytes"),
    ],
)
def test_bytes_values(value, text):
    assert describe_bytes(value) == text


def test_no_control_character_reaches_the_terminal(capsys):
    evil = "\x1b]0;title\x07\x9b2J\r"
    write("a.tfrecord", [encode_example({evil: evil, "b": [evil.encode("latin-1")]})])
    assert main(["show", "a.tfrecord"]) == 0
    text = capsys.readouterr().out
    assert all(line.isprintable() for line in text.split("\n"))
    assert "  \\x1b]0;title\\x07\\x9b2J\\r  bytes  1  " in text


def test_features_are_code_that_reads_the_records(capsys):
    write(
        "a.tfrecord", [{"label": number, "values": [0.5] * (1 + number % 2)} for number in range(5)]
    )
    assert main(["show", "a.tfrecord", "-n", "0"]) == 0
    code = capsys.readouterr().out
    assert code.startswith("# inferred from 5 records of 1 file\n")
    namespace = {}
    exec(code, namespace)
    sample = TFRecordDataset("a.tfrecord", namespace["features"], index="memory")[3]
    assert sample["label"] == 3
    assert sample["values"].tolist() == [0.5, 0.5]


def test_records_that_give_no_features_say_why(capsys):
    write("a.tfrecord", [encode_example({"a": 1}), encode_example({"a": "text"})])
    write("b.tfrecord", [b"\xff"])
    write("c.tfrecord", [{}])
    write("empty.tfrecord", [])
    last_lines = []
    for name in ("a", "b", "c", "empty"):
        assert main(["show", f"{name}.tfrecord"]) == 0
        last_lines.append(capsys.readouterr().out.splitlines()[-1])
    assert last_lines[0].startswith("# no features: a.tfrecord: record 1 at byte 30: feature 'a': ")
    assert last_lines[1].startswith(
        "# no features: b.tfrecord: record 0 at byte 0: expected an Example or Sequence"
    )
    assert last_lines[2:] == [
        "# no features from 1 record of 1 file",
        "# no features from 0 records of 0 files",
    ]


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [0, 1, 2]),
        (["-n", "0"], []),
        (["-n", "99"], list(range(10))),
        (["--position", "4"], [4]),
        (["--position", "8", "-n", "5"], [8, 9]),
        (["--position", "-1"], [9]),
        (["--position", "-10", "-n", "2"], [0, 1]),
    ],
)
def test_which_records(with_index, name, arguments, expected, capsys):
    write(name, [{"number": number} for number in range(10)], write_index=with_index)
    assert main(["show", name, *arguments]) == 0
    text = capsys.readouterr().out
    assert positions(text) == expected
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("  number")] == list(
        map(str, expected)
    )


def test_positions_count_over_all_files(folder, capsys):
    write("a-00000-of-00003", [{"number": 0}, {"number": 1}])
    write("a-00001-of-00003", [])
    write("a-00002-of-00003", [{"number": 2}])
    for arguments in (["-n", "9"], ["-n", "9", "--position", "0"], ["-n", "9", "--position", "-3"]):
        assert main(["show", "a@3", "--no-features", *arguments]) == 0
        heads = [
            line.split(", ")[:2]
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("record")
        ]
        assert heads == [
            ["record 0: a-00000-of-00003", "offset 0"],
            ["record 1: a-00000-of-00003", f"offset {16 + len(encode_example({'number': 0}))}"],
            ["record 2: a-00002-of-00003", "offset 0"],
        ]
    assert len(list(folder.iterdir())) == 3  # no index was left


@pytest.mark.parametrize("position", ["3", "-4"])
def test_a_position_that_is_not_there(position, capsys):
    write("a.tfrecord", [b"abc"] * 3)
    assert main(["show", "a.tfrecord", "--position", position]) == 2
    assert capsys.readouterr() == (
        "",
        f"tfrecord: position must be from -3 to 2 (3 records), got {position}\n",
    )


@pytest.mark.parametrize("position", ["0", "-1"])
def test_a_position_of_an_empty_file(position, capsys):
    write("a.tfrecord", [])
    assert main(["show", "a.tfrecord", "--position", position]) == 2
    assert (
        capsys.readouterr().err
        == f"tfrecord: position {position} is out of range: there are no records\n"
    )
    assert main(["show", "a.tfrecord"]) == 0
    assert capsys.readouterr().out.startswith("no records\n")


def test_records_that_are_no_examples_are_named(capsys):
    write("a.tfrecord", [{"a": 1}] * 150 + [b"\x09" + bytes(8) + b"\x10\x01"] * 50)
    assert main(["show", "a.tfrecord", "-n", "0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# no features: a.tfrecord: record 150 at byte ")
    assert text.endswith(
        "like a TensorFlow event, as in tfevents files: features=Proto(...) reads them\n"
    )


def test_damage_ends_the_output_with_an_error(folder, capsys):
    records = [encode_example({"number": number}) for number in range(5)]
    data = bytearray(b"".join(map(framed, records)))
    data[3 * (len(records[0]) + 16) + 15] ^= 1
    (folder / "a.tfrecord").write_bytes(data)
    offset = 3 * (len(records[0]) + 16)
    assert main(["show", "a.tfrecord", "-n", "5"]) == 1
    output = capsys.readouterr()
    assert positions(output.out) == [0, 1, 2]
    assert "# inferred from 3 records of 1 file\n" in output.out
    assert output.err.startswith(
        f"tfrecord: a.tfrecord: record 3 at byte {offset}: corrupted record: "
    )
    assert output.err.count("\n") == 1
    # behind the damage
    assert main(["show", "a.tfrecord", "--position", "4", "--no-features"]) == 0
    assert positions(capsys.readouterr().out) == [4]
    assert main(["show", "a.tfrecord", "--position", "3", "--no-features"]) == 1
    assert "expected payload checksum" in capsys.readouterr().err


def test_what_is_no_tfrecord_file(folder, capsys):
    (folder / "page.html").write_bytes(b"<!DOCTYPE html><html></html>")
    assert main(["show", "page.html"]) == 1
    assert "(Is this even a TFRecord file? It looks like an HTML page.)" in capsys.readouterr().err
    (folder / "a.gz").write_bytes(gzip.compress(framed(b"abc") + framed(b"def"))[:-6])
    assert main(["show", "a.gz", "--no-features"]) == 1
    output = capsys.readouterr()
    assert positions(output.out) == [0, 1]
    assert "the stream is truncated" in output.err
