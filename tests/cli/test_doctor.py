"""What `tfrecord doctor` says, with and without the compiled core and the image libraries."""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import pure_python

from index_tools import doctor
from index_tools.main import main
from torch_tfrecord import native
from torch_tfrecord.native import fallback_reason, optional_module
from torch_tfrecord.shared_memory import WorkerMemory

PARTS = {
    "frames": "records and checksums",
    "columns": "Examples to tensors",
    "memory": "memory of batches",
    "shared": "memory of workers",
    "inflate": "seek points in gzip and zlib files",
    "jpeg": "crops of JPEG images",
}
NEEDS_ALL = pytest.mark.skipif(
    any(optional_module(name) is None for name in PARTS) or sys.platform != "linux",
    reason="needs Linux and every compiled part",
)


@pytest.fixture
def backends(monkeypatch):
    """Chooses which image libraries are there: the machine's own differ."""

    def choose(*names):
        how = "" if "torchcodec" in names else 'pip install "torchcodec>=0.16"'
        # they take most of a second: tried below
        monkeypatch.setattr(doctor, "_TRIALS", {"region": lambda: "decoded"})
        monkeypatch.setattr(doctor, "_torchcodec_remedy", lambda: how)

    return choose


def sections(text):
    """The report's parts by their titles."""
    head, *parts = text.split("\n\n")
    return {"head": head} | {
        part.partition("\n")[0]: part.partition("\n")[2].splitlines() for part in parts
    }


@NEEDS_ALL
def test_a_whole_installation(backends):
    backends("torchcodec")
    with pure_python(False):
        report = sections(doctor.installation_report())
    assert report["Compiled core"] == [
        f"  {name:<11}  compiled ({what})" for name, what in PARTS.items()
    ]
    assert report["Images"] == [
        "  JPEG         libjpeg-turbo in batches of one size, else torchcodec",
        "  JPEG crops   libjpeg-turbo",
        "  others       Pillow (PNG, GIF, BMP, WebP)",
        '  torchcodec   decode_image(backend="torchcodec") works',
    ]
    assert "Missing" not in report
    assert report["Nothing is missing."] == []


def test_the_python_fallback(backends):
    backends()
    with pure_python():
        report = sections(doctor.installation_report())
    why = "TORCH_TFRECORD_PURE_PYTHON is set"
    assert report["Compiled core"] == [
        f"  {name:<11}  Python fallback ({what}): {why}" for name, what in PARTS.items()
    ]
    assert report["Images"] == [
        "  JPEG         Pillow",
        "  JPEG crops   none: Pillow decodes the whole image",
        "  others       Pillow (PNG, GIF, BMP, WebP)",
        '  torchcodec   decode_image(backend="torchcodec") is not available',
    ]
    assert report["Missing"] == [
        "  Compiled core: unset TORCH_TFRECORD_PURE_PYTHON.",
        '  torchcodec: pip install "torchcodec>=0.16"',
    ]


MISSING_LIBRARY = "libavutil.so.{}: cannot open shared object file: No such file or directory"
HOW = "apt install ffmpeg, brew install ffmpeg or conda install ffmpeg"
NO_FFMPEG = f"torchcodec finds no FFmpeg: {HOW}"
MEDIA = {
    "not installed": (
        ModuleNotFoundError("No module named 'torchcodec'", name="torchcodec"),
        "torchcodec is not installed: pip install torchcodec",
    ),
    "no FFmpeg": (
        RuntimeError(
            "Could not load libtorchcodec. Likely causes:\n"
            + "".join(
                f"FFmpeg version {9 - number}:\nOSError: {MISSING_LIBRARY.format(61 - number)}\n"
                f"OSError: Could not load this library: libtorchcodec_core{9 - number}.so\n"
                for number in range(6)
            )
        ),
        NO_FFMPEG,
    ),
    "no FFmpeg, torchcodec 0.7": (
        RuntimeError(
            f"Could not load libtorchcodec.\nFFmpeg version 7: {MISSING_LIBRARY.format(59)}\n[end]"
        ),
        NO_FFMPEG,
    ),
    "no FFmpeg on macOS": (
        RuntimeError(
            "Could not\nFFmpeg version 7: dlopen(core7): Library not loaded: @rpath/libavutil.59.dylib"
        ),
        NO_FFMPEG,
    ),
    "another torch": (
        RuntimeError(
            f"Could not\nOSError: {MISSING_LIBRARY.format(60)}\nOSError: libcore7.so: undefined symbol: _ZN3c10"
        ),
        "torchcodec does not load (libcore7.so: undefined symbol: _ZN3c10): install the torchcodec that fits "
        f"your torch, and FFmpeg: {HOW}",
    ),
}


