"""Some of the inputs of fuzz/, with a fixed seed, and all of its corpus; for hours it is run by
hand.
"""

import importlib
import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "fuzz" / "engine.py"
# Inputs of each target; those of one number share a process, since importing takes longer than
# most.
TARGETS = {
    1500: ("columns", "compressed", "tensors", "values"),
    500: ("frames", "images", "sounds", "writers"),
    200: ("dataset_json", "examples", "lists", "paths", "states"),
    100: ("salvage", "seek_points", "sequences", "sidecars"),
}


def fuzz(*arguments, tmp_path):
    return subprocess.run(
        [sys.executable, ENGINE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=tmp_path,
        check=False,
    )


def test_every_target_is_counted():
    assert sorted(itertools.chain(*TARGETS.values())) == sorted(
        path.stem for path in ENGINE.parent.glob("targets/*.py")
    )


@pytest.mark.slow
def test_every_target_uses_what_there_is(monkeypatch):
    monkeypatch.syspath_prepend(ENGINE.parent)
    for path in ENGINE.parent.glob("targets/*.py"):
        assert callable(importlib.import_module(f"targets.{path.stem}").check)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # what is skipped is checked
@pytest.mark.parametrize(
    "name", ["compressed", "lists", "salvage", "seek_points", "sounds", "values"]
)
def test_a_few_inputs_of_the_latest_targets(name, monkeypatch):
    monkeypatch.syspath_prepend(ENGINE.parent)
    target, rng = importlib.import_module(f"targets.{name}"), random.Random(name)
    for data in target.seeds():
        target.check(data)
        target.check(target.mutate(rng, data))


@pytest.mark.daily
@pytest.mark.parametrize("count", TARGETS)
def test_random_inputs(count, tmp_path):
    done = fuzz(*TARGETS[count], "--count", count, "--seed", 1, tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(", 0 finds") == len(TARGETS[count])


@pytest.mark.daily
def test_a_wrong_oracle_is_found_and_made_small(tmp_path):
    code = (
        "import engine, sys; from pathlib import Path; engine.CORPUS = Path(sys.argv[1]); import targets.tensors as t;"
        "t.check = lambda data: data.index(b'\\x08'); t.seeds = lambda: [b'abc\\x08def' * 9];"
        "t.mutate = lambda rng, data: data.replace(b'\\x08', b'') if rng.random() < 0.5 else data;"
        "done, finds = engine.run('tensors', count=20); assert done == 20 and len(finds) == 1, finds;"
        "(kept,) = engine.CORPUS.glob('tensors/ValueError-*'); assert kept.read_bytes() == b''"
    )
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ENGINE.parent)!r}); {code}",
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
