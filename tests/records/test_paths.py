"""From names, patterns and directories to files."""

import fnmatch
import os
import re
from pathlib import Path

import pytest
from helpers import compressed, framed

import torch_tfrecord
from index_tools.main import main
from torch_tfrecord import (
    RecordIndex,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    build_manifest,
    find_files,
    infer_features,
    make_dataloader,
    read_records,
    salvage,
    tfds,
)
from torch_tfrecord.files import Access
from torch_tfrecord.remote import cache_info

RECORD = framed(b"abc")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names, content=RECORD):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)


def shards(base, total, suffix="", leave_out=()):
    names = [
        f"{base}-{number:05d}-of-{total:05d}{suffix}"
        for number in range(total)
        if number not in leave_out
    ]
    make(*names)
    return names


# Single names and lists.


def test_one_file_in_all_forms(folder):
    make("x")
    assert (
        find_files("x")
        == find_files(Path("x"))
        == find_files(["x"])
        == find_files((Path("x"),))
        == ["x"]
    )
    assert find_files(folder / "x") == [str(folder / "x")]
    assert find_files("./x") == ["./x"]
    assert find_files(f"file://{folder}/x") == [str(folder / "x")]


def test_lists_are_sorted_bytewise():
    names = ["f-10", "f-2", "f-1", "f-9", "F", "ä", os.fsdecode(b"\xff"), os.fsdecode(b"\x80"), "z"]
    make(*names)
    assert find_files(names) == [
        "F",
        "f-1",
        "f-10",
        "f-2",
        "f-9",
        "z",
        os.fsdecode(b"\x80"),
        "ä",
        os.fsdecode(b"\xff"),
    ]
    assert find_files(iter(names)) == find_files("*") == find_files(names)


@pytest.mark.parametrize(
    ("paths", "kind", "text"),
    [
        ("missing", FileNotFoundError, "No such file or directory: 'missing'"),
        ("", FileNotFoundError, "No such file or directory"),
        (["x", "missing"], FileNotFoundError, "'missing'"),
        ("y*", FileNotFoundError, "no file matches the pattern: 'y*'"),
        (["x", "y*"], FileNotFoundError, "no file matches the pattern: 'y*'"),
        ([], ValueError, "paths must name at least one file, got an empty list"),
        (b"x", TypeError, "paths must be a path or a list of paths, got bytes"),
        (bytearray(b"x"), TypeError, "paths must be a path or a list of paths, got bytearray"),
        (3, TypeError, "paths must be a path or a list of paths, got int"),
        (None, TypeError, "paths must be a path or a list of paths, got NoneType"),
        (
            [["x"]],
            TypeError,
            "paths must be a flat list of str or os.PathLike, got an item of type list",
        ),
        (
            [b"x"],
            TypeError,
            "paths must be a flat list of str or os.PathLike, got an item of type bytes",
        ),
        ([3], TypeError, "got an item of type int"),
        (["x", "x"], ValueError, "each file may be named once, got 1 of them more than once: "),
        (["x", "./x"], ValueError, "each file may be named once"),
        (["x", "*"], ValueError, "each file may be named once"),
    ],
)
def test_wrong_paths(paths, kind, text):  # robustness 85
    make("x")
    with pytest.raises(kind, match=re.escape(text)):
        find_files(paths)


def test_paths_whose_fspath_is_bytes():
    class BytesPath:
        def __fspath__(self):
            return b"x"

    with pytest.raises(
        TypeError, match=r"a path must be str or os\.PathLike\[str\], got BytesPath"
    ):
        find_files(BytesPath())


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.tfrecord", ["a.tfrecord", "b.tfrecord"]),
        ("?.tfrecord", ["a.tfrecord", "b.tfrecord"]),
        ("[ab].tfrecord", ["a.tfrecord", "b.tfrecord"]),
        ("[!a].tfrecord", ["b.tfrecord"]),
        ("*", ["a.tfrecord", "b.tfrecord", "c"]),
        (".*", [".hidden.tfrecord"]),
        ("sub/*", ["sub/a.tfrecord", "sub/d"]),
        ("**/a.tfrecord", ["a.tfrecord", "sub/a.tfrecord"]),
        ("s*/[a-c]*", ["sub/a.tfrecord"]),
    ],
)
def test_patterns(pattern, found):
    make("a.tfrecord", "b.tfrecord", "c", ".hidden.tfrecord", "sub/a.tfrecord", "sub/d", "sub/.h")
    make(
        "a.tfrecord.index.safetensors",
        "a.tfrecord.idx",
        "b.tfindex",
        "b.tfrecord.index",
        "sub/d.idx",
        content=b"0 19",
    )
    assert find_files(pattern) == found


