"""Under ``torch.set_default_device``, as scripts for a GPU call it, values and devices are as without.

"meta" is the one device besides "cpu" that each machine has: a tensor made there has no values.
"""

import ast
import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import jpeg
from torch.utils.data import default_collate
from torchvision.transforms import v2

import torch_tfrecord
from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    PaddedCollate,
    RaggedFeature,
    RandomResizedCrop,
    RawTensor,
    SparseFeature,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_sequence_example,
    make_dataloader,
    parse_sequence_example,
)

FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "nested_tensor",
    "ones", "scalar_tensor", "sparse_coo_tensor", "sparse_csr_tensor", "tensor", "zeros",
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for number in range(12):
            row = {
                "id": number,
                "image": jpeg(number),
                "counts": np.arange(number % 4),
                "raw": np.arange(3, dtype=np.float32).tobytes(),
                "at": np.arange(number % 3),
                "values": np.ones(number % 3, np.float32),
            }
            writer.write(row if number % 2 else {**row, "some": 0.5})
    return path


@pytest.fixture
def default_device():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def features(**image):
    return {
        "id": FixedLenFeature((), torch.int64),
        "some": FixedLenFeature((), torch.float32, default_value=-1.0),
        "image": Image(**image),
        "counts": VarLenFeature(torch.int64),
        "padded": FixedLenSequenceFeature((), torch.int64, allow_missing=True, key="counts"),
        "ragged": RaggedFeature(torch.int64, key="counts"),
        "raw": RawTensor((3,), torch.float32),
        "sparse": SparseFeature("at", "values", torch.float32, 3),
    }


def dense():
    return {name: feature for name, feature in features(**CROP).items() if name != "sparse"}


def plain(value):
    """The values, of tensors of all kinds on the host."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    assert value.device.type == "cpu"
    if value.is_sparse:
        value = value.to_dense()
    return [part.tolist() for part in value.unbind()] if value.is_nested else value.tolist()


CROP = {"crop": RandomResizedCrop(8, horizontal_flip=0.5)}
WAYS = {
    "samples": lambda file: list(TFRecordDataset(file, features())),
    "drawn samples": lambda file: list(
        TFRecordDataset(file, features(**CROP), transform=v2.Identity())
    ),
    "stream": lambda file: list(TFRecordIterableDataset(file, features(**CROP), batch_size=5)),
    "threads": lambda file: list(make_dataloader(file, 5, features(**CROP))),
    "padded": lambda file: list(make_dataloader(file, 5, dense(), collate_fn=PaddedCollate())),
    "worker": lambda file: list(make_dataloader(file, 5, features(**CROP), num_workers=1)),
    "samples collated": lambda file: collate(list(TFRecordDataset(file, features(**CROP)))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("way", WAYS)
def test_values_are_those_without_it(file, way, request):
    torch.manual_seed(1)
    expected = plain(WAYS[way](file))
    request.getfixturevalue("default_device")
    torch.manual_seed(1)
    assert plain(WAYS[way](file)) == expected


def test_sequences(default_device):
    record = encode_sequence_example({"a": 1}, {"b": [[1, 2], [3, 4]], "c": [[1]]})
    context, sequences, lengths = parse_sequence_example(
        [record, record],
        {"a": FixedLenFeature((), torch.int64)},
        {
            "b": FixedLenSequenceFeature((2,), torch.int64),
            "c": VarLenFeature(torch.int64),
        },
    )
    assert plain(context) == {"a": [1, 1]}
    assert plain(lengths) == {"b": [2, 2]}
    assert plain(sequences["b"]) == [[[1, 2], [3, 4]]] * 2
    assert sequences["c"].to_list() == [[[1]]] * 2


def test_a_transform_decides_its_own_device(file, default_device):
    dataset = TFRecordDataset(
        file, {"id": FixedLenFeature((), torch.int64)}, transform=lambda _: torch.ones(2)
    )
    assert dataset[0].device.type == "meta"
    assert default_collate([dataset[0], dataset[1]]).device.type == "meta"


def test_every_tensor_names_its_device():
    missing = []
    for path in Path(torch_tfrecord.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_torchs = ast.unparse(node.func).startswith("torch.")
            names = {keyword.arg for keyword in node.keywords}
            if is_torchs and node.func.attr in FACTORIES and "device" not in names:
                missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not missing


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])  # fmt: skip
@pytest.mark.parametrize("num_batches", [0, 1, 3])
def test_a_copy_of_a_loader_goes_on_from_its_state(file, copied, num_batches):
    loader = make_dataloader(file, 5, features(**CROP), seed=3)
    for _ in zip(range(num_batches), loader, strict=False):
        pass
    other = copied(loader)
    assert other.state_dict() == loader.state_dict()
    assert plain(list(other)) == plain(list(loader))
