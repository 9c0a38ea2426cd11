"""Specs: what they accept, how they print, that they travel.

Covers columns/feature, media/image, columns/dtypes.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import dataclasses
import inspect
import multiprocessing
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torch_tfrecord import (
    Audio,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    Json,
    ListFeatures,
    NestedExample,
    Proto,
    RaggedFeature,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    Source,
    SparseFeature,
    Text,
    VarLenFeature,
    Video,
    encode_example,
    parse_example,
    parse_sequence_example,
    parse_single_example,
)
from torch_tfrecord.columns import Feature

I64 = torch.int64
SPECS = {
    "Audio()": Audio(),
    "Audio(key='a', sample_rate=16000, num_channels=1, num_samples=400, random_start=True, seed=3, return_rate=True)": Audio(sample_rate=16000, num_channels=1, num_samples=400, random_start=True, seed=3, return_rate=True, key="a"),
    "FixedLenFeature((), torch.int64)": FixedLenFeature((), I64),
    "FixedLenFeature((2,), bytes)": FixedLenFeature(2, bytes),
    "FixedLenFeature((2, 3), str, key='x/y')": FixedLenFeature([2, 3], str, key="x/y"),
    "FixedLenFeature((), torch.float32, default_value=-1.0)": FixedLenFeature((), torch.float32, -1),
    "FixedLenFeature((2, 2), torch.uint8, default_value=(1, 2, 3, 4))": FixedLenFeature((2, 2), torch.uint8, [[1, 2], [3, 4]]),
    "VarLenFeature(torch.bfloat16)": VarLenFeature(torch.bfloat16),
    "VarLenFeature(str, key='')": VarLenFeature(str, key=""),
    "Image()": Image(),
    "Image(mode='L', key='i', shape=('h', None, 1))": Image("L", key="i", shape=["h", None, 1]),
    "RawTensor(('h', -1, 3), torch.complex64)": RawTensor(("h", -1, 3), torch.complex64),
    "RawTensor('n', torch.uint8)": RawTensor("n", torch.uint8),
    "RawTensor((2,), torch.int16, little_endian=False, compression='zlib', fixed_length=4)": RawTensor(2, torch.int16, little_endian=False, compression="zlib", fixed_length=4),
    "SerializedTensor(key='t')": SerializedTensor(key="t"),
    "Text()": Text(),
    "FixedLenSequenceFeature((2,), torch.int64)": FixedLenSequenceFeature(2, I64),
    "FixedLenSequenceFeature((), str, allow_missing=True, default_value='-', key='k')": FixedLenSequenceFeature((), str, True, "-", key="k"),
    "RaggedFeature(torch.int64)": RaggedFeature(I64, row_splits_dtype=I64),
    "RaggedFeature(bytes, value_key='v', partitions=(RaggedFeature.RowSplits('a'), RaggedFeature.UniformRowLength(2)), validate=False)": RaggedFeature(bytes, "v", [RaggedFeature.RowSplits("a"), RaggedFeature.UniformRowLength(2)], validate=False),
    "RaggedFeature(torch.int64, partitions=(RaggedFeature.RowLengths('a'), RaggedFeature.RowStarts('b'), RaggedFeature.RowLimits('c'), RaggedFeature.ValueRowIds('d')))": RaggedFeature(I64, None, (RaggedFeature.RowLengths("a"), RaggedFeature.RowStarts("b"), RaggedFeature.RowLimits("c"), RaggedFeature.ValueRowIds("d"))),
    "SparseFeature(('i',), 'v', torch.float32, (9,))": SparseFeature("i", "v", torch.float32, 9),
    "SparseFeature(('i', 'j'), 'v', str, (9, 3), already_sorted=True, validate=False)": SparseFeature(["i", "j"], "v", str, [9, 3], True, validate=False),
    "Video()": Video(),
    "Video(num_frames=8, step=2, random_start=True, return_times=True)": Video(num_frames=8, step=2, random_start=True, return_times=True),
    "Video(frames=(0, -1))": Video(frames=[0, np.int64(-1)]),
    "Video(frames=slice(None, None, 2))": Video(frames=slice(None, None, 2)),
}  # fmt: skip


@pytest.mark.parametrize("code", SPECS)
def test_a_spec_prints_as_the_code_that_builds_it(code):
    spec = SPECS[code]
    assert repr(spec) == code
    again = eval(code, globals())
    assert again == spec
    assert hash(again) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_specs_differ_by_value():
    assert len(set(SPECS.values())) == len(SPECS)
    assert FixedLenFeature((), I64) != FixedLenFeature((), I64, key="a")
    assert VarLenFeature(bytes) != VarLenFeature(str)
    with pytest.raises(AttributeError):
        Text().key = "x"


@pytest.mark.daily
def test_specs_arrive_in_a_process_that_knows_nothing_of_this_one():
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(repr, list(SPECS.values())) == list(SPECS)


def test_positional_order_is_tensorflows():
    def positional(cls):
        parameters = inspect.signature(cls).parameters.values()
        assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY][:1] == ["key"]
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert positional(FixedLenFeature) == ["shape", "dtype", "default_value"]
    assert positional(FixedLenSequenceFeature) == [
        "shape",
        "dtype",
        "allow_missing",
        "default_value",
    ]
    assert positional(RaggedFeature) == [
        "dtype",
        "value_key",
        "partitions",
        "row_splits_dtype",
        "validate",
    ]
    assert positional(SparseFeature) == [
        "index_key",
        "value_key",
        "dtype",
        "size",
        "already_sorted",
    ]
    assert positional(VarLenFeature) == ["dtype"]
    assert positional(RawTensor) == ["shape", "dtype"]
    assert positional(Image) == ["mode"]
    assert positional(SerializedTensor) == positional(Text) == positional(Feature) == []


@pytest.mark.parametrize(
    ("default", "dtype", "kept"),
    [
        (1, torch.float16, (1.0,)),
        ([1], I64, (1,)),
        (np.int32(5), I64, (5,)),
        (np.array([[7]]), I64, (7,)),
        (torch.tensor(2.5), torch.float32, (2.5,)),
        (True, torch.bool, (True,)),
        (0, torch.bool, (False,)),
        ("é", bytes, ("é".encode(),)),
        (b"x", str, ("x",)),
        (float("inf"), torch.float32, (float("inf"),)),
        (2**64 - 1, torch.uint64, (2**64 - 1,)),
    ],
)
def test_defaults(default, dtype, kept):
    spec = FixedLenFeature((1,), dtype, default)
    assert spec.default_value == kept
    assert FixedLenFeature((), dtype, default).default_value == kept[0]
    assert type(spec.default_value[0]) is type(kept[0])


@pytest.mark.parametrize(
    ("build", "kind", "text"),
    [
        (lambda: FixedLenFeature(None, I64), ValueError, "Missing shape: pass a tuple, () for a scalar"),
        (lambda: FixedLenFeature((None,), I64), ValueError, "a dimension of shape (None,) is unknown. Consider using FixedLenSequenceFeature."),
        (lambda: FixedLenFeature((-1,), I64), ValueError, "Dimension -1 must be >= 0"),
        (lambda: FixedLenFeature(("h",), I64), TypeError, "shape must be a tuple of ints, got ('h',)"),
        (lambda: FixedLenFeature((1.5,), I64), TypeError, "a dimension must be an int, got float"),
        (lambda: FixedLenFeature((True,), I64), TypeError, "a dimension must be an int, got bool"),
        (lambda: FixedLenFeature((2**33, 2**33), I64), ValueError, "shape (8589934592, 8589934592) has more elements than an int64 counts"),
        (lambda: FixedLenFeature((), None), ValueError, "Missing type: dtype must be a torch dtype, bytes or str"),
        (lambda: FixedLenFeature((), int), TypeError, "dtype must be a torch dtype, bytes or str, got <class 'int'>"),
        (lambda: VarLenFeature("int64"), TypeError, "dtype must be a torch dtype, bytes or str, got 'int64'"),
        (lambda: VarLenFeature(torch.complex64), TypeError, "dtype must be bool, an integer, a float, bytes or str, got complex64"),
        (lambda: VarLenFeature(None), ValueError, "Missing type: dtype must be a torch dtype, bytes or str"),
        (lambda: FixedLenFeature((2,), I64, 5), ValueError, "Cannot reshape a default_value with 1 elements to shape [2] (2 elements); a scalar is not broadcast"),
        (lambda: FixedLenFeature((3,), I64, [1, 2]), ValueError, "Cannot reshape a default_value with 2 elements to shape [3] (3 elements); a scalar is not broadcast"),
        (lambda: FixedLenFeature((), I64, []), ValueError, "Cannot reshape a default_value with 0 elements to shape [] (1 elements); a scalar is not broadcast"),
        (lambda: FixedLenFeature((), I64, "x"), TypeError, "Cannot convert default_value 'x' to dtype int64"),
        (lambda: FixedLenFeature((), I64, 1.5), TypeError, "Cannot convert default_value 1.5 to dtype int64"),
        (lambda: FixedLenFeature((), I64, True), TypeError, "Cannot convert default_value True to dtype int64"),
        (lambda: FixedLenFeature((), bytes, 1), TypeError, "Cannot convert default_value 1 to dtype bytes"),
        (lambda: FixedLenFeature((), torch.uint8, 256), ValueError, "default_value 256 is outside the range of uint8, 0 to 255"),
        (lambda: FixedLenFeature((), torch.bool, 2), ValueError, "default_value 2 is outside the range of bool, 0 to 1"),
        (lambda: FixedLenFeature((), torch.float16, 1e6), ValueError, "default_value 1000000.0 is outside the range of float16, -65504.0 to 65504.0"),
        (lambda: Image("BGR"), ValueError, "mode must be one of 'RGB', 'L', 'RGBA', 'unchanged', got 'BGR': did you mean key='BGR'?"),
        (lambda: Image(shape=(1, 2)), ValueError, "shape must be (height, width, channels), got (1, 2)"),
        (lambda: Image(shape=(-1, 2, 3)), ValueError, "Dimension -1 must be >= 0; an entry of shape is an int, None or the key of a feature"),
        (lambda: RawTensor(None, torch.uint8), ValueError, "Missing shape: pass a tuple; -1 means one unknown dimension"),
        (lambda: RawTensor((None,), torch.uint8), ValueError, "an entry of shape must be an int, -1 or the key of a feature, got (None,)"),
        (lambda: RawTensor((-1, -1), torch.uint8), ValueError, "shape must have at most one -1, got (-1, -1)"),
        (lambda: RawTensor((-2,), torch.uint8), ValueError, "Dimension -2 must be >= 0; an entry of shape is an int, -1 or the key of a feature"),
        (lambda: RawTensor((2,), bytes), TypeError, "dtype must be a torch dtype with whole bytes per element, got bytes"),
        (lambda: RawTensor((2,), None), ValueError, "Missing type: dtype must be a torch dtype, bytes or str"),
        (lambda: Text(key=5), TypeError, "key must be str or None, got int"),
        (lambda: Audio(sample_rate=0), ValueError, "sample_rate must be an integer of at least 1, got 0"),
        (lambda: Audio(num_channels="2"), TypeError, "num_channels must be an integer of at least 1, got '2' (str)"),
        (lambda: Audio(num_samples=-1), ValueError, "num_samples must be an integer of at least 1, got -1"),
        (lambda: Audio(return_rate=1), TypeError, "return_rate must be True or False, got 1"),
        (lambda: Audio(num_samples=2, seed=0.5), TypeError, "seed must be an integer, got 0.5 (float)"),
        (lambda: Audio(random_start=True), ValueError, "random_start needs num_samples: how long the window is that is drawn"),
        (lambda: Video(num_frames=0), ValueError, "num_frames must be an integer of at least 1, got 0"),
        (lambda: Video(num_frames=2, step=0), ValueError, "step must be an integer of at least 1, got 0"),
        (lambda: Video(frames=[0.5]), TypeError, "frames must be a slice or integers, got 0.5 (float)"),
        (lambda: Video(frames=3), TypeError, "frames must be a slice or the numbers of frames, got 3"),
        (lambda: Video(frames=[]), ValueError, "frames must be a slice or at least one number, got none"),
        (lambda: Video(frames=[0], num_frames=1), ValueError, "frames and num_frames must not both be given: each says which frames to take"),
        (lambda: Video(step=2), ValueError, "step needs num_frames; for every second frame of a whole video: frames=slice(None, None, 2)"),
        (lambda: Video(num_frames=2, random_start=True), ValueError, "random_start needs num_frames and step: frames spread over the whole video have no start"),
        (lambda: Video(num_frames=2, step=1, random_start="yes"), TypeError, "random_start must be True or False, got 'yes'"),
        (lambda: Video(return_times=None), TypeError, "return_times must be True or False, got None"),
    ],
)  # fmt: skip
def test_wrong_specs(build, kind, text):
    with pytest.raises(kind) as caught:
        build()
    assert str(caught.value) == text


ANYWHERE = "Image, Json, {}Proto, RaggedFeature, RawTensor, SerializedTensor"
PLACES = {
    "reader": (parse_example, f"an Example: expected one of Audio, FixedLenFeature, FixedLenSequenceFeature, {ANYWHERE.format('NestedExample, ')}, Source, SparseFeature, Text, VarLenFeature, Video"),
    "context": (parse_sequence_example, f"a context: expected one of Audio, FixedLenFeature, {ANYWHERE.format('NestedExample, ')}, Source, Text, VarLenFeature, Video"),
    "steps": (lambda rows, steps: parse_sequence_example(rows, None, steps), f"a feature list: expected one of Audio, FixedLenSequenceFeature, {ANYWHERE.format('')}, Text, VarLenFeature, Video"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_what_may_stand_where(place):
    make, text = PLACES[place]
    with pytest.raises(TypeError) as caught:
        make([b""], {"x": 5})
    assert str(caught.value) == (
        f"Unsupported int for key 'x' of {text}; for one integer in each record: FixedLenFeature((), torch.int64)"
    )


class Doubled(Feature):
    """A spec of somebody's own: it makes its reader, and no table knows it."""

    def _reader(self, name, *, pads=False):
        reader = FixedLenFeature((), I64, key=self.key)._reader(name)
        return SimpleNamespace(wants=reader.wants, read=lambda columns: reader.read(columns) * 2)