@pytest.mark.parametrize("case", MEDIA)
def test_sounds_and_videos_that_cannot_be_decoded(backends, monkeypatch, case):
    error, text = MEDIA[case]

    def refuse():
        raise ImportError("missing") from error

    backends("torchcodec")
    monkeypatch.setattr("torch_tfrecord.media.media_decoders._decoders", refuse)
    rows = sections(doctor.installation_report())["Sounds and videos"]
    assert rows == [
        "  WAV          this package (PCM and float samples, not resampled)",
        f"  others       not available (optional): {text}",
    ]


def test_sounds_and_videos_that_can_be_decoded(backends, monkeypatch):
    backends("torchcodec")
    monkeypatch.setattr("torch_tfrecord.media.media_decoders._decoders", object)
    monkeypatch.setattr("torch_tfrecord.media.media_decoders._ffmpeg_version", lambda: "7")
    rows = sections(doctor.installation_report())["Sounds and videos"]
    assert rows[1] == "  others       torchcodec and FFmpeg 7 (sounds, resampling, videos)"


@pytest.mark.parametrize(
    ("part", "reason", "remedy"),
    [
        (
            "jpeg",
            "not built",
            "JPEG regions: apt install libjpeg-dev, dnf install libjpeg-turbo-devel or brew install jpeg-turbo, then "
            "pip install again.",
        ),
        (
            "frames",
            "not built",
            "Compiled core: install a C compiler, then pip install again.",
        ),
    ],
)
def test_a_part_that_was_not_built(backends, monkeypatch, part, reason, remedy):
    backends("torchcodec")
    monkeypatch.setattr(doctor, "fallback_reason", lambda name: reason if name == part else None)
    monkeypatch.setattr(doctor, "how_to_install", lambda: "pip install again")
    report = sections(doctor.installation_report())
    assert f"  {part:<11}  Python fallback ({PARTS[part]}): {reason}" in report["Compiled core"]
    assert report["Missing"] == [f"  {remedy}"]


def test_why_a_part_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(
        "raise ImportError('libjpeg.so.62: cannot open shared object file')"
    )
    monkeypatch.setattr(native, "__path__", [*native.__path__, str(tmp_path)])
    with pure_python(False):
        assert fallback_reason("no_such_part") == "not built"
        text = r"native\.broken is installed, but does not load \(libjpeg\.so\.62: cannot open"
        with pytest.warns(RuntimeWarning, match=text):  # whoever it makes slower hears of it
            assert optional_module("broken") is None
        assert fallback_reason("broken") == (
            "built, but does not load (libjpeg.so.62: cannot open shared object file)"
        )
        assert (fallback_reason("frames") is None) is (native.native_module("frames") is not None)
    with pure_python():
        assert fallback_reason("frames") == "TORCH_TFRECORD_PURE_PYTHON is set"


@NEEDS_ALL
def test_a_worker_without_memory_to_share_says_why(backends, monkeypatch):
    backends("torchcodec")

    def refuse(self):
        raise OSError("Too many open files")

    monkeypatch.setattr(WorkerMemory, "__init__", refuse)
    monkeypatch.setattr(doctor, "_TRIALS", {"worker": doctor._forked_worker})
    (row,) = sections(doctor.installation_report())["Tried out"]
    how = "sent 1,048,576 bytes by PyTorch itself, with a copy: Too many open files, in "
    assert how in row


