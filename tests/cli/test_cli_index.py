"""`tfrecord index` and `tfrecord verify`: many files, some of them damaged."""

import gzip
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import framed

from index_tools import _workers, index
from index_tools.main import main
from torch_tfrecord import RecordIndex, TFRecordDataset, TFRecordWriter, build_index
from torch_tfrecord.records import IndexKeeper

RECORDS = [b"abc", b"", b"x" * 1000]
DATA = b"".join(map(framed, RECORDS))


def write(path, data=DATA):
    path.write_bytes(data)
    return path


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# index


def test_index_writes_what_the_dataset_uses(folder, capsys):
    write(folder / "a.tfrecord")
    write(folder / "b.tfrecord.gz", gzip.compress(DATA, mtime=0))
    assert main(["index", "."]) == 0
    size = (folder / "b.tfrecord.gz").stat().st_size
    assert capsys.readouterr() == (
        f"indexed ./a.tfrecord: 3 records, 1051 bytes -> {IndexKeeper.place('./a.tfrecord')}\n"
        f"indexed ./b.tfrecord.gz: 3 records, {size} bytes -> {IndexKeeper.place('./b.tfrecord.gz')}\n"
        f"2 files: 2 indexed, 0 fresh, 0 failed; 6 records, {1051 + size} bytes\n",
        "",
    )
    assert RecordIndex.load(IndexKeeper.place("a.tfrecord")) == build_index("a.tfrecord")
    assert [TFRecordDataset("a.tfrecord", index="require").raw(at) for at in range(3)] == RECORDS
    assert len(TFRecordDataset("b.tfrecord.gz", index="require")) == 3


def test_index_tells_facts_as_json(folder, capsys):
    for number in (2, 3):
        with TFRecordWriter(f"{number}.tfrecord") as writer:
            for value in range(number):
                writer.write({"x": value})
    Path("bad.tfrecord").write_bytes(b"no records here, but some bytes")
    paths = ["2.tfrecord", "3.tfrecord", "bad.tfrecord"]
    assert main(["index", *paths, "--json"]) == 1
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [fact["path"] for fact in facts] == paths
    assert [fact.get("num_records") for fact in facts] == [2, 3, None]
    assert [fact["num_bytes"] for fact in facts[:2]] == [*map(os.path.getsize, paths[:2])]
    assert os.path.exists(facts[0]["index"])
    assert "record 0 at byte 0" in facts[2]["error"]
    assert main(["index", *paths[:2], "--json", "--manifest"]) == 0
    *fresh, manifest = map(json.loads, capsys.readouterr().out.splitlines())
    assert [fact["is_new"] for fact in fresh] == [False, False]
    assert manifest["num_files"] == 2


