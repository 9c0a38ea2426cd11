"""Source: each way in gives the file, position and offset of each sample's record.

Covers columns/record_parsers.
"""

import pickle

import pytest
import torch
from helpers import framed, pure_python
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision.transforms import v2

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    Mixture,
    PaddedCollate,
    RandomResizedCrop,
    SequenceFeatures,
    Source,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    VarLenFeature,
    build_index,
    collate,
    encode_example,
    encode_image,
    encode_sequence_example,
    make_dataloader,
    parse_example,
    parse_sequence_example,
    parse_single_example,
)
from torch_tfrecord.loading import ReadAheadLoader

FEATURES = {
    "offset": Source("offset"),
    "label": FixedLenFeature((), torch.int64),
    "path": Source("path"),
    "source": Source(),
    "position": Source("position"),
}


@pytest.fixture(params=[False, True], ids=["core", "fallback"])
def core(request):
    with pure_python(request.param):
        yield


def write(folder, names=("a", "b"), pack=bytes):
    """Records of different lengths; label -> (path, position, offset)."""
    known, label = {}, 0
    for name in names:
        records = []
        for position in range(7 if name == "a" else 5):
            offset = len(framed(*records))
            known[label] = str(folder / name), position, offset
            records.append(encode_example({"label": label, "text": "x" * (label * 37 % 11)}))
            label += 1
        (folder / name).write_bytes(pack(framed(*records)))
    return known


def flat(batches):
    """label -> source, from batches; the three ways to ask for it agree."""
    found = {}
    for batch in batches:
        single = {name: batch[name].tolist() for name in ("label", "offset", "position")}
        source = batch["source"]
        assert [*batch] == [*FEATURES]
        assert source["path"] == batch["path"]
        assert torch.equal(source["position"], batch["position"])
        assert torch.equal(source["offset"], batch["offset"])
        rows = zip(
            single["label"], batch["path"], single["position"], single["offset"], strict=True
        )
        found |= {label: (path, position, offset) for label, path, position, offset in rows}
    return found


def test_samples(core, tmp_path):
    known = write(tmp_path)
    ds = TFRecordDataset(str(tmp_path / "*"), FEATURES, index="memory")
    for number, (path, position, offset) in known.items():
        for sample in (
            ds[number],
            ds[number:][0],
            Subset(ds, [number])[0],
            ds.__getitems__([3, number])[1],
        ):
            assert [*sample] == [*FEATURES]
            assert sample["source"] == {"path": path, "position": position, "offset": offset}
            assert (sample["path"], sample["position"].item(), sample["offset"].item()) == (
                path,
                position,
                offset,
            )
            assert {sample[name].dtype for name in ("position", "offset")} == {torch.int64}
            assert sample["position"].shape == ()
        assert ds.locate(number) == (path, offset)
        assert build_index(path).offsets[position] == offset
    streamed = [*TFRecordIterableDataset(str(tmp_path / "*"), FEATURES)]
    assert [sample["label"].item() for sample in streamed] == [*known]
    assert [(s["path"], s["position"].item(), s["offset"].item()) for s in streamed] == [
        *known.values()
    ]
    assert [dict(sample["source"]) for sample in streamed][9] == dict(
        zip(("path", "position", "offset"), known[9], strict=True)
    )


def test_every_way_in_gives_the_same(core, tmp_path):
    known = write(tmp_path)
    paths = str(tmp_path / "*")
    ds = pickle.loads(pickle.dumps(TFRecordDataset(paths, FEATURES, index="memory")))

    def stream(**options):
        return TFRecordIterableDataset(paths, FEATURES, **options)

    identity = {"transform": lambda sample: sample}
    for loader in (
        DataLoader(ds, 5, shuffle=True),
        DataLoader(ds, 5, shuffle=True, collate_fn=collate),
        DataLoader(ds, 5, collate_fn=PaddedCollate()),
        DataLoader(TFRecordDataset(paths, FEATURES, index="memory", **identity), 5),
        DataLoader(ConcatDataset([ds[:4], ds[4:]]), 5, collate_fn=collate),
        DataLoader(stream(), 5),
        DataLoader(
            stream(shuffle=True, shuffle_buffer_size=4, cycle_length=2), 5, collate_fn=collate
        ),
        DataLoader(stream(**identity), 5),
        DataLoader(stream(batch_size=5), batch_size=None),
        DataLoader(stream(batch_size=5, shuffle_buffer_size=3, **identity), batch_size=None),
        ReadAheadLoader(ds, batch_size=5, num_threads=2),
        make_dataloader(paths, 5, FEATURES),
        make_dataloader(paths, 5, FEATURES, shuffle="blocks", num_threads=0),
    ):
        assert flat(loader) == known


@pytest.mark.daily
def test_workers_give_the_same(tmp_path):
    known = write(tmp_path)
    for context in ("fork", "forkserver"):
        loader = make_dataloader(
            str(tmp_path / "*"), 5, FEATURES, num_workers=2, multiprocessing_context=context
        )
        assert flat(loader) == known
    assert (
        flat(DataLoader(TFRecordIterableDataset(str(tmp_path / "*"), FEATURES), 5, num_workers=2))
        == known
    )


def test_mixtures_name_each_datasets_files(tmp_path):
    known = write(tmp_path)
    parts = [TFRecordDataset(tmp_path / name, FEATURES, index="memory") for name in "ab"]
    assert flat(DataLoader(Mixture(parts, [1, 1]), 4, collate_fn=collate)).items() <= known.items()


