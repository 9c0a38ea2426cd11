"""`tfrecord reshard`, `split`, `merge`, `head` and `sample`: the records of TensorFlow's files in other
files.

Covers index_tools/reshard, index_tools/_outputs.
"""

import gzip
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
from helpers import for_each
from range_server import range_server

from index_tools import reshard
from index_tools.main import main
from torch_tfrecord import (
    RecordIndex,
    TFRecordDataset,
    TFRecordWriter,
    build_index,
    build_manifest,
    encode_example,
    find_files,
    make_dataloader,
)

DATA = Path(__file__).parents[1] / "data" / "records"
THOUSAND = "in/thousand_small.tfrecord"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA, "in", ignore=shutil.ignore_patterns("*.idx", "*.json"))
    return tmp_path


def records(path):
    """The payloads of a file, by zlib and the lengths in it alone."""
    data = Path(path).read_bytes()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    elif path.endswith(".zlib"):
        data = zlib.decompress(data)
    found, at = [], 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 12 : end])
        at = end + 4
    return found


def all_records(pattern):
    return [record for path in find_files(pattern) for record in records(path)]


def digests(name):
    """What TensorFlow wrote to a golden file: the first digits of each record's SHA-256."""
    return [
        entry["sha256"][:8] for entry in json.loads((DATA / f"{name}.json").read_text())["records"]
    ]


def as_digests(found):
    return [hashlib.sha256(record).hexdigest()[:8] for record in found]


def files_below(folder="."):
    return sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())


def test_shards_have_neighbours_as_tensorflow_wrote_them(capsys):
    assert main(["reshard", THOUSAND, "out/a", "--num-shards", "3"]) == 0
    paths = find_files("out/a-*")
    assert [len(records(path)) for path in paths] == [333, 333, 334]
    assert as_digests(all_records("out/a-*")) == digests("thousand_small.tfrecord")
    assert b"".join(Path(path).read_bytes() for path in paths) == Path(THOUSAND).read_bytes()
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {number} records of {os.path.getsize(path) / 1e3:.1f} KB: {path}"
        for number, path in zip([333, 333, 334], paths, strict=True)
    ]
    assert len(TFRecordDataset("out/a-*", index="require")) == 1000


@pytest.mark.parametrize("seed", [0, 5])
def test_shuffle_is_that_of_the_loader(seed):
    names = ["in/plain.tfrecord", THOUSAND, "in/gzip.tfrecord.gz"]
    assert (
        main(["reshard", *names, "out/a", "--num-shards", "4", "--shuffle", "--seed", str(seed)])
        == 0
    )
    dataset = TFRecordDataset(names, index="memory")
    loader = make_dataloader(dataset, batch_size=10, shuffle=True, seed=seed, num_threads=0)
    expected = [record for batch in loader for record in batch]
    found = all_records("out/a-*")
    assert found == expected
    golden = [*map(digests, map(os.path.basename, names))]
    assert Counter(as_digests(found)) == Counter(one[:8] for part in golden for one in part)


@pytest.mark.parametrize(
    "name",
    [
        "gzip.tfrecord.gz",
        "gzip_multi_member_split_inside_record.tfrecord.gz",
        "zlib.tfrecord.zlib",
        "plain.tfrecord",
    ],
)
@pytest.mark.parametrize("compression", [None, "NONE", "gzip", "ZLIB"])
def test_compression_is_kept_or_changed(name, compression):
    options = ["--compression", compression] if compression else []
    assert main(["reshard", f"in/{name}", "out/a", "--num-shards", "2", "--shuffle", *options]) == 0
    kept = Path(name).suffix.replace(".tfrecord", "")
    suffix = {None: kept, "NONE": "", "gzip": ".gz", "ZLIB": ".zlib"}[compression]
    assert {path.partition(".tfrecord")[2] for path in find_files("out/a-*")} == {suffix}
    assert Counter(as_digests(all_records("out/a-*"))) == Counter(one[:8] for one in digests(name))


def test_merge_and_its_compression():
    names = ["in/sharded-*", "in/gzip.tfrecord.gz", "in/empty.tfrecord"]
    for out in ("a.tfrecord", "a.tfrecord.gz", "a.zlib"):
        assert main(["merge", *names, out]) == 0
        files = ["gzip.tfrecord.gz", *(f"sharded-0000{number}-of-00003" for number in range(3))]
        assert as_digests(records(out)) == [one[:8] for name in files for one in digests(name)]
    assert main(["merge", "in/empty.tfrecord", "in/empty_gzip.tfrecord.gz", "b.tfrecord"]) == 0
    assert Path("b.tfrecord").read_bytes() == b""


