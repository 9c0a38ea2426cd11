"""TensorProto: values by numpy from protobuf's own message, or one of our errors."""

import math

import numpy as np
import torch
from google.protobuf.message import DecodeError
from tools import damage, outcome, same

from torch_tfrecord import (
    SerializedTensor,
    encode_example,
    parse_example,
    parse_tensor,
    serialize_tensor,
)
from torch_tfrecord.protobuf import parse_message

TensorProto = type(parse_message(b"", "TensorProto"))

COMPILED = False
_MOST_GROWTH = 1 << 16
_DTYPES = {
    1: "f4",
    2: "f8",
    3: "i4",
    4: "u1",
    5: "i2",
    6: "i1",
    9: "i8",
    10: "?",
    17: "u2",
    22: "u4",
    23: "u8",
}
_FIELDS = {
    1: "float_val",
    2: "double_val",
    9: "int64_val",
    10: "bool_val",
    22: "uint32_val",
    23: "uint64_val",
}
_SIZES = [0, 0, 1, 1, 2, 3, 5, 100, 4096, 2**31, 2**62, 2**63 - 1, -1, -(2**63)]


def seeds():
    numbers = [
        torch.arange(6, dtype=torch.int64).reshape(2, 3),
        torch.tensor(1.5),
        torch.tensor([True, False]),
    ]
    numbers += [
        torch.arange(4).to(dtype)
        for dtype in (torch.uint8, torch.bfloat16, torch.complex64, torch.float16)
    ]
    return [
        serialize_tensor(each)
        for each in [*numbers, [b"a", b"", b"bcd"], b"one", torch.zeros(0, 3)]
    ]


def mutate(rng, data):
    if rng.random() < 0.4:
        return damage(rng, data, 3)
    enum = rng.choice([*_DTYPES, *_DTYPES, 7, 8, 14, 18, 19, 24, 0, 11, 101, 20])
    proto = TensorProto(dtype=enum)
    sizes = [
        rng.choice(_SIZES if rng.random() < 0.3 else _SIZES[:7])
        for _ in range(rng.choice([0, 1, 1, 2, 3, 4]))
    ]
    for size in sizes if rng.random() < 0.98 else [1] * rng.choice([64, 65, 254, 255, 300]):
        proto.tensor_shape.dim.add(size=size)
    if rng.random() < 0.5:
        count = math.prod(sizes)
        proto.tensor_content = rng.randbytes(
            count * rng.choice([1, 2, 4, 8]) if 0 <= count < 99 else rng.randrange(40)
        )
    for name, limit in (
        ("int_val", 31),
        ("int64_val", 63),
        ("uint32_val", 32),
        ("half_val", 16),
        ("bool_val", 1),
    ):
        if rng.random() < 0.3:
            getattr(proto, name).extend(rng.getrandbits(limit) for _ in range(rng.randrange(5)))
    for name in ("float_val", "double_val", "scomplex_val", "dcomplex_val"):
        if rng.random() < 0.3:
            getattr(proto, name).extend(float(rng.getrandbits(20)) for _ in range(rng.randrange(5)))
    if rng.random() < 0.3:
        proto.string_val.extend(rng.randbytes(rng.randrange(4)) for _ in range(rng.randrange(4)))
    return (
        proto.SerializeToString()
        if rng.random() < 0.8
        else damage(rng, proto.SerializeToString(), 1)
    )


def check(data):
    found, error = outcome(parse_tensor, data, max_bytes=_MOST_GROWTH)
    if isinstance(found, torch.Tensor):
        assert found.numel() * found.itemsize <= len(data) + _MOST_GROWTH
    wanted = _expected(data)
    if wanted is False:
        assert error is not None
    elif wanted is not None and error is None:
        assert same(found.numpy(), wanted) and found.numpy().shape == wanted.shape
    if found is not None:  # as a feature, alone and in a batch
        record = encode_example({"x": data})
        assert same(_parse(record)["x"], found)
        batch, error = outcome(_parse, [record, record])
        assert error is None and all(
            same(each.clone() if isinstance(each, torch.Tensor) else each, found)
            for each in batch["x"]
        )


def _parse(records):
    return parse_example(records, {"x": SerializedTensor()})


def _expected(data):
    """The array; False where an error is right, None where this does not know."""
    try:
        proto = TensorProto.FromString(data)
    except DecodeError:
        return False
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if min(shape, default=0) < 0 or len(shape) > 254:
        return False
    if proto.dtype not in _DTYPES or len(shape) > 30:
        return None
    dtype, count = np.dtype(_DTYPES[proto.dtype]), math.prod(shape)
    if not count and max(shape) > 2**20:
        return None
    if count * dtype.itemsize > len(data) + _MOST_GROWTH:
        return False
    if proto.tensor_content and count:
        if len(proto.tensor_content) != count * dtype.itemsize:
            return False
        array = np.frombuffer(proto.tensor_content, dtype)
        return (array.view("u1") != 0 if proto.dtype == 10 else array).reshape(shape)
    values = list(getattr(proto, _FIELDS.get(proto.dtype, "int_val")))[:count]
    values += [values[-1] if values else 0] * (count - len(values))
    kind = "i8" if proto.dtype not in _FIELDS else dtype
    return np.array(values, kind).astype(dtype).reshape(shape)