def test_names_with_brackets_are_names_first():
    make("x[1]", "x1")
    assert find_files("x[1]") == ["x[1]"]
    os.unlink("x[1]")
    assert find_files("x[1]") == ["x1"]


def test_an_index_file_that_is_asked_for_by_name_is_taken():
    make("a.idx")
    assert find_files("a.idx") == ["a.idx"]


# Sets of shards. robustness 86


@pytest.mark.parametrize("total", [1, 2, 10, 12])
@pytest.mark.parametrize("suffix", ["", ".tfrecord", ".tfrecord.gz"])
@pytest.mark.parametrize(
    "ask", ["x-*", "x@{n}", "x@*", "x@{n}{s}", "x-?????-of-{n:05d}{s}", "x*", "."]
)
def test_whole_sets(total, suffix, ask):
    names = shards("x", total, suffix)
    asked = ask.format(n=total, s=suffix)
    assert find_files(asked) == ([f"./{name}" for name in names] if asked == "." else names)


def test_a_base_with_its_extension_in_front():
    names = shards("coco_train.record", 3)
    assert find_files("coco_train.record@3") == find_files("coco_train.record*") == names
    shards("deep/er/validation.tfrecord", 2)
    assert len(find_files("deep/er/validation.tfrecord@2")) == 2


@pytest.mark.slow
def test_numbers_beyond_five_digits():
    names = [f"t-{number}-of-100002" for number in range(100_000, 100_002)]
    make(*names)
    assert find_files("t-10000[01]-of-100002") == names
    with pytest.raises(
        FileNotFoundError, match="more than 10 of 100002 shards missing: t-00000-of-100002, "
    ):
        find_files("t-*")
    wide = [f"w-{number:06d}-of-000003" for number in range(3)]
    make(*wide)
    assert find_files("w-*") == find_files("w@*") == wide


@pytest.mark.parametrize("ask", ["x-*", "x@10", "x@*", "x-?????-of-00010", "."])
@pytest.mark.parametrize("missing", [[0], [9], [3, 7]], ids=str)
def test_missing_shards_are_named(ask, missing):
    shards("x", 10, leave_out=missing)
    named = ", ".join(f"x-{number:05d}-of-00010" for number in missing)
    with pytest.raises(FileNotFoundError, match=f"{len(missing)} of 10 shards missing: ") as caught:
        find_files(ask)
    assert named in str(caught.value).replace("./", "")
    assert caught.value.filename.removeprefix("./") == f"x-{missing[0]:05d}-of-00010"


def test_all_missing():
    with pytest.raises(
        FileNotFoundError, match="3 of 3 shards missing: x-00000-of-00003, x-00001-of-00003, x-0"
    ):
        find_files("x@3")
    with pytest.raises(
        FileNotFoundError, match=r"more than 10 of 1024 shards missing: .*x-00009-of-01024 and more"
    ):
        find_files("x@1024")
    for ask in ("x@*", "x@0"):
        with pytest.raises(FileNotFoundError, match="no shard of this set"):
            find_files(ask)


@pytest.mark.timeout(100)
def test_names_that_claim_very_many_shards():
    with pytest.raises(FileNotFoundError, match="more than 10 of 100000000000 shards missing"):
        find_files("x@100000000000")
    make("x-00000-of-100000000000")
    for ask in ("x-*", "x@*", "."):
        with pytest.raises(FileNotFoundError, match="more than 10 of 100000000000 shards missing"):
            find_files(ask)