def test_index_writes_a_manifest(folder, capsys):
    write(folder / "a.tfrecord")
    write(folder / "b.tfrecord")
    assert main(["index", ".", "--manifest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = (folder / ".torch_index" / "manifest.safetensors").stat().st_size
    assert lines[2:] == [
        "2 files: 2 indexed, 0 fresh, 0 failed; 6 records, 2102 bytes",
        f"manifest of 2 files, 6 records: {size} bytes -> ./.torch_index/manifest.safetensors",
    ]
    for path in ("a.tfrecord", "b.tfrecord"):
        os.unlink(IndexKeeper.place(path))
    assert [
        TFRecordDataset("*.tfrecord", index="require").raw(at) for at in range(6)
    ] == RECORDS * 2
    # The other verbs take it for the files that it names, and leave it out of a shell's pattern.
    for arguments in (
        [".torch_index/manifest.safetensors"],
        ["a.tfrecord", "b.tfrecord", "m.safetensors"],
        ["."],
    ):
        assert main(["verify", *arguments]) == 0
        assert capsys.readouterr().out == "2 files, 6 records, 2102 bytes, 0 bad files\n"


def test_no_manifest_of_damaged_files(folder, capsys):
    write(folder / "a.tfrecord", flipped(DATA, 20))
    assert main(["index", ".", "--manifest"]) == 1
    assert not (folder / ".torch_index" / "manifest.safetensors").exists()
    assert main(["index", ".", "--manifest", "--format", "tfrecord2idx"]) == 2
    assert "--manifest needs --format safetensors" in capsys.readouterr().err


def test_index_leaves_fresh_indexes_alone(folder, capsys):
    write(folder / "a.tfrecord")
    for arguments, verb in [([], "indexed"), ([], "fresh"), (["--force"], "indexed")]:
        assert main(["index", "a.tfrecord", *arguments]) == 0
        assert capsys.readouterr().out.startswith(f"{verb} a.tfrecord: 3 records, 1051 bytes")
    write(folder / "a.tfrecord", DATA + framed(b"more"))
    assert main(["index", "a.tfrecord"]) == 0
    assert capsys.readouterr().out.startswith("indexed a.tfrecord: 4 records")
    place = Path(IndexKeeper.place("a.tfrecord"))
    write(place, place.read_bytes()[:-1] + b"\1")
    assert main(["index", "a.tfrecord"]) == 0
    assert capsys.readouterr().out.startswith("indexed a.tfrecord: 4 records")
    write(place, b"my notes")
    assert main(["index", "a.tfrecord"]) == 2
    assert (
        f"{place}: expected nothing or an index at the place of the index"
        in capsys.readouterr().err
    )
    assert place.read_bytes() == b"my notes"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_index_reports_damage_and_goes_on(folder, jobs, capsys):
    write(folder / "a.tfrecord")
    write(folder / "bad \n.tfrecord", flipped(DATA, 40))
    write(folder / "c.tfrecord")
    assert main(["index", ".", "--jobs", jobs]) == 1
    output = capsys.readouterr()
    assert (
        output.out.splitlines()[-1]
        == "3 files: 2 indexed, 0 fresh, 1 failed; 6 records, 2102 bytes"
    )
    assert output.err.startswith(
        "error: ./bad \\n.tfrecord: record 2 at byte 35: corrupted record: "
    )
    assert output.err.count("\n") == 1
    places = [IndexKeeper.place(str(folder / name)) for name in ("a.tfrecord", "c.tfrecord")]
    assert sorted(map(str, folder.glob(".torch_index/*"))) == sorted(places)


def test_index_without_crc_looks_at_headers_only(folder, capsys):
    write(folder / "a.tfrecord", flipped(DATA, 500))
    assert main(["index", "a.tfrecord"]) == 1
    assert main(["index", "a.tfrecord", "--no-crc"]) == 0
    write(folder / "b.tfrecord", flipped(DATA, 40))
    assert main(["index", "b.tfrecord", "--no-crc"]) == 1


def test_index_into_a_folder_is_found_there(folder, capsys):
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    write(folder / "one" / "a.tfrecord")
    write(folder / "two" / "a.tfrecord", DATA * 2)
    assert main(["index", "one", "two", "--output-dir", "new/folder"]) == 0
    assert len(list((folder / "new" / "folder").iterdir())) == 2
    assert not list(folder.glob("*/.torch_index"))
    dataset = TFRecordDataset(["one", "two"], index="require", index_dir="new/folder")
    assert len(dataset) == 9
    assert main(["index", "one", "--output-dir", "new/folder"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 file: 0 indexed, 1 fresh")


def test_index_writes_the_text_form(folder, capsys):
    path = write(folder / "a.tfrecord")
    assert main(["index", "a.tfrecord", "--format", "tfrecord2idx"]) == 0
    assert (folder / "a.tfrecord.idx").read_text() == "0 19\n19 16\n35 1016\n"
    assert main(["index", "a.tfrecord", "--format", "tfrecord2idx"]) == 0
    later = time.time() + 10
    os.utime(path, (later, later))
    assert main(["index", "a.tfrecord", "--format", "tfrecord2idx"]) == 0
    states = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert states == ["indexed", "1", "fresh", "1", "indexed", "1"]


def test_index_text_form_is_not_for_compressed_files(folder, capsys):
    write(folder / "a.tfrecord")
    write(folder / "b.tfrecord.gz", gzip.compress(DATA))
    assert main(["index", ".", "--format", "tfrecord2idx", "--output-dir", "idx"]) == 2
    assert capsys.readouterr().err == (
        "error: ./b.tfrecord.gz: a tfrecord2idx index needs an uncompressed data file, got GZIP; "
        "--format safetensors has no such limit\n"
    )
    assert [path.name for path in (folder / "idx").iterdir()] == ["a.tfrecord.idx"]


def test_index_text_form_refuses_one_name_for_two_files(folder, capsys):
    for name in ("one", "two"):
        (folder / name).mkdir()
        write(folder / name / "a.tfrecord")
    assert main(["index", "one", "two", "--format", "tfrecord2idx", "--output-dir", "idx"]) == 2
    assert (
        "several data files would have the same index idx/a.tfrecord.idx" in capsys.readouterr().err
    )
    assert not (folder / "idx").exists()


def test_index_where_nothing_can_be_written_is_wrong_use(folder, capsys):
    write(folder / "a.tfrecord")
    place = Path(IndexKeeper.place("a.tfrecord"))
    place.mkdir(parents=True)
    assert main(["index", "a.tfrecord"]) == 2
    assert capsys.readouterr().err == f"error: {place}: Is a directory\n"
    place.rmdir()
    place.symlink_to("elsewhere")
    assert main(["index", "a.tfrecord"]) == 2
    assert (
        capsys.readouterr().err
        == f"error: {place}: expected no symbolic link at the place of the index\n"
    )
    assert not (place.parent / "elsewhere").exists()
    write(folder / "file")
    assert main(["index", "a.tfrecord", "--output-dir", "file"]) == 2
    assert capsys.readouterr().err == "tfrecord: file: File exists\n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_leaves_no_index(folder, jobs, monkeypatch, capsys):
    for name in "abc":
        write(folder / f"{name}.tfrecord")
    if jobs == 1:
        monkeypatch.setattr(index.RecordIndex, "_build", interrupt)
    else:
        monkeypatch.setattr(_workers, "as_completed", interrupt)
    assert main(["index", ".", "--jobs", str(jobs)]) == 130
    assert capsys.readouterr() == ("", "tfrecord: interrupted\n")
    assert all(name.endswith((".tfrecord", ".torch_index")) for name in os.listdir(folder))
    for path in folder.rglob("*.safetensors"):  # finished before the interrupt came
        RecordIndex.load(path)


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def die(file):
    os._exit(1)


@pytest.mark.daily
def test_a_worker_that_dies_is_reported(folder):
    write(folder / "a.tfrecord")
    with pytest.raises(
        ChildProcessError,
        match="a worker process died, perhaps because memory ran out; try --jobs 1",
    ):
        _workers.work_on_files(die, ["a.tfrecord", "a.tfrecord"], num_jobs=2, description="dying")


# verify


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_verify_has_a_line_for_each_bad_file(folder, jobs, capsys):
    records = [b"%d" % number * 50 for number in range(10)]
    data = b"".join(map(framed, records))
    write(folder / "a.tfrecord", flipped(flipped(data, 66 * 3 + 20), 66 * 7 + 2))
    write(folder / "b.tfrecord", data[:-1])
    write(folder / "c.tfrecord", data)
    write(folder / "d.tfrecord", b"\x89PNG\r\n\x1a\n and more bytes")
    write(folder / "e.tfrecord.gz", gzip.compress(data)[:-5])
    assert main(["verify", ".", "--jobs", jobs]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(
        "bad: ./a.tfrecord: record 3 at byte 198: corrupted record: expected payload checksum "
    )
    assert lines[0].endswith(
        " (132 bytes damaged in 2 places, 8 good records, 5 behind the first damage)"
    )
    assert lines[1] == (
        "bad: ./b.tfrecord: record 9 at byte 594: truncated record: expected 66 bytes (payload 50), "
        "got 65 up to the end (65 bytes damaged in 1 place, 9 good records)"
    )
    assert lines[2].startswith("bad: ./d.tfrecord: record 0 at byte 0: ")
    assert "(Is this even a TFRecord file? It looks like a PNG image.)" in lines[2]
    assert lines[3].startswith("bad: ./e.tfrecord.gz: gzip: the stream is truncated")
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert lines[4] == f"5 files, 37 records, {size} bytes, 4 bad files"


def test_verify_warns_of_a_stale_index(folder, capsys):
    with TFRecordWriter("a.tfrecord", write_index=True) as writer:
        writer.write(b"abc")
    assert main(["verify", "a.tfrecord"]) == 0
    assert capsys.readouterr().out == "1 file, 1 record, 19 bytes, 0 bad files\n"
    write(folder / "a.tfrecord")
    assert main(["verify", "a.tfrecord"]) == 0
    assert capsys.readouterr().out == (
        "warning: a.tfrecord: the index is not of this file as it is now: expected a file of 19 bytes, got 1051\n"
        "1 file, 3 records, 1051 bytes, 0 bad files\n"
    )
    for place in (
        IndexKeeper.place("a.tfrecord"),
        "a.tfrecord.index.safetensors",
    ):  # now, and before
        write(Path(place), b"junk")
        assert main(["verify", "a.tfrecord"]) == 0
        assert capsys.readouterr().out.startswith(
            f"warning: a.tfrecord: index at {place}: expected an index written by "
        )
        os.unlink(place)


def test_verify_finds_an_index_that_only_passes_for_fresh(folder, capsys):
    write(folder / "a.tfrecord", framed(b"abc") + framed(b""))
    real = build_index("a.tfrecord")
    forged = RecordIndex(
        real.offsets[:1], real.lengths[:1] + 16, real.file_size, "", real.mtime_ns, real.fingerprint
    )
    forged.save("a.tfrecord.index.safetensors")
    assert main(["verify", "a.tfrecord"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "bad: a.tfrecord: the index passes for fresh but names other records: "
        "expected 2 records as in the file, got 1 or others"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_verify_of_a_file_that_cannot_be_opened(folder, capsys):
    write(folder / "a.tfrecord").chmod(0)
    assert main(["verify", "a.tfrecord"]) == 2
    assert capsys.readouterr().out.startswith("bad: a.tfrecord: Permission denied\n")


def test_verify_reports_unreadable_sectors_as_bad_data(folder, monkeypatch, capsys):
    write(folder / "a.tfrecord")

    def fail(*arguments, **options):
        raise OSError(5, "Input/output error", "a.tfrecord")

    monkeypatch.setattr(index.RecordIndex, "_build", fail)
    assert main(["verify", "a.tfrecord"]) == 1
    assert (
        capsys.readouterr().out
        == "bad: a.tfrecord: Input/output error\n1 file, 0 records, 0 bytes, 1 bad file\n"
    )


@pytest.mark.parametrize("path", [".", "*", "a@3", "a-*"])
def test_verify_checks_the_shards_beside_a_missing_one(path, folder, capsys):
    write(folder / "a-00000-of-00003")
    write(folder / "a-00002-of-00003", DATA[:-1])
    assert main(["verify", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 of 3 shards missing: " in lines[0] and "a-00001-of-00003" in lines[0]
    assert "a-00002-of-00003: record 2 at " in lines[1]
    assert lines[2] == "3 files, 5 records, 2101 bytes, 2 bad files"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_verify_checks_the_others_where_a_path_is_missing(folder, jobs, capsys):
    write(folder / "a.tfrecord")
    write(folder / "b.tfrecord", DATA[:-1])
    missing = ["gone", "gone-*", "c@2"]
    assert main(["verify", missing[0], "a.tfrecord", *missing[1:], "x.idx", "--jobs", jobs]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "bad: gone: No such file or directory",
        "bad: gone-*: no file matches the pattern",
        "bad: c-00000-of-00002: 2 of 2 shards missing: c-00000-of-00002, c-00001-of-00002; there is none",
        "4 files, 3 records, 1051 bytes, 3 bad files",
    ]
    # bad data counts more
    assert main(["verify", "gone", "a.tfrecord", "b.tfrecord", "--jobs", jobs]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bad: gone: No such file or directory" and lines[1].startswith(
        "bad: b.tfrecord: record 2 at "
    )
    assert lines[2].startswith("3 files, 5 records, ") and lines[2].endswith(", 2 bad files")


# Seek points of compressed files.


def test_the_share_of_seek_points(folder, capsys):
    numbers = random.Random(0)
    words = [numbers.randbytes(5) for _ in range(3000)]
    records = [b" ".join(numbers.choices(words, k=300)) for _ in range(8000)]
    write(folder / "a.gz", gzip.compress(b"".join(map(framed, records)), 1, mtime=0))
    found = {}
    for share in ("0", "0.01", "1"):
        assert main(["index", "a.gz", "--force", "--index-bytes-ratio", share]) == 0
        index = RecordIndex.load(IndexKeeper.place("a.gz"))
        found[share] = len(index._seek_points())
    assert found["0"] <= found["0.01"] < found["1"]
    assert found["1"] >= 5
    ds = TFRecordDataset("a.gz", index="require")
    assert [ds.raw(at) for at in (7999, 0, 4000)] == [records[at] for at in (7999, 0, 4000)]
    for share in ("-1", "1.5", "nan"):
        assert main(["index", "a.gz", "--force", "--index-bytes-ratio", share]) == 2
        assert f"index_bytes_ratio must be 0 to 1, got {float(share)}" in capsys.readouterr().err


def test_columns_are_kept(folder, capsys):
    with TFRecordWriter("x.tfrecord") as writer:
        for n in range(20):
            writer.write({"label": n % 3, "tokens": np.arange(n)})
    assert main(["index", "x.tfrecord"]) == 0
    assert main(["index", "x.tfrecord", "--columns", "label,len(tokens)"]) == 0
    assert "1 file: 1 indexed, 0 fresh" in capsys.readouterr().out
    ds = TFRecordDataset("x.tfrecord", index="require")
    assert ds.find("label", 2).tolist() == [*range(2, 20, 3)]
    assert ds.column("len(tokens)").tolist() == [*range(20)]
    assert main(["index", "x.tfrecord", "--columns", "label"]) == 0  # it has more
    assert main(["index", "x.tfrecord"]) == 0
    assert capsys.readouterr().out.count("1 file: 0 indexed, 1 fresh") == 2
    assert len(TFRecordDataset("x.tfrecord").where("label", 2)) == 6
    with TFRecordWriter("y.tfrecord") as writer:
        writer.write({"name": "a"})
    for _ in range(2):  # built, then fresh
        assert main(["index", "?.tfrecord", "--columns", "label,lable"]) == 2
        error = capsys.readouterr().err
        assert "got ['lable'], which none of the records has; the first has ['label', 'tok" in error
    assert main(["index", "?.tfrecord", "--columns", "name"]) == 0  # one of the files has it
    assert TFRecordDataset("?.tfrecord", index="require").find("name", "a").tolist() == [20]
    assert TFRecordDataset("x.tfrecord", index="require").find("label", 2).tolist()[0] == 2
    assert main(["index", "x.tfrecord", "--columns", "tokens"]) == 1
    assert (
        "column 'tokens': expected at most one value in a record, got 2" in capsys.readouterr().err
    )
    assert main(["index", "x.tfrecord", "--columns", "label", "--format", "tfrecord2idx"]) == 2
    assert "--columns needs --format safetensors" in capsys.readouterr().err
    assert main(["index", "x.tfrecord", "--columns", "label,label", "--force"]) == 2
    assert "columns must be different names" in capsys.readouterr().err