def test_head():
    expected = records("in/plain.tfrecord") + records(THOUSAND)
    for number in (1, 23, 24, 1023):
        assert (
            main(
                [
                    "head",
                    "in/plain.tfrecord",
                    THOUSAND,
                    "out.tfrecord",
                    "-n",
                    str(number),
                    "--force",
                ]
            )
            == 0
        )
        assert records("out.tfrecord") == expected[:number]
    assert main(["head", "in/plain.tfrecord", "fewer.tfrecord", "-n", "99"]) == 0
    assert records("fewer.tfrecord") == expected[:23]
    assert main(["head", "in/gzip.tfrecord.gz", "ten.tfrecord"]) == 0
    assert len(records("ten.tfrecord")) == 10


@pytest.mark.parametrize("name", ["thousand_small.tfrecord", "thousand_small_gzip.tfrecord.gz"])
def test_head_of_a_remote_file_reads_its_begin(name, folder):
    with range_server(folder / "in") as url:
        assert main(["head", f"{url}/{name}", "out.tfrecord", "-n", "100"]) == 0
        requests = url.requests()
    assert as_digests(records("out.tfrecord")) == [one[:8] for one in digests(name)[:100]]
    assert [(method, path) for method, path, _, _ in requests] == [
        ("HEAD", f"/{name}"),
        ("GET", f"/{name}"),
    ]


def test_head_of_remote_files_that_need_more(folder, capsys):
    with range_server(folder / "in") as url:
        assert main(["head", f"{url}/plain.tfrecord", "out.tfrecord", "-n", "100"]) == 0
        assert main(["head", f"{url}/none.tfrecord", "none.tfrecord"]) == 2
        assert main(["head", f"{url}/sharded@3", "three.tfrecord", "-n", "5"]) == 0
    assert records("out.tfrecord") == records("in/plain.tfrecord")
    assert records("three.tfrecord") == all_records("in/sharded-*")[:5]
    assert "none.tfrecord: No such file or directory" in capsys.readouterr().err


def test_sample():
    assert main(["sample", THOUSAND, "a.tfrecord", "-n", "100", "--seed", "3"]) == 0
    assert main(["sample", THOUSAND, "b.tfrecord", "--fraction", "0.1", "--seed", "3"]) == 0
    assert main(["sample", THOUSAND, "c.tfrecord", "-n", "100"]) == 0
    found, everything = records("a.tfrecord"), records(THOUSAND)
    places = [everything.index(record) for record in found]
    assert len(places) == 100 and places == sorted(set(places))
    assert found == records("b.tfrecord") and found != records("c.tfrecord")
    assert (
        main(["reshard", THOUSAND, "out/a", "--num-shards", "1", "--shuffle", "--seed", "3"]) == 0
    )
    assert set(found) == set(all_records("out/a-*")[:100])


@pytest.fixture
def table():
    """300 records: a label of shares 0.5, 0.3, 0.2 and many that are rare, a group, a float; in two files."""
    rows = []
    for number in range(300):
        label = 9 if number % 100 == 0 else 0 if number % 10 < 5 else 1 if number % 10 < 8 else 2
        rows.append(
            {"label": label, "group": f"g{number % 37}", "share": number / 8, "number": number}
        )
    for part in range(2):
        with TFRecordWriter(f"table-0000{part}-of-00002.tfrecord") as writer:
            for row in rows[part * 150 : part * 150 + 150]:
                writer.write(row)
    return rows


def numbers(pattern, rows):
    known = {encode_example(row): row["number"] for row in rows}
    return [known[record] for record in all_records(pattern)]


@pytest.mark.parametrize("is_kept", [False, True])
def test_where(table, is_kept):
    if is_kept:
        assert main(["index", "table-*", "--columns", "label,group,share"]) == 0
    wanted = {
        "label=1": lambda row: row["label"] == 1,
        "label=9,2": lambda row: row["label"] in (9, 2),
        "group=g3,g36": lambda row: row["group"] in ("g3", "g36"),
        "share=12.125": lambda row: row["share"] == 12.125,
    }
    for number, (condition, keeps) in enumerate(wanted.items()):
        assert main(["merge", "table-*", f"{number}.tfrecord", "--where", condition]) == 0
        assert numbers(f"{number}.tfrecord", table) == [
            row["number"] for row in table if keeps(row)
        ]
    both = ["--where", "label=1", "--where", "group=g3,g36"]
    assert main(["reshard", "table-*", "out/a", *both, "--num-shards", "2"]) == 0
    assert numbers("out/a-*", table) == [
        row["number"] for row in table if row["label"] == 1 and row["group"] in ("g3", "g36")
    ]
    if not is_kept:
        assert not Path(".torch_index").exists() or all(
            not RecordIndex.load(path).columns for path in Path(".torch_index").iterdir()
        )