def test_extra_shards_are_named():
    shards("x", 3)
    make("x-00003-of-00003")
    for ask in ("x-*", "x@3", "."):
        with pytest.raises(
            ValueError, match=r"expected shards 0 to 2 of 3, got (\./)?x-00003-of-00003"
        ):
            find_files(ask)


def test_mixed_totals():
    shards("x", 2)
    shards("x", 3)
    for ask in ("x-*", "x@*", "."):
        with pytest.raises(
            ValueError, match=r"expected one set of shards, got (\./)?x-\* of \[2, 3\] shards mixed"
        ):
            find_files(ask)
    assert find_files("x@2") == ["x-00000-of-00002", "x-00001-of-00002"]
    assert len(find_files("x-*-of-00003")) == 3


def test_several_sets_at_once():
    names = shards("train", 3) + shards("val", 2)
    assert find_files("*") == names
    assert find_files(["train@3", "val@2"]) == names
    shards("test", 4, leave_out=[2])
    with pytest.raises(FileNotFoundError, match="1 of 4 shards missing: test-00002-of-00004"):
        find_files("*")


@pytest.mark.parametrize("pattern", ["x-0000[0-2]-of-00010", "x-0000[012]*", "x-0000[!3-9]-of-*"])
def test_part_of_a_set_by_a_pattern(pattern):
    names = shards("x", 10)
    assert find_files(pattern) == names[:3]
    os.unlink(names[1])
    with pytest.raises(FileNotFoundError, match="1 of 10 shards missing: x-00001-of-00010"):
        find_files(pattern)


def test_part_of_a_set_by_a_list():
    names = shards("x", 10)
    assert find_files([names[7], names[2]]) == [names[2], names[7]]


@pytest.mark.parametrize(
    "pattern", ["sub/x-*", "s*/x-*", "**/x-*", "./sub/x-*", "sub/**/x-*", "sub/*"]
)
def test_missing_shards_are_noticed_whatever_the_pattern_of_the_folder(pattern):
    shards("sub/x", 4, leave_out=[2])
    with pytest.raises(FileNotFoundError, match=r"1 of 4 shards missing: .*sub/x-00002-of-00004"):
        find_files(pattern)


def test_two_suffixes_need_a_choice():
    shards("x", 2, ".tfrecord")
    shards("x", 2, ".gz")
    with pytest.raises(
        ValueError, match=r"x@2: expected shards with one suffix, got \['\.gz', '\.tfrecord'\]"
    ):
        find_files("x@2")
    assert find_files("x@2.gz") == ["x-00000-of-00002.gz", "x-00001-of-00002.gz"]
    # With a suffix given nothing else counts.
    make("x-00000-of-00002.gz.bak")
    assert len(find_files("x@2.gz")) == 2


def test_index_files_beside_shards_are_no_shards():
    names = shards("x", 2, ".tfrecord")
    for name in names:
        make(f"{name}.index.safetensors", f"{name}.idx", content=b"0 19")
    for ask in ("x-*", "x@2", "x@*", "."):
        assert len(find_files(ask)) == 2


def test_names_that_only_look_counted():
    make("me@home", "a@2")
    assert find_files("me@home") == ["me@home"]
    assert find_files("a@2") == ["a@2"]
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        find_files("you@home")
    make("user@3.org/x")
    assert find_files("user@3.org/*") == ["user@3.org/x"]


# Listing.


