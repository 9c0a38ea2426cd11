"""Every code block of docs/ runs in a test, or is listed here with the reason; safety.md and
trainers.md run here.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    collate,
    encode_image,
    make_dataloader,
)

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package")

NOT_RUN = {
    ("assistants", "py"): "wrong uses: test_docs_assistants compares what they raise",
    ("install", "bash"): "installs into the system",
    ("install", "text"): "what tfrecord doctor printed on one machine",
    ("migration", "py"): "the originals' code, run by tests/data/migration/make.py",
    ("migration/ffcv", "py"): "the same",
    ("migration/mds", "py"): "the same",
    ("migration/webdataset", "py"): "the same",
    ("ports", "bash"): "test_ports runs them",
    ("rlds", "py"): "the TensorFlow code that the page ports",
    ("tools", "console"): "what the commands printed once",
    ("robots", "bash"): "installs into the system",
    ("robots", "diff"): "what changes in the originals' code",
}


def blocks(page, language="python"):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_every_block_runs_or_has_a_reason():
    found = set()
    for path in DOCS.rglob("*.md"):
        for info in re.findall(r"^ *```(\S.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.add((path.relative_to(DOCS).with_suffix("").as_posix(), info.split()[0]))
    programs = {page for page, language in found if language == "python"}
    assert found - {(page, "python") for page in programs} == {*NOT_RUN}
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py"))
    named = set(re.findall(r'"([\w/]+?)(?:\.md)?"', tests))
    assert sorted(programs - named) == []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return {"loss": self.head(x).square().mean()}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the blocks take for granted."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, count in (("data/train-0", 150), ("data/validation-0", 10), ("train-0", 150)):
        with TFRecordWriter(name) as writer:
            for number in range(count):
                writer.write({"id": number, "x": [float(number), 1.0]})
    features = {"id": FixedLenFeature((), torch.int64), "x": FixedLenFeature((2,), torch.float32)}
    trained = []
    given = {
        "features": features,
        "trained": trained,
        "train": lambda batch: trained.append(batch["id"].tolist()),
    }
    return given | {
        "collate": collate,
        "make_dataloader": make_dataloader,
        "TFRecordDataset": TFRecordDataset,
    }


@pytest.mark.filterwarnings("ignore:on_error='skip'")
def test_datasets(names, capsys):
    names["augment"] = lambda sample: None if sample["id"] == 3 else sample
    (program,) = blocks("datasets")
    exec(program, names)
    assert "skipped 1 (None: 1)\n  data/train-0: record 3 at byte" in capsys.readouterr().out
    assert names["ds"].report.num_errors == 1


def test_gpu(tmp_path, monkeypatch):
    """On the CPU, as the page says that it runs there."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with TFRecordWriter("data/train-0") as writer:
        for number in range(40):
            picture = encode_image(torch.full((3, 30, 40), number, dtype=torch.uint8), "png")
            writer.write({"image": picture, "label": number})
    names = {}
    first, second, decoded = blocks("gpu")
    exec(first, names)
    assert names["images"].shape == (8, 3, 224, 224) and names["images"].dtype == torch.float32
    number = int(names["labels"][0])
    expected = (torch.tensor([number] * 3) - torch.tensor([123.7, 116.3, 103.5])) / torch.tensor(
        [58.4, 57.1, 57.4]
    )
    torch.testing.assert_close(names["images"][0, :, 0, 0].cpu(), expected)
    exec(second, names)
    assert names["labels"].tolist() == [*range(32, 40)]
    exec(decoded, names)
    assert names["image"].decode_on == "auto"