WHERE = [
    ("n=9007199254740993,9223372036854775808,0.5", [1]),
    ("n=9223372036854775807", [2]),
    ("x=0.1,0.2", [0, 1]),
    ("x=16777217,1e300,nan,2", [2]),
]


@for_each(["condition", "wanted"], WHERE)
@pytest.mark.parametrize("is_kept", [False, True])
def test_where_is_exact(is_kept, condition, wanted):
    rows = [
        {"n": 2**53, "x": 0.1},
        {"n": 2**53 + 1, "x": 0.2},
        {"n": 2**63 - 1, "x": 2.0},
        {"n": 0, "x": 2.0**24},
    ]
    with TFRecordWriter("x.tfrecord") as writer:
        for row in rows:
            writer.write(row)
    if is_kept:
        assert main(["index", "x.tfrecord", "--columns", "n,x"]) == 0
    assert main(["merge", "x.tfrecord", "y.tfrecord", "--force", "--where", condition]) == 0
    assert records("y.tfrecord") == [encode_example(rows[n]) for n in wanted]


def test_split_by_fractions(table):
    options = ["train=0.8", "validation=.1", "test=0.1", "--num-shards", "2"]
    assert main(["split", "table-*", "sets/", *options]) == 0
    found = {name: numbers(f"sets/{name}-*", table) for name in ("train", "validation", "test")}
    assert {name: len(one) for name, one in found.items()} == {
        "train": 240,
        "validation": 30,
        "test": 30,
    }
    assert sorted(number for own in found.values() for number in own) == [*range(300)]
    assert all(one == sorted(one) for one in found.values()) and found["train"] != [*range(240)]
    assert main(["split", "table-*", "other/x", *options, "--seed", "1", "--shuffle"]) == 0
    other = numbers("other/x-train-*", table)
    assert len(find_files("other/x-train-*")) == 2
    assert other != sorted(other) and set(other) != set(found["train"])
    os.mkdir("third")
    assert main(["split", "table-*", "third", *options]) == 0
    assert numbers("third/test-*", table) == found["test"]


def test_split_keeps_the_shares_of_labels(table):
    assert (
        main(["split", "table-*", "sets/", "a=0.6", "b=0.3", "c=0.1", "--stratify", "label"]) == 0
    )
    found = {}
    for name, share in zip("abc", (0.6, 0.3, 0.1), strict=True):
        own = numbers(f"sets/{name}-*", table)
        found[name] = Counter(table[number]["label"] for number in own)
        assert len(own) == round(300 * share)
        for label, number in Counter(row["label"] for row in table).items():
            assert abs(found[name][label] - share * number) < 2
    assert sum(found.values(), Counter()) == Counter(row["label"] for row in table)


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_sets_have_their_fractions_of_all_and_of_each_class(size):
    classes = np.random.default_rng(size).permutation(np.repeat(np.arange(400), size))
    fractions = [0.8, 0.15, 0.05]
    sets = reshard.draw_sets(classes, fractions, 0)
    for number, fraction in enumerate(fractions):
        assert abs((sets == number).sum() - fraction * len(classes)) <= 1
        counts = np.bincount(classes[sets == number], minlength=400)
        assert (abs(counts - fraction * size) < 2).all()
    assert (sets == reshard.draw_sets(classes, fractions, 0)).all()


def test_split_by_the_values_of_a_feature(table):
    assert main(["split", "table-*", "sets/", "a=0.6", "b=0.4", "--by", "group"]) == 0
    found = [numbers(f"sets/{name}-*", table) for name in "ab"]
    groups = [{table[number]["group"] for number in own} for own in found]
    assert not groups[0] & groups[1] and sum(map(len, groups)) == 37
    assert sorted(found[0] + found[1]) == [*range(300)]
    # the same where there are fewer records, and by an index that keeps the feature
    assert main(["index", "table-*", "--columns", "group"]) == 0
    first = "table-00000-of-00002.tfrecord"
    assert main(["split", first, "fewer/", "a=0.6", "b=0.4", "--by", "group"]) == 0
    assert numbers("fewer/a-*", table) == [number for number in found[0] if number < 150]
    assert main(["split", first, "seed/", "a=0.6", "b=0.4", "--by", "group", "--seed", "1"]) == 0
    assert numbers("seed/a-*", table) != numbers("fewer/a-*", table)