def test_a_listing_opens_nothing(monkeypatch):
    """Names are all it needs; what is there may be no TFRecord file, or cost a request."""
    shards("x", 3)
    make("d/a.tfrecord", "d/b.tfrecord.gz", "d/y-00000-of-00001", content=b"no record")
    make(
        "d/.torch_index/0.index.safetensors",
        "d/y-00000-of-00001.index.safetensors",
        "d/labels-y.txt",
    )

    def opened(path, *arguments, **options):
        raise AssertionError(f"opened {path}")

    monkeypatch.setattr("torch_tfrecord.records.paths.open_file", opened)
    for ask in ("x-*", "x@3", "x@*", [f"x-0000{number}-of-00003" for number in range(3)]):
        assert torch_tfrecord.find_files(ask) == [f"x-0000{number}-of-00003" for number in range(3)]
    inside = ["d/a.tfrecord", "d/b.tfrecord.gz", "d/y-00000-of-00001"]
    for ask in ("d", "d/", "d/*", "d/**", inside):
        assert find_files(ask) == inside
    assert not Path(".torch_index").exists()


def test_it_lists_what_the_datasets_read():
    make("x-00000-of-00002", "x-00001-of-00002", content=RECORD)
    make("d/a", "d/b.tfrecord", content=RECORD)
    make("d/README", content=b"# read me\n")
    for ask in ("x-*", "x@2", "d", ["d/a", "x@2"]):
        assert find_files(ask) == TFRecordDataset(ask, index="memory").files


# Directories.


def test_a_directory(folder):
    make(
        "d/a.tfrecord", "d/b.tfrecords", "d/c.tfrec", "d/d", "d/flowers05-230.tfrec", content=RECORD
    )
    make("d/e.tfrecord.gz", "d/f.gz", content=compressed(RECORD, "GZIP"))
    make("d/g.zlib", content=compressed(RECORD, "ZLIB"))
    make("d/h.tfrecord-part1")
    make(
        "d/README.md",
        "d/a.tfrecord.json",
        "d/a.tfrecord.md5",
        "d/a.tfrecord.txt",
        content=b"# read me, please\n",
    )
    make(
        "d/a.tfrecord.index.safetensors",
        "d/a.tfrecord.idx",
        "d/a.tfrecord.index",
        "d/c.tfindex",
        content=b"0 19",
    )
    make("d/other.gz", content=compressed(b"no record at all", "GZIP"))
    make("d/pic.png", content=b"\x89PNG\r\n\x1a\n" + bytes(50))
    make("d/_SUCCESS", content=b"")
    make("d/.hidden.tfrecord", "d/sub/x.tfrecord")
    os.mkfifo("d/fifo")
    found = [
        "a.tfrecord",
        "b.tfrecords",
        "c.tfrec",
        "d",
        "e.tfrecord.gz",
        "f.gz",
        "flowers05-230.tfrec",
        "g.zlib",
    ]
    found += ["h.tfrecord-part1"]
    assert find_files("d") == [f"d/{name}" for name in found]
    assert find_files(folder / "d") == [str(folder / "d" / name) for name in found]


def test_damaged_files_do_not_vanish_from_a_directory():
    """A name that says TFRecord counts, so that reading tells what is wrong with the file."""
    make("d/good.tfrecord")
    make("d/bad.tfrecord", "d/x-00000-of-00001", content=b"\x80" * 50)
    make("d/bad.tfrecord_1", content=b"\x80" * 50)
    make("d/lfs.tfrecord", content=b"version https://git-lfs.github.com/spec/v1\n")
    make("d/cut.tfrecord", "d/empty.tfrecord", content=b"")
    names = [
        "bad.tfrecord",
        "bad.tfrecord_1",
        "cut.tfrecord",
        "empty.tfrecord",
        "good.tfrecord",
        "lfs.tfrecord",
    ]
    assert find_files("d") == [f"d/{name}" for name in [*names, "x-00000-of-00001"]]


def test_directories_without_records():
    os.mkdir("d")
    with pytest.raises(
        FileNotFoundError, match="no TFRecord file among the 0 files of the directory: 'd'"
    ):
        find_files("d")
    make("d/README", "d/x.json", content=b"text")
    with pytest.raises(
        FileNotFoundError, match="no TFRecord file among the 2 files of the directory: 'd'"
    ):
        find_files("d")


