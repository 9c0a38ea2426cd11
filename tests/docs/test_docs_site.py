"""The documentation site: its programs run, its navigation has every page, its reference every
public name.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

import torch_tfrecord
from torch_tfrecord import tfds

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package")

FROM_ELSEWHERE = {"changelog.md"}  # docs/site/pages.py makes it of CHANGELOG.md


@pytest.mark.daily
def test_getting_started(run, capsys):
    names = run("index")
    assert capsys.readouterr().out.startswith("200 torch.Size([3, 32, 32])\nloss ")
    assert len(names["losses"]) == 5 * 7
    assert names["losses"][-1] < names["losses"][0]
    assert names["batch"]["image"].shape == (200 - 6 * 32, 3, 32, 32)
    assert (names["batch"]["image"].mean((1, 2, 3)) > 0.4).long().tolist() == names["batch"][
        "label"
    ].tolist()


@pytest.mark.daily
def test_text(run):
    names = run("text")
    assert names["losses"][-1] < names["losses"][0] / 10
    tokens = names["batch"]["tokens"]
    assert (tokens.shape, tokens.dtype) == ((20, 6), torch.int64)
    assert {names["words"][token - 1] for token in tokens.unique().tolist() if token} == set(
        names["words"]
    )


@pytest.mark.daily
def test_lengths(run, capsys):
    trained = []
    names = run("lengths", train=trained.append)
    printed = capsys.readouterr().out
    fills = [int(percent) for percent in re.findall(r"(\d+)% of the", printed)]
    assert fills[0] > 80
    assert fills[1] >= 98
    # What the page prints of packs stands below the code.
    page = (DOCS / "lengths.md").read_text(encoding="utf-8")
    for shown in re.findall(r"^```\n(tensor.*?)^```$", page, re.DOTALL | re.MULTILINE):
        assert shown in printed
    assert len(names["loader"]) == 6400 // 32


@pytest.mark.daily
def test_tables(run):
    names = run("tables")
    assert len(names["losses"]) == 20 * 7
    assert names["losses"][-1] < names["losses"][0]
    x = next(iter(names["loader"]))[0]
    assert {name: tuple(column.shape) for name, column in x.items()} == {
        "age": (64,),
        "income": (64, 2),
    }
    ages = torch.cat([x["age"] for x, _ in names["loader"]])
    assert (ages == -1).sum() == 40  # one row in ten has none


def test_resume(run, capsys):
    assert Counter(run("resume")["seen"]) == dict.fromkeys(range(100), 3)
    assert capsys.readouterr().out == "300\n"


def test_write(run, capsys):
    names = run("write")
    assert capsys.readouterr().out == "6 picture 0 torch.Size([3, 24, 32])\n[30, -1]\n"
    assert names["captions"] == [f"picture {number}" for number in range(6)]
    for sample in names["dataset"]:
        number = int(sample["caption"].removeprefix("picture "))
        assert sample["image"].unique().tolist() == [40 * number]
        assert sample["label"] == number % 2


def test_damaged(run, capsys):
    report = run("damaged")["report"]
    assert capsys.readouterr().out.endswith(f"\n{report.num_records}\n")
    assert (report.num_records, report.kinds) == (995, ["header CRC", "header CRC"])


@pytest.mark.slow
def test_slow_loader(run, capsys):
    speeds = run("slow_loader")["speeds"]
    assert list(speeds) == [
        "all",
        "without transform",
        "without images",
        "bytes only",
        "bytes in order",
    ]
    printed = capsys.readouterr().out
    assert re.fullmatch(
        r"waiting: \d+%\n(.+: [\d,]+ records/s\n){5}(\w+: [\d.e+-]+\n){12}", printed
    )
    stats = dict(re.findall(r"^(\w+): ([\d.e+-]+)$", printed, re.MULTILINE))
    assert (stats["batches"], stats["samples"]) == ("4", "64")
    assert float(stats["bytes"]) > 0


def pages():
    return {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in DOCS.rglob("*.md")
    }


def test_every_page_stands_in_the_navigation_once():
    navigation = re.findall(
        r": ([\w/-]+\.md)$",
        (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert sorted(navigation) == sorted({*pages(), *FROM_ELSEWHERE})


def test_links_lead_to_files():
    dead = []
    for page, text in pages().items():
        prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            if (
                not target.startswith("https://")
                and not (DOCS / page).parent.joinpath(target).is_file()
            ):
                dead.append((page, target))
    assert dead == []


def test_fences_are_those_that_the_site_knows():
    fences = [
        (page, line)
        for page, text in pages().items()
        for line in re.findall(r"^ *```.+$", text, re.MULTILINE)
    ]
    assert [(page, line) for page, line in fences if not re.fullmatch(r" *```[a-z]+", line)] == []


def test_every_public_name_stands_in_the_reference_once():
    text = "\n".join(text for page, text in pages().items() if page.startswith("reference/"))
    shown = re.findall(r"^::: torch_tfrecord\.(\S+)$", text, re.MULTILINE)
    names = [name for name in torch_tfrecord.__all__ if name != "tfds"] + [
        f"tfds.{name}" for name in tfds.__all__
    ]
    assert sorted(shown) == sorted(names)