def test_damaged_records_before_it_count(tmp_path):
    known = write(tmp_path, names="a")
    content = bytearray((tmp_path / "a").read_bytes())
    content[known[2][2] + 13] ^= 1
    (tmp_path / "a").write_bytes(content)
    stream = TFRecordIterableDataset(tmp_path / "a", FEATURES, on_error="skip")
    with pytest.warns(UserWarning, match="1 "):
        found = flat(DataLoader(stream, 3))
    assert found == {label: place for label, place in known.items() if label != 2}


def test_alone_it_needs_no_example(core, tmp_path):
    (tmp_path / "a").write_bytes(framed(b"\xff\xff no protobuf", b"", b"abc"))
    want = {"path": [str(tmp_path / "a")] * 3, "position": [0, 1, 2], "offset": [0, 30, 46]}
    ds = TFRecordDataset(tmp_path / "a", {"s": Source()}, index="memory")
    stream = TFRecordIterableDataset(tmp_path / "a", {"s": Source()})
    for batch in (
        *DataLoader(ds, 3),
        *DataLoader(stream, 3, collate_fn=collate),
        collate([*map(ds.__getitem__, [0, 1, 2])]),
    ):
        found = {
            name: part if name == "path" else part.tolist() for name, part in batch["s"].items()
        }
        assert found == want


def test_context_of_sequence_examples(core, tmp_path):
    records = [
        encode_sequence_example({"id": number}, {"x": [[number]] * number}) for number in range(4)
    ]
    (tmp_path / "a").write_bytes(framed(*records))
    features = SequenceFeatures(
        {"position": Source("position"), "id": FixedLenFeature((), torch.int64)},
        {"x": VarLenFeature(torch.int64)},
    )
    ds = TFRecordDataset(tmp_path / "a", features, index="memory")
    context, steps = ds[2]
    assert ([*context], context["position"].item(), len(steps["x"])) == (["position", "id"], 2, 2)
    batches = [
        *DataLoader(ds, 2, collate_fn=collate),
        *DataLoader(TFRecordIterableDataset(tmp_path / "a", features), 2),
    ]
    for context, _ in batches:
        assert torch.equal(context["position"], context["id"])
    only = TFRecordDataset(
        tmp_path / "a", SequenceFeatures({"s": Source("offset")}), index="memory"
    )
    assert only[1][0]["s"].item() == len(framed(records[0]))
    with pytest.raises(
        ValueError, match=r"^Unsupported Source for key 's' of a feature list: expected one of"
    ):
        TFRecordDataset(tmp_path / "a", SequenceFeatures(None, {"s": Source()}), index="memory")


def test_images_are_still_cropped_before_decoding(tmp_path):
    """Beside a Source, too, each way in sees the crop of the image as it does without."""
    pictures = [
        torch.arange(3 * 40 * 50).reshape(3, 40, 50).mul(number + 3).to(torch.uint8)
        for number in range(6)
    ]
    records = [encode_example({"image": encode_image(each, "jpeg")}) for each in pictures]
    (tmp_path / "a").write_bytes(framed(*records))
    transform = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])
    found = []
    for features in ({"image": Image()}, {"image": Image(), "p": Source("position")}):
        ds = TFRecordDataset(tmp_path / "a", features, index="memory", transform=transform)
        stream = TFRecordIterableDataset(tmp_path / "a", features, transform=transform)
        torch.manual_seed(5)
        singles = [ds[number] for number in range(6)]
        batches = [*DataLoader(ds, 3), *DataLoader(stream, 3)]
        found.append([sample["image"] for sample in [*singles, *batches]])
        if "p" in features:
            assert [int(sample["p"]) for sample in singles] == [*range(6)]
            assert torch.cat([batch["p"] for batch in batches]).tolist() == [*range(6), *range(6)]
    assert all(map(torch.equal, *found))
    spec = {"image": Image(crop=RandomResizedCrop(8)), "p": Source("position")}
    ds = TFRecordDataset(tmp_path / "a", spec, index="memory")
    ds.set_epoch(1)
    assert torch.equal(next(iter(DataLoader(ds, 6)))["image"][4], ds[4]["image"])


def test_errors_of_other_features_stay(core, tmp_path):
    (tmp_path / "a").write_bytes(framed(encode_example({"t": "a"}), encode_example({"t": b"\xff"})))
    ds = TFRecordDataset(tmp_path / "a", {"t": Text(), "s": Source()}, index="memory")
    stream = TFRecordIterableDataset(tmp_path / "a", {"t": Text(), "s": Source()})
    for read in (lambda: ds[1], lambda: ds.__getitems__([0, 1]), lambda: [*stream]):
        with pytest.raises(
            Exception, match=r"a: record 1 at byte \d+: feature 't' \(Text\): expected UTF-8 text"
        ):
            read()


def test_bytes_have_no_source():
    record = encode_example({"label": 1})
    text = (
        "^Source for 's': the bytes of a record do not say which file they are from; "
        "expected it in the features of a"
    )
    for read in (
        lambda: parse_single_example(record, {"s": Source()}),
        lambda: parse_example(
            [record], {"s": Source("path"), "label": FixedLenFeature((), torch.int64)}
        ),
        lambda: parse_sequence_example([record], {"s": Source()}),
    ):
        with pytest.raises(ValueError, match=text):
            read()


def test_wrong_arguments():
    with pytest.raises(
        ValueError, match=r"^what must be None, 'path', 'position' or 'offset', got 'index'$"
    ):
        Source("index")
    with pytest.raises(
        ValueError, match=r"^key is not supported by Source: nothing is read from the record$"
    ):
        Source(key="x")
    assert repr(Source()) == "Source()"
    assert pickle.loads(pickle.dumps(Source("path"))) == Source("path")