def test_links_count_as_what_they_point_to():
    make("real")
    os.symlink("real", "link")
    os.symlink("nothing", "dangling")
    assert find_files("link") == ["link"]
    assert find_files(["real", "link"]) == ["link", "real"]
    assert find_files("dangling") == ["dangling"]  # opening it tells
    os.mkdir("d")
    os.symlink("../real", "d/link")
    os.symlink("nothing", "d/x.tfrecord")
    assert find_files("d") == ["d/link"]


@pytest.mark.parametrize("total", [200_001, 1_000_000_000])
def test_a_set_that_claims_any_number_of_shards_costs_what_is_there(monkeypatch, total):
    make(f"x-00000-of-{total}")
    asked = []
    matches = fnmatch.fnmatchcase
    monkeypatch.setattr(fnmatch, "fnmatchcase", lambda *names: asked.append(1) or matches(*names))
    monkeypatch.setattr("torch_tfrecord.records.paths._MOST_ASKED", 1000)
    assert find_files("x-00000-of-*") == [f"x-00000-of-{total}"]
    assert len(asked) < 1100
    with pytest.raises(FileNotFoundError, match=f"more than 10 of {total} shards missing"):
        find_files("x-*")


def test_a_pattern_of_some_shards_of_a_set():
    shards("s", 40, leave_out=(12,))
    assert len(find_files("s-0000*")) == 10
    with pytest.raises(FileNotFoundError, match="1 of 40 shards missing"):
        find_files("s-0001*")


def test_home(folder, monkeypatch, capsys):
    """`~` is the user's folder wherever a path is taken."""
    home = folder / "home"
    home.mkdir()
    (folder / "here").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder / "here")
    with ShardedTFRecordWriter("~/new/data/x", num_shards=2) as writer:
        for n in range(4):
            writer.write({"n": n})
    with TFRecordWriter(Path("~/y")) as writer:
        writer.write({"n": 4})
    files = [str(home / f"new/data/x-0000{n}-of-00002.tfrecord") for n in range(2)]
    assert writer.path == str(home / "y") and find_files("~/new/data") == files
    assert find_files(["~/new/data/x@2.tfrecord", "file://~/y"]) == [*files, str(home / "y")]
    assert len(TFRecordDataset("~/new/data/x-*", index_dir="~/indexes")) == 4
    assert len([*(home / "indexes").iterdir()]) == 2
    assert len([*TFRecordIterableDataset("~/y")]) == len([*read_records("~/y")]) == 1
    assert {*infer_features("~/y")} == {"n"}
    index = build_index("~/y", ["n"], index_dir="~/indexes")
    index.save("~/y.index")
    assert RecordIndex.load("~/y.index") == index
    index.to_tfrecord2idx("~/y.idx")
    assert len(RecordIndex.from_tfrecord2idx("~/y.idx", "~/y")) == 1
    place = build_manifest("~/new/data", "~/m.safetensors")
    assert place == str(home / "m.safetensors") and len(TFRecordDataset("~/m.safetensors")) == 4
    assert salvage("~/y", "~/z").num_records == 1
    assert Access(cache_dir="~/cache").cache_dir == str(home / "cache")
    assert cache_info("~/none") is None
    with pytest.raises(FileNotFoundError, match=str(home)):
        tfds.info("~/none")
    # what a state says of the files, for `tfrecord replay`
    loader = make_dataloader("~/new/data/x-*", 2, index_dir="~/indexes")
    described = loader.state_dict()["run"]["dataset"]
    assert described["paths"] == [str(home / "new/data/x-*")]
    assert described["index_dir"] == [str(home / "indexes")]
    # shells leave these alone
    assert main(["index", "~/y", "--output-dir=~/more", "--force"]) == 0
    assert main(["merge", "~/y", "~/z", "~/merged.tfrecord"]) == 0
    assert "there" not in capsys.readouterr().err
    assert main(["merge", "~/y", "~/merged.tfrecord"]) == 2
    assert f"{home}/merged.tfrecord: it is there" in capsys.readouterr().err
    assert not [*(folder / "here").iterdir()]
    assert len([*(home / "more").iterdir()]) == 1
    assert [*read_records(home / "merged.tfrecord")] == 2 * [*read_records(home / "y")]
