"""The command line as a whole: arguments, exit statuses, text that is safe for a terminal."""

import argparse
import errno
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

import torch_tfrecord
from index_tools import _terminal, main, show
from index_tools._terminal import byte_size
from torch_tfrecord import CorruptRecordError, TFRecordWriter

VERBS = ("index", "verify", "show", "from-images", "cache", "doctor")


@pytest.mark.daily
def test_python_m_index_tools_runs_in_a_process_of_its_own(tmp_path):
    path = tmp_path / "a \xe9\n.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write({"label": 7})
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "index_tools",
        "show",
        str(path),
        "--no-features",
    ]
    environment = {"PATH": "", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment, text=True)
    name = str(path).replace("\n", "\\n").encode("ascii", "backslashreplace").decode()
    size = path.stat().st_size - 16
    assert done.stderr == ""
    assert (
        done.stdout
        == f"record 0: {name}, offset 0, {size} bytes, Example, 1 feature\n  label  int64  1  7\n\n"
    )
    assert done.returncode == 0


def test_the_package_itself_is_no_command():
    assert not (Path(torch_tfrecord.__file__).parent / "__main__.py").exists()


@pytest.mark.daily
def test_a_reader_that_goes_away_gives_no_traceback(tmp_path):
    with TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(3000):
            writer.write({"number": number})
    command = [
        sys.executable,
        "-m",
        "index_tools",
        "show",
        str(tmp_path / "a.tfrecord"),
        "-n",
        "3000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_version_and_help(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tfrecord {torch_tfrecord.__version__}\n"
    assert main.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n    {verb}" in text for verb in VERBS)
    assert "exit status:\n  0    all well\n  1    bad data" in text


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_with_an_example_and_the_exit_statuses(verb, capsys):
    assert main.main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"\n  tfrecord {verb} " in text[text.index("example") :]
    assert "that does not exist" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tfrecord: the following arguments are required: VERB (see tfrecord --help)"),
        (
            ["index"],
            "tfrecord index: the following arguments are required: PATH (see tfrecord index --help)",
        ),
        (
            ["index", "x", "--jobs", "0"],
            "argument --jobs: expected an integer of at least 1, got '0'",
        ),
        (["index", "x", "--format", "pickle"], "'safetensors', 'tfrecord2idx'"),
        (["show", "x", "-n", "-1"], "argument -n: expected an integer of at least 0, got '-1'"),
        (["show", "x", "--position", "one"], "argument --position: invalid int value: 'one'"),
        (
            ["from-images", "x", "y", "--jpeg-quality", "101"],
            "expected an integer from 1 to 100, got '101'",
        ),
        (["from-images", "x", "y", "--compression", "lz4"], "'GZIP', 'ZLIB'"),
        (["from-images", "x", "y", "--max-shard-bytes", "big"], "such as 1000000, 100MB or 64MiB"),
        (
            ["from-images", "x", "y", "--num-shards", "2", "--max-shard-bytes", "1MB"],
            "not allowed with argument",
        ),
        (["show", "x", "--bad\x1b[31m"], "unrecognized arguments: --bad\\x1b[31m"),
        (["show", "not there\n"], "tfrecord: not there\\n: No such file or directory"),
        (
            ["verify", "x.index.safetensors"],
            "expected data files, got only index files or labels: x.index.safetensors",
        ),
    ],
)
def test_wrong_use_is_one_line_that_names_what_is_allowed(arguments, message, capsys):
    assert main.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.startswith("tfrecord")
    assert output.err.count("\n") == 1


def test_an_unknown_verb_names_the_verbs(capsys):
    assert main.main(["transmute"]) == 2
    error = capsys.readouterr().err
    assert all(verb in error for verb in VERBS)


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            CorruptRecordError("cut", path="a\nb", offset=3, position=1),
            1,
            "a\\nb: record 1 at byte 3: cut",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out"),
            2,
            "out: No space left on device",
        ),
        (OSError("no number"), 2, "no number"),
        (ValueError("position must be 0"), 2, "position must be 0"),
        (ImportError("pip install s3fs"), 2, "pip install s3fs"),
    ],
)
def test_errors_become_a_line_and_a_status(error, status, text, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(show, "data_files", fail)
    assert main.main(["show", "x"]) == status
    assert capsys.readouterr().err == f"tfrecord: {text}\n"


def test_a_broken_pipe_is_quiet(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(show, "data_files", fail)
    assert main.main(["show", "x"]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain \\ \xe9 \u65e5", "plain \\ \xe9 \u65e5"),
        ("\x00\x1b[2J\x7f\x9b", "\\x00\\x1b[2J\\x7f\\x9b"),
        ("a\tb\r\nc", "a\\tb\\r\\nc"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\\xe9"),
        # turns the writing direction; a line separator
        ("\u202etxt.exe\u2028", "\\u202etxt.exe\\u2028"),
        ("\ud800\U000e0001", "\\ud800\\U000e0001"),
    ],
)
def test_escape_leaves_nothing_unprintable(text, escaped):
    assert _terminal.escape(text) == escaped
    assert _terminal.escape(text).isprintable()


def test_escape_can_tell_an_escape_from_a_backslash():
    assert _terminal.escape("\\n\n", escape_backslash=True) == "\\\\n\\n"


@pytest.mark.parametrize("text", ["", "MB", "0", "0.2B", "-1", "1e9", "10 MBs", "1M", "1XB", "nan"])
def test_byte_size_refuses(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 1000000, 100MB or 64MiB"):
        byte_size(text)


WITHOUT_TORCH = [
    "index rows.tfrecord --force",
    "verify rows.tfrecord",
    "salvage rows.tfrecord good.tfrecord",
    "reshard rows.tfrecord new --num-shards 2 --shuffle",
    "split rows.tfrecord sets train=0.5 test=0.5",
    "merge rows.tfrecord one.tfrecord",
    "head rows.tfrecord first.tfrecord -n 2",
    "sample rows.tfrecord some.tfrecord -n 2",
    "from-images photos pictures",
    "convert photos pictures",
    "cache",
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", WITHOUT_TORCH)
def test_verbs_that_need_no_tensor_do_not_wait_for_torch(tmp_path, arguments):
    """It takes seconds to import."""
    with TFRecordWriter(tmp_path / "rows.tfrecord") as writer:
        for number in range(4):
            writer.write({"label": number})
    picture = tmp_path / "photos" / "cat" / "1.jpg"
    picture.parent.mkdir(parents=True)
    PIL.Image.new("RGB", (20, 10)).save(picture)
    code = (
        "import sys; from index_tools.main import main; status = main(sys.argv[1:]); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
