"""The documentation site: its programs run, its navigation has every page, its reference every
public name.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

import torch_tfrecord
from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    TFRecordDataset,
    TFRecordWriter,
    decode_example,
    encode_image,
    tfds,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package")

# What functions return, and what the reference shows of it without its arguments.
RETURNED = {"error_log.ErrorReport"}
FROM_ELSEWHERE = {"changelog.md"}  # docs/site/pages.py makes it of CHANGELOG.md


@pytest.mark.daily
def test_getting_started(run, capsys):
    names = run("index")
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    first = re.findall(r"^print\(.*  # (.+)$", page, re.MULTILINE)[:2]
    assert capsys.readouterr().out.startswith(
        "\n".join([*first, "200 torch.Size([3, 32, 32])", "loss "])
    )
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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_resume(run, capsys):
    names = run("resume")
    assert Counter(names["seen"]) == dict.fromkeys(range(100), 3)
    assert capsys.readouterr().out == "300\n60\n"
    assert sorted(names["rest"]) == sorted(names["seen"][40:100])


def test_write(run, capsys):
    names = run("write")
    assert capsys.readouterr().out == "6 picture 0 torch.Size([3, 24, 32])\n[30, -1]\n"
    assert names["captions"] == [f"picture {number}" for number in range(6)]
    for sample in names["dataset"]:
        number = int(sample["caption"].removeprefix("picture "))
        assert sample["image"].unique().tolist() == [40 * number]
        assert sample["label"] == number % 2


def commands(page):
    """The commands of the tool in a page's indented code."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^    tfrecord (.+)$", text, re.MULTILINE)


def test_write_images(run, capsys):
    for name, gray in (("cat", 10), ("dog", 200)):
        Path("photos", name).mkdir(parents=True)
        for number in range(4):
            picture = torch.full((3, 70, 90), gray + number, dtype=torch.uint8)
            Path(f"photos/{name}/{number}.png").write_bytes(encode_image(picture, "png"))
    Path("data").mkdir()
    (command,) = commands("write_images")
    assert main(command.split()) == 0
    assert "wrote 8 records of 2 classes in 4 shards" in capsys.readouterr().out
    names = run("write_images")
    assert capsys.readouterr().out == (
        "torch.Size([4, 3, 64, 64]) torch.Size([4])\n['cat', 'dog']\n6 200 torch.Size([2, 4])\n"
    )
    seen = {}
    for x, label in names["loader"]:
        for image, number in zip(x["image"], label.tolist(), strict=True):
            seen.setdefault(number, set()).add(image.unique().item())
    assert seen == {0: {10, 11, 12, 13}, 1: {200, 201, 202, 203}}
    # each feature that the table names, and no other
    record = decode_example(TFRecordDataset("data/train-*").raw(0))
    table = (DOCS / "write_images.md").read_text(encoding="utf-8")
    assert sorted(record) == sorted(re.findall(r"`(image/[\w/]+)`", table.partition("## Read")[0]))
    assert (Path("data/.torch_index")).is_dir()


def test_validation_split(run, capsys):
    Path("data").mkdir()
    for shard in range(2):
        with TFRecordWriter(f"data/{shard}.tfrecord") as writer:
            for number in range(50 * shard, 50 * shard + 50):
                writer.write({"id": number, "label": int(number % 4 == 0), "patient": number // 5})
    assert main(["index", "--columns", "label,patient", "data/"]) == 0
    fifth = {
        "train": [{"image": torch.zeros(3, 8, 8, dtype=torch.uint8), "label": 1} for _ in range(40)]
    }
    tree = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=10)}
    tfds.write("digits/1.0.0", fifth, tree, name="digits")
    stratified, grouped = commands("validation_split")[:2]
    features = {name: FixedLenFeature((), torch.int64) for name in ("id", "label", "patient")}
    for command, folder in ((stratified, "sets"), (grouped, "kept")):
        assert main(command.split()) == 0
        parts = [
            [*TFRecordDataset(f"{folder}/{name}-*", features)] for name in ("train", "validation")
        ]
        ids = [sample["id"].item() for part in parts for sample in part]
        assert sorted(ids) == list(range(100))
        if folder == "sets":
            assert [sum(sample["label"].item() for sample in part) for part in parts] == [20, 5]
            assert [len(part) for part in parts] == [80, 20]
        else:
            both = [{sample["patient"].item() for sample in part} for part in parts]
            assert all(both)
            assert not both[0] & both[1]
    capsys.readouterr()
    names = run("validation_split")
    assert capsys.readouterr().out == (
        "80 20\n20\n[15, 5]\nset()\n{'train': 36, 'validation': 4}\n"
    )
    ids = [{sample["id"].item() for sample in names[part]} for part in ("train", "validation")]
    assert ids[0] | ids[1] == {*range(100)}
    assert not ids[0] & ids[1]
    assert len(ids[1]) > 0


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


def test_the_start_page_shows_code_and_leads_to_what_people_look_for():
    text = pages()["index.md"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.compile(r"^```python\n.*?^```$", re.DOTALL | re.MULTILINE)
    assert block.search(text)[0] == block.search(readme)[0]  # test_readme runs it
    links = {*re.findall(r"\]\(([^)#]+)", text)}
    wanted = {"write_images.md", "dataframes.md", "validation_split.md", "slow_loader.md"}
    assert wanted <= links


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
    assert sorted(shown) == sorted([*names, *RETURNED, "train.loader.LoaderOptions"])