def test_the_set_of_a_value_never_changes():
    values = [b"a", b"", b"\xff", 0, 1, -5, 0.5]
    assert reshard.hash_sets(values, [0.25] * 4, 0).tolist() == [0, 1, 2, 1, 1, 3, 1]
    share = (reshard.hash_sets(range(10_000), [0.7, 0.3], 1) == 0).mean()
    assert abs(share - 0.7) < 0.02


def test_json(capsys):
    assert main(["reshard", "in/plain.tfrecord", "out/a", "--num-shards", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    paths = [f"out/a-0000{number}-of-00002.tfrecord" for number in range(2)]
    assert found == [
        {"path": path, "records": number, "bytes": os.path.getsize(path)}
        for path, number in zip(paths, (11, 12), strict=True)
    ]


def test_a_manifest_where_the_inputs_have_one():
    build_manifest("in/sharded-*")
    assert main(["reshard", "in/sharded-*", "out/a", "--num-shards", "2"]) == 0
    assert Path("out/.torch_index/manifest.safetensors").exists()
    dataset = TFRecordDataset("out/.torch_index/manifest.safetensors", index="require")
    assert [dataset.raw(number) for number in range(len(dataset))] == all_records("in/sharded-*")
    assert main(["reshard", "in/plain.tfrecord", "other/a"]) == 0
    assert Path("other/.torch_index/manifest.safetensors").exists()  # beside plain.tfrecord is one


def test_a_fresh_index_is_used_and_a_stale_one_not():
    build_index("in/plain.tfrecord").save("in/plain.tfrecord.index.safetensors")
    build_index("in/concatenated.tfrecord").save("in/thousand_small.tfrecord.index.safetensors")
    assert main(["merge", "in/plain.tfrecord", THOUSAND, "a.tfrecord"]) == 0
    assert records("a.tfrecord") == records("in/plain.tfrecord") + records(THOUSAND)


WRONG = {
    "expected other": (
        ["merge", THOUSAND, "./in/../" + THOUSAND, "--force"],
        "expected an output that is no input",
    ),
    "there": (
        ["head", THOUSAND, "there.tfrecord"],
        "there.tfrecord: it is there; --force writes over a file",
    ),
    "set": (
        ["reshard", THOUSAND, "in/sharded"],
        "a set of shards exists: in/sharded-00000-of-00003; remove it",
    ),
    "missing": (
        ["merge", "in/none.tfrecord", "a.tfrecord"],
        "in/none.tfrecord: No such file or directory",
    ),
    "sum": (["split", THOUSAND, "out/", "train=0.8", "test=0.1"], "fractions that sum to 1"),
    "no sets": (["split", THOUSAND, "out/"], "expected PATH... OUT_PREFIX NAME=FRACTION"),
    "no prefix": (
        ["split", "out/", "train=0.8", "test=0.2"],
        "expected PATH... OUT_PREFIX NAME=FRACTION",
    ),
    "no feature": (
        ["split", "table-*", "out/", "train=0.8", "test=0.2", "--by", "lable"],
        "got ['lable'], which none of the records has",
    ),
    "both": (
        ["split", "table-*", "out/", "a=0.8", "b=0.2", "--by", "label", "--stratify", "label"],
        "not both --by and --stratify",
    ),
    "no match": (
        ["merge", "table-*", "a.tfrecord", "--where", "label=77"],
        "no record has label=77",
    ),
    "no column": (
        ["merge", "table-*", "a.tfrecord", "--where", "lable=1"],
        "got ['lable'], which none of the records has; the first has ['group', 'label', 'number', 'share']",
    ),
    "no number": (
        ["merge", "table-*", "a.tfrecord", "--where", "label=cat"],
        "column 'label': expected integers, got 'cat'",
    ),
    "too many": (["sample", "table-*", "a.tfrecord", "-n", "301"], "for 1 to 300 records, got 301"),
    "none": (["sample", "table-*", "a.tfrecord"], "for 1 to 300 records, got 0"),
    "two numbers": (
        ["sample", "table-*", "a.tfrecord", "-n", "3", "--fraction", "0.5"],
        "expected either -n or --fraction, for 1 to 300 records, got 3",
    ),
    "no folder": (["reshard", THOUSAND, "there.tfrecord/a"], "there.tfrecord"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use(name, table, capsys):
    arguments, text = WRONG[name]
    Path("there.tfrecord").write_bytes(b"")
    before = files_below()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert text in error and error.startswith("tfrecord: ") and error.count("\n") == 1
    assert files_below() == before


def test_force_writes_over_a_set_of_as_many_shards(capsys):
    assert main(["reshard", THOUSAND, "out/a", "--num-shards", "2"]) == 0
    assert main(["reshard", "in/plain.tfrecord", "out/a", "--num-shards", "2"]) == 2
    assert main(["reshard", "in/plain.tfrecord", "out/a", "--num-shards", "3", "--force"]) == 2
    assert all_records("out/a-*") == records(THOUSAND)
    assert main(["reshard", "in/plain.tfrecord", "out/a", "--num-shards", "2", "--force"]) == 0
    assert all_records("out/a-*") == records("in/plain.tfrecord")
    assert len(TFRecordDataset("out/a-*", index="require")) == 23
    assert "a set of shards exists: out/a-00000-of-00002.tfrecord" in capsys.readouterr().err


def test_force_writes_over_no_device_and_no_folder(capsys):
    os.mkfifo("pipe")
    os.mkdir("folder")
    os.symlink("pipe", "link")
    for out in ("pipe", "folder", "link"):
        for verb in ("merge", "head"):
            assert main([verb, "in/plain.tfrecord", out, "--force"]) == 2
            assert f"{out}: it is there; --force writes over a file" in capsys.readouterr().err
    assert stat.S_ISFIFO(os.stat("pipe").st_mode) and os.listdir("folder") == []
    assert os.readlink("link") == "pipe"


def damage(path, place):
    data = bytearray(Path(path).read_bytes())
    data[place] ^= 1
    Path(path).write_bytes(data)


@pytest.mark.parametrize("verb", ["reshard", "merge", "sample", "split", "head"])
@pytest.mark.parametrize(("place", "text"), [(200, "payload checksum"), (187, "length checksum")])
def test_damage_is_named_and_nothing_is_left(verb, place, text, capsys):
    damage("in/plain.tfrecord", place)  # record 3 begins at byte 186
    more = {"sample": ["-n", "20"], "reshard": ["--shuffle"], "split": ["a=0.5", "b=0.5"]}.get(
        verb, []
    )
    before = files_below()
    assert main([verb, "in/plain.tfrecord", "out/a.tfrecord", *more]) == 1
    error = capsys.readouterr().err
    assert f"in/plain.tfrecord: record 3 at byte 186: corrupted record: expected {text}" in error
    assert files_below() == before and not Path("out").exists()


def test_other_files_are_named(capsys):
    Path("a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    Path("cut.tfrecord.gz").write_bytes(
        Path("in/thousand_small_gzip.tfrecord.gz").read_bytes()[:-100]
    )
    for path in ("a.png", "cut.tfrecord.gz"):
        assert main(["merge", path, "out.tfrecord"]) == 1
        assert main(["head", path, "out.tfrecord", "-n", "1000"]) == 1
    error = capsys.readouterr().err
    assert error.count("It looks like a PNG image") == 2 and error.count("cut.tfrecord.gz: ") == 2
    assert not Path("out.tfrecord").exists()


def test_what_is_written_is_read_back(monkeypatch):
    place = "torch_tfrecord.records.record_file.RecordFile.write"
    write = resolve_name(place)
    monkeypatch.setattr(place, lambda file, record: write(file, b""))
    assert main(["merge", "in/plain.tfrecord", "out.tfrecord"]) == 1
    assert not Path("out.tfrecord").exists()


def test_many_files_do_not_stay_open(monkeypatch):
    monkeypatch.setattr("index_tools._outputs._MOST_UNNAMED", 5)
    assert main(["reshard", THOUSAND, "out/a", "--num-shards", "40"]) == 0
    assert all_records("out/a-*") == records(THOUSAND)
    damage(THOUSAND, 48_860)
    assert main(["reshard", THOUSAND, "out/b", "--num-shards", "40"]) == 1
    assert not [name for name in os.listdir("out") if not name.startswith(("a-", ".torch_index"))]


@pytest.mark.slow
@pytest.mark.daily
def test_interruptions_leave_all_or_nothing(folder):
    with TFRecordWriter("large.tfrecord") as writer:
        for number in range(40_000):
            writer.write(number.to_bytes(8, "little") * 400)
    data = Path("large.tfrecord").read_bytes()
    command = [sys.executable, "-m", "index_tools", "reshard", "large.tfrecord", "out/a"]
    command += ["--num-shards", "16", "--shuffle"]
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - begin
    for number in range(12):
        shutil.rmtree("out", ignore_errors=True)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        time.sleep(seconds * (0.2 + number / 12))
        process.send_signal((signal.SIGINT, signal.SIGTERM)[number % 2])
        process.communicate()
        left = os.listdir("out") if os.path.exists("out") else []
        assert {name for name in left if not name.startswith("a-")} <= {".torch_index"}
        assert len(left) in (0, 17), left
        assert Path("large.tfrecord").read_bytes() == data