def test_safety(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("uploads").mkdir()
    with TFRecordWriter("uploads/a.tfrecord") as writer:
        for label in range(3):
            writer.write(
                {"image": encode_image(torch.zeros(3, 30, 40, dtype=torch.uint8)), "label": label}
            )
    names = {
        "make_dataloader": make_dataloader,
        "Image": Image,
        "RandomResizedCrop": RandomResizedCrop,
    }
    names |= {"FixedLenFeature": FixedLenFeature, "torch": torch}
    (program,) = blocks("safety")
    exec(program, names)
    (batch,) = names["loader"]
    assert batch[0]["image"].shape == (3, 3, 224, 224)
    assert sorted(batch[1].tolist()) == [0, 1, 2]
    assert not Path("uploads/.torch_index").exists()


def test_trainers_distributed_sampler(names):
    program = blocks("trainers")[-1]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{Path.cwd()}/store", rank=0, world_size=1
    )
    try:
        exec(program, names)
    finally:
        torch.distributed.destroy_process_group()
    ids = torch.tensor([number for batch in names["trained"] for number in batch])
    epochs = ids.view(3, 150).tolist()
    assert [sorted(epoch) for epoch in epochs] == [list(range(150))] * 3
    assert epochs[0] != epochs[1]


@pytest.mark.daily
@pytest.mark.filterwarnings("ignore")  # what trainers say of this machine
class TestTrainers:
    """What is around the blocks is as small as it can be; tests/training holds what they promise on
    several ranks.
    """

    def test_lightning(self, names):
        pytest.importorskip("lightning")
        from lightning.pytorch import LightningModule

        class Module(LightningModule):
            def __init__(self):
                super().__init__()
                self.model = Model()

            def training_step(self, batch):
                names["train"](batch)
                return self.model(batch["x"])["loss"]

            def validation_step(self, batch):
                return None

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-9)

        # With devices=2 Lightning would start the whole test again.
        program = blocks("trainers")[0].replace(
            'strategy="ddp", devices=2', 'accelerator="cpu", devices=1'
        )
        exec(program, names | {"model": Module()})
        assert [len(ids) for ids in names["trained"]] == [64, 64, 22] * 3

    def test_fabric(self, names):
        fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
        exec(blocks("trainers")[1], names | {"fabric": fabric, "model": Model(), "resumed": False})
        assert [len(ids) for ids in names["trained"]] == [64, 64, 22] * 3
        exec(blocks("trainers")[1], names | {"fabric": fabric, "model": Model(), "resumed": True})
        assert len(names["trained"]) == 9  # nothing was left to do

    def test_accelerate(self, names):
        accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = {
            "accelerator": accelerator,
            "model": model,
            "optimizer": optimizer,
            "num_epochs": 2,
            "resume": False,
        }
        given |= names
        exec(blocks("trainers")[2], given)
        assert given["loader"].epoch == 2
        assert Path("checkpoint").is_dir()

    def test_hugging_face(self, names):
        transformers = pytest.importorskip("transformers")
        given = {
            "Trainer": transformers.Trainer,
            "TrainingArguments": transformers.TrainingArguments,
            "model": Model(),
        }
        exec(
            blocks("trainers")[3].replace('"run", ', '"run", use_cpu=True, '),
            given := given | names,
        )
        batch = next(iter(given["trainer"].get_train_dataloader()))
        assert batch["x"].shape == (8, 2)

    def test_batches_by_length(self, names):
        lightning = pytest.importorskip("lightning.pytorch")
        pytest.importorskip("accelerate")
        for path in Path("data").glob("train-*"):
            path.unlink()
        with TFRecordWriter("data/train-0") as writer:
            for number in range(90):
                writer.write({"id": number, "tokens": [number] * (1 + number % 20)})
        build_index("data/train-0", columns=["len(tokens)"])

        class Module(lightning.LightningModule):
            def training_step(self, batch):
                names["train"](batch)

            def configure_optimizers(self):
                return None

        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False
        )
        names["features"] = {"id": names["features"]["id"], "tokens": VarLenFeature(torch.int64)}
        given = names | {"model": Module(), "trainer": trainer}
        for program, num_epochs in zip(blocks("trainers")[4:7], (0, 1, 2), strict=True):
            exec(program, given)
            seen = [number for batch in given["trained"] for number in batch]
            assert sorted(seen) == sorted([*range(90)] * num_epochs)
            given["trained"].clear()
        assert given["packed"].padding_report()["tokens"] == sum(1 + n % 20 for n in range(90))
