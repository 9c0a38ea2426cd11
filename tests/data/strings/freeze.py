"""What TensorFlow makes of features with one or several byte strings: `python freeze.py` writes
cases.json.gz.

Run it with TensorFlow (2.21). Each case has a serialized Example, the code of our spec, and
TensorFlow's tensor (dtype, shape, and its bytes as hex), or its error.
"""

import base64
import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf

CASES = []


def add(name, spec, record, decode):
    feature = {
        key: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        if value and isinstance(value[0], int)
        else tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        for key, value in record.items()
    }
    serialized = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(
        deterministic=True
    )
    sizes = {
        key: tf.io.VarLenFeature(tf.int64)
        for key, value in record.items()
        if value and isinstance(value[0], int)
    }
    strings = {key: tf.io.VarLenFeature(tf.string) for key in record if key not in sizes}
    parsed = tf.io.parse_single_example(serialized, sizes | strings)
    values = {key: tf.sparse.to_dense(value) for key, value in parsed.items()}
    case = {"name": name, "spec": spec, "record": base64.b64encode(serialized).decode()}
    try:
        found = decode(values)
        array = found.numpy()
        bits = array.view(np.uint16) if found.dtype == tf.bfloat16 else array
        case |= {
            "dtype": found.dtype.name,
            "shape": list(array.shape),
            "values": bits.tobytes().hex(),
        }
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        case["error"] = str(error.message)
    CASES.append(case)


def raw(dtype, shape=None, **options):
    def decode(values):
        found = tf.io.decode_raw(values["x"], dtype, **options)
        return (
            found
            if shape is None
            else tf.reshape(found, shape(values) if callable(shape) else shape)
        )

    return decode


random = np.random.default_rng(17)
DTYPES = [
    "half",
    "float32",
    "float64",
    "int32",
    "uint16",
    "uint8",
    "int16",
    "int8",
    "int64",
    "complex64",
    "complex128",
]
for name in [*DTYPES, "bfloat16", "bool"]:
    dtype, ours = getattr(tf, name), f"torch.{'float16' if name == 'half' else name}"
    data = random.integers(0, 2 if name == "bool" else 120, (3, 48), np.uint8)
    strings = [row.tobytes() for row in data]
    for little in (True, False):
        order = "" if little else ", little_endian=False"
        each = 48 // dtype.size
        add(f"vector {name}{order}", f"RawTensor((3, {each}), {ours}{order})", {"x": strings},
            raw(dtype, little_endian=little))  # fmt: skip
        add(f"any number {name}{order}", f"RawTensor((-1, {each}), {ours}{order})", {"x": strings[:2]},
            raw(dtype, little_endian=little))  # fmt: skip
        add(f"one string {name}{order}", f"RawTensor((-1,), {ours}{order})", {"x": strings[:1]},
            raw(dtype, [-1], little_endian=little))  # fmt: skip
        if name not in ("complex64", "complex128", "bool", "half"):  # TensorFlow has no kernel
            cut = [strings[0][:21], strings[1], b"", strings[2][:1]]
            for length in (16, 48, 64):
                options = f"{order}, fixed_length={length}"
                add(f"fixed length {name}{options}", f"RawTensor((4, {length // dtype.size}), {ours}{options})",
                    {"x": cut}, raw(dtype, little_endian=little, fixed_length=length))  # fmt: skip

array = random.integers(-9, 9, (2, 3, 4)).astype("<i2")
rows = [row.tobytes() for row in array]
whole = lambda values: values["image/shape"]  # noqa: E731
add("whole shape", "RawTensor('image/shape', torch.int16)", {"x": [array.tobytes()], "image/shape": [2, 3, 4]},
    raw(tf.int16, whole))  # fmt: skip
add("whole shape of rows", "RawTensor('image/shape', torch.int16)", {"x": rows, "image/shape": [2, 3, 4]},
    raw(tf.int16, whole))  # fmt: skip
add("whole shape of one size", "RawTensor('image/shape', torch.int16)", {"x": [array.tobytes()], "image/shape": [24]},
    raw(tf.int16, whole))  # fmt: skip
add("whole shape that does not fit", "RawTensor('image/shape', torch.int16)",
    {"x": [array.tobytes()], "image/shape": [2, 3, 5]}, raw(tf.int16, whole))  # fmt: skip
add("names", "RawTensor(('n', 'h', 4), torch.int16)", {"x": rows, "n": [2], "h": [3]},
    raw(tf.int16, lambda values: tf.concat([values["n"], values["h"], [4]], 0)))  # fmt: skip
add(
    "no strings",
    "RawTensor((-1, 2), torch.int16, fixed_length=4)",
    {"x": []},
    raw(tf.int16, fixed_length=4),
)
add("empty strings", "RawTensor((2, -1), torch.int16)", {"x": [b"", b""]}, raw(tf.int16))
add(
    "unequal lengths",
    "RawTensor((2, -1), torch.int16)",
    {"x": [rows[0], rows[1][:-2]]},
    raw(tf.int16),
)
add(
    "no whole element",
    "RawTensor((2, -1), torch.int16)",
    {"x": [rows[0][:-1], rows[1][:-1]]},
    raw(tf.int16),
)


def gzipped(data):
    return gzip.compress(data, mtime=0)


for kind, pack in (("zlib", zlib.compress), ("gzip", gzipped)):

    def unpacked(values, kind=kind):
        return tf.io.decode_raw(tf.io.decode_compressed(values["x"], kind.upper()), tf.int16)

    packed = [*map(pack, rows)]
    for name, shape, strings in [
        ("vector", (2, 12), packed),
        ("vector of any number", (-1, 12), packed),
        ("vector of any length", (2, -1), packed),
        ("another stream behind it", (1, 24), [packed[0] + packed[1]]),
        ("other bytes behind it", (1, 12), [packed[0] + b"abc"]),
        ("cut", (1, -1), [packed[0][:-3]]),
        (
            "changed checksum",
            (1, 12),
            [packed[0][:-5] + bytes([packed[0][-5] ^ 1]) + packed[0][-4:]],
        ),
        ("not compressed", (1, 12), [rows[0]]),
        ("nothing", (1, 0), [b""]),
    ]:
        add(
            f"{kind} {name}",
            f"RawTensor({shape}, torch.int16, compression={kind!r})",
            {"x": strings},
            unpacked,
        )


def pictures(channels):
    def decode(values):
        return tf.map_fn(lambda data: tf.io.decode_png(data, channels), values["x"], tf.uint8)

    return decode


for channels, mode in ((1, "L"), (3, "RGB"), (4, "RGBA")):
    pngs = [
        tf.io.encode_png(random.integers(0, 256, (5, 4, channels), np.uint8)).numpy()
        for _ in range(3)
    ]
    for number in (1, 3):
        add(
            f"{number} {mode} pictures",
            f"Image({mode!r}, several='stack')",
            {"x": pngs[:number]},
            pictures(channels),
        )

Path(__file__).with_name("cases.json.gz").write_bytes(
    gzip.compress(json.dumps(CASES, indent=0).encode(), mtime=0)
)