@pytest.mark.daily
@pytest.mark.parametrize("pure", ["0", "1"])
def test_the_command_prints_the_report(pure, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "index_tools", "doctor"],
        env=os.environ | {"TORCH_TFRECORD_PURE_PYTHON": pure},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
    )
    with pure_python(pure == "1"):
        report = doctor.installation_report() + "\n"
    times = re.compile(r"\d+\.\d ms")
    assert times.sub("", done.stdout) == times.sub("", report)
    assert done.stderr == ""


@NEEDS_ALL
@pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="needs obstore")
def test_what_is_tried_out():
    rows = sections(doctor.installation_report())["Tried out"]
    found = [re.sub(r"\d+\.\d ms$", "_ ms", row) for row in rows]
    assert found == [
        "  region       libjpeg-turbo decoded 16 x 24 of 64 x 64 pixels, in _ ms",
        "  worker       a forked worker read a record and sent 1,048,576 bytes through shared memory, in _ ms",
        "  client       4,096 of 1,048,576 bytes read by obstore, in _ ms",
        "  device       not tried: torch finds no GPU of NVIDIA's",
    ]


_PROBLEM = "Wrong JPEG library version: library is 62, caller expects 80\nand more"


def _raise(*arguments, **options):
    raise RuntimeError(_PROBLEM)


def _core(**result):
    """A core whose jobs do nothing, and say so or not."""

    class Job(optional_module("jpeg").CropJob):
        problem, done = result["problem"], result["done"]

        def __init__(self, _, images, *arguments, **options):
            super().__init__(_, [b""], *arguments, **options)

    return SimpleNamespace(CropJob=Job)


REASON = "fails: RuntimeError: Wrong JPEG library version: library is 62, caller expects 80"
BROKEN = {
    "region": ("region", "optional_module", lambda _: _core(problem=_PROBLEM, done=0), REASON),
    "other pixels": (
        "region",
        "optional_module",
        lambda _: _core(problem="", done=1),
        "fails: ValueError: expected the pixels of the whole picture, got others",
    ),
    "client": (
        "client",
        "optional_import",
        lambda *_: SimpleNamespace(MemoryStore=_raise),
        REASON,
    ),
    "worker": ("worker", "make_dataloader", _raise, REASON),
    "no client": (
        "client",
        "optional_import",
        lambda *_: None,
        "not available (optional): it comes with the extra remote",
    ),
}


@NEEDS_ALL
@pytest.mark.parametrize("case", BROKEN)
def test_what_loads_but_does_not_work(case, monkeypatch):
    trial, name, double, text = BROKEN[case]
    monkeypatch.setattr(doctor, "_TRIALS", {trial: doctor._TRIALS[trial]})
    monkeypatch.setattr(doctor, name, double)
    monkeypatch.setattr(doctor, "_torchcodec_remedy", str)
    report = sections(doctor.installation_report())
    assert report["Tried out"] == [f"  {trial:<11}  {text}"]
    crops = "none: torchcodec decodes the whole image" if trial == "region" else "libjpeg-turbo"
    assert report["Images"][1] == f"  JPEG crops   {crops}"
    assert report.get("Missing", []) == ([f"  {trial}: it {text}"] if "fails" in text else [])


def test_the_verb(capsys, monkeypatch):
    monkeypatch.setattr("index_tools.doctor.installation_report", lambda: "all of it")
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "all of it\n"


def test_the_report_as_json(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["Versions"]["numpy"] == np.__version__
    assert found["Versions"]["torch"] == importlib.metadata.version("torch")
    assert {*found["Compiled core"]} == {*PARTS}
    text = doctor.installation_report()
    assert all(remedy in text for remedy in found["Missing"])
