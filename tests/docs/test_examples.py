"""Each example as a person runs it: a process of its own, with warnings as errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What is wrong with the machine (few processors) or with forking as such (Python 3.12 and later),
# not with an example.
ALLOWED = ["ignore:This DataLoader will create", "ignore:This process"]


def run(name, *arguments):
    """What an example prints."""
    warnings = ["error", *ALLOWED]
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        # of the processes that it starts, too; torchrun warns where the threads are not chosen
        env=os.environ | {"PYTHONWARNINGS": ",".join(warnings), "OMP_NUM_THREADS": "1"},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_every_example_has_its_test():
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.daily
def test_quickstart():
    printed = run("quickstart.py")
    assert "1437 digits in 4 files to train, 360 to test" in printed
    losses = [
        float(loss) for loss in re.findall(r"^epoch \d+ of 12: loss (\S+)$", printed, re.MULTILINE)
    ]
    assert len(losses) == 12
    assert losses[-1] < losses[0] / 10
    (accuracy,) = re.findall(r"^test accuracy: (\S+)$", printed, re.MULTILINE)
    assert 0.95 < float(accuracy) <= 1


@pytest.mark.daily
def test_read_tensorflow_files():
    printed = run("read_tensorflow_files.py")
    assert "    'image/encoded': Image(),\n" in printed
    assert "    'image/object/bbox/xmin': VarLenFeature(torch.float32),\n" in printed
    assert "16 images in 2 files\n" in printed
    batches = re.findall(
        r"^images \[8, 3, 64, 64\] torch.float32, labels \[(.*)\], first text '(.*)'$",
        printed,
        re.MULTILINE,
    )
    assert (
        sorted(label for labels, _ in batches for label in labels.split(", "))
        == ["1"] * 8 + ["2"] * 8
    )
    assert all(text == {"1": "palace", "2": "flower"}[labels[0]] for labels, text in batches)
    assert printed.endswith(
        "boxes in each image: [0, 2, 0, 2, 0, 2, 0, 2]\nboxes in each image: [1, 3, 1, 3, 1, 3, 1, 3]\n"
    )


@pytest.mark.daily
def test_raw_arrays():
    assert run("raw_arrays.py").splitlines() == [
        "label 0: image [2, 3, 3], heat [2, 3]",
        "label 1: image [4, 2, 3], heat [4, 2]",
        "label 2: image [3, 5, 3], heat [3, 5]",
        "label 3: image [1, 1, 3], heat [1, 1]",
        "label 4: image [4, 5, 3], heat [4, 5]",
        "label 5: image [2, 2, 3], heat [2, 2]",
        "padded: image [3, 4, 5, 3], sizes [[2, 3], [4, 2], [3, 5]]",
        "padded: image [3, 4, 5, 3], sizes [[1, 1], [4, 5], [2, 2]]",
        "lists: images [[2, 3, 3], [4, 2, 3], [3, 5, 3]], labels [0, 1, 2]",
        "lists: images [[1, 1, 3], [4, 5, 3], [2, 2, 3]], labels [3, 4, 5]",
    ]


@pytest.mark.daily
def test_resume():
    lines = run("resume.py").splitlines()
    assert lines[:2] == [
        "killed after 20 steps: exit status -9",
        "samples up to the last checkpoint: 140, after the restart: 160",
    ]
    assert lines[2].split(": ")[1].strip() == lines[3].split(": ")[1].strip()
    assert lines[4:] == ["equal samples and equal weights"]


@pytest.mark.daily
def test_distributed(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    lines = [
        f"{name}, epoch {epoch}: 60 + 60 positions on 2 ranks, disjoint and complete"
        for epoch in range(2)
        for name in ("TFRecordIterableDataset", "TFRecordDataset and RecordSampler")
    ]
    lines += [
        "trained on 2 ranks: 80 records so far, 80 different ones",
        "trained on 4 ranks: 120 records so far, 120 different ones",
        "each record exactly once",
    ]
    assert run("distributed.py").splitlines() == lines


@pytest.mark.daily
def test_text_lengths(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    lines = run("text_lengths.py").splitlines()
    padded, stopped, skipped, resumed, trained, packed, blocks = lines
    assert re.fullmatch(r"padded: 9\d\.\d% of the batches is text", padded)
    steps = (
        r"(\d) ranks, (\d+) steps each: rows of \d+ to 512 tokens, in a step at most (\d+) apart; "
        r"batches of up to (\d+) tokens"
    )
    ranks = [[*map(int, re.fullmatch(steps, line).groups())] for line in (stopped, resumed, blocks)]
    assert ranks[0][:2] == [2, 50]
    assert [rank[0] for rank in ranks[1:]] == [3, 2]
    assert all(most <= 1024 for *_, most in ranks)
    assert all(apart <= 64 for _, _, apart, _ in ranks)
    (left_out,) = re.fullmatch(
        r"skipped (\d+) texts, the first at byte \d+ of train-0000\d-of-00003.tfrecord", skipped
    ).groups()
    found = re.fullmatch(r"(\d+) other texts were trained on, (\d+) of them twice", trained)
    different, twice = map(int, found.groups())
    assert different + int(left_out) == 3000
    assert twice < 30
    assert re.fullmatch(r"packed: (99\.\d|100\.0)% of the rows is text", packed)


@pytest.mark.daily
def test_behaviour_cloning():
    printed = run("behaviour_cloning.py")
    assert "steps in 300 episodes\n" in printed
    before, after = map(
        float, re.findall(r"^success (?:before|after): (\S+)$", printed, re.MULTILINE)
    )
    assert before < 0.3
    assert after > 0.8