def test_a_spec_makes_its_own_reader():
    records = [encode_example({"a": number}) for number in (3, 4)]
    assert parse_example(records, {"x": Doubled(key="a"), "a": FixedLenFeature((), I64)})[
        "x"
    ].tolist() == [6, 8]
    assert parse_single_example(records[1], {"a": Doubled()})["a"].tolist() == 8
    with pytest.raises(
        ValueError,
        match=r"^Unsupported Doubled for key 'x' of a context: expected one of Audio, Fixed",
    ):
        parse_sequence_example([b""], {"x": Doubled()})


EVERY_SPEC = [
    *(FixedLenFeature, FixedLenSequenceFeature, VarLenFeature, RaggedFeature, SparseFeature),
    *(Image, Audio, Video, RawTensor, SerializedTensor, Text, Json, Proto, NestedExample, Source),
    *(SequenceFeatures, ListFeatures),
]
# The nested classes of tf.io.RaggedFeature; a default that a spec of one value always has.
OTHERS = {
    *("RowLengths", "RowLimits", "RowSplits", "RowStarts", "UniformRowLength", "ValueRowIds"),
    "default_value",
}


@pytest.mark.parametrize("spec", EVERY_SPEC)
def test_a_spec_shows_its_arguments_and_nothing_else(spec):
    names = {*inspect.signature(spec).parameters}
    assert {name for name in dir(spec) if name[0] != "_"} <= names | OTHERS
    assert {field.name for field in dataclasses.fields(spec)} == names
    assert not any(name.startswith("_") for name in names)
