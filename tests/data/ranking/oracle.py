"""What TF-Ranking reads from lists of Examples, and what TensorFlow makes of JSON: run it to write
this folder again.

In an environment with tensorflow-cpu, and tensorflow_ranking-0.5.5-py2.py3-none-any.whl unpacked in
a folder: `python oracle.py <that folder>`. The package itself does not run with today's TensorFlow,
but its `data.py` does.
"""

import base64
import importlib
import json
import sys
import types
from pathlib import Path

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

HERE = Path(__file__).parent


def ranking_data(folder):
    """`tensorflow_ranking.python.data`, without what it imports for estimators and Keras."""
    tf.estimator = types.SimpleNamespace()
    sys.modules["tensorflow.estimator"] = tf.estimator
    for name in ("tensorflow_ranking", "tensorflow_ranking.python"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(folder, *name.split(".")))]
    return importlib.import_module("tensorflow_ranking.python.data")


def list_message():
    """tensorflow_serving's ExampleListWithContext."""
    file = descriptor_pb2.FileDescriptorProto(
        name="input.proto", package="tensorflow.serving", syntax="proto3"
    )
    file.dependency.append("tensorflow/core/example/example.proto")
    message = file.message_type.add(name="ExampleListWithContext")
    message.field.add(name="examples", number=1, label=3, type=11, type_name=".tensorflow.Example")
    message.field.add(name="context", number=2, label=1, type=11, type_name=".tensorflow.Example")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName("tensorflow.serving.ExampleListWithContext")
    return message_factory.GetMessageClass(found)


def example(values):
    made = tf.train.Example()
    made.features.SetInParent()
    for name, value in values.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(value[0])]
        getattr(made.features.feature[name], kind).value.extend(value)
    return made


def copied(values):
    """With the values of "ids" under other names, too: TensorFlow reads a key with one kind of
    spec.
    """
    return values | dict.fromkeys(("rows", "padded"), values["ids"]) if "ids" in values else values


# (context, examples) of each record
RECORDS = [
    (
        {"query": [b"learning"], "length": [3]},
        [
            {"words": [b"tf"], "score": [0.5], "pair": [1.0, 2.0], "id": [7]},
            {"words": [b"learning", b"to", b"rank"], "score": [1.0], "ids": [4, 5]},
        ],
    ),
    ({"query": [b"gbdt"], "length": [2]}, [{"words": [b"gbdt"], "score": [0.25], "name": [b"a"]}]),
    ({"query": [b"none"]}, []),
    (
        {},
        [
            {},
            {"score": [2.0], "ids": [1]},
            {"words": [b"x"], "pair": [-1.0, -2.0]},
            {"id": [-5], "ids": [2, 3, 4]},
        ],
    ),
    (
        {"query": [b"full"], "length": [9]},
        [{"score": [n / 2], "id": [n], "name": [b"%d" % n], "ids": [n] * n} for n in range(1, 4)],
    ),
]

CONTEXT = {
    "query": tf.io.FixedLenFeature([], tf.string, ""),
    "length": tf.io.FixedLenFeature([1], tf.int64, [0]),
}
EXAMPLES = {
    "words": tf.io.VarLenFeature(tf.string),
    "ids": tf.io.VarLenFeature(tf.int64),
    "score": tf.io.FixedLenFeature([], tf.float32, -1.0),
    "pair": tf.io.FixedLenFeature([2], tf.float32, [0.0, 8.0]),
    "id": tf.io.FixedLenFeature([1], tf.int64, [-7]),
    "name": tf.io.FixedLenFeature([], tf.string, "?"),
    "rows": tf.io.RaggedFeature(tf.int64),
    "padded": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
}
REQUIRED = {"score": tf.io.FixedLenFeature([], tf.float32)}


def plain(value):
    """Nested lists, and the dtype."""
    if isinstance(value, tf.SparseTensor):
        shape = value.dense_shape.numpy().tolist()
        rows = [[[] for _ in range(shape[1])] for _ in range(shape[0])]
        for (row, column, _), item in zip(
            value.indices.numpy().tolist(), value.values.numpy().tolist(), strict=True
        ):
            rows[row][column].append(item)
        return {"dtype": value.dtype.name, "values": texts(rows)}
    if isinstance(value, tf.RaggedTensor):
        return {"dtype": value.dtype.name, "values": texts(value.to_list())}
    return {"dtype": value.dtype.name, "values": texts(value.numpy().tolist())}


def texts(value):
    if isinstance(value, list):
        return [texts(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def as_example(message):
    """The same record as an Example of Examples."""
    parts = {
        "serialized_context": [message.context.SerializeToString(deterministic=True)],
        "serialized_examples": [
            each.SerializeToString(deterministic=True) for each in message.examples
        ],
    }
    return example({name: part for name, part in parts.items() if part})


def lists(data):
    """What TF-Ranking reads, for both formats and several sizes."""
    message = list_message()
    made = [
        message(context=example(context), examples=map(example, map(copied, examples)))
        for context, examples in RECORDS
    ]
    del made[2].examples[:]
    made[3].ClearField("context")
    records = {"elwc": [each.SerializeToString(deterministic=True) for each in made]}
    records["eie"] = [as_example(each).SerializeToString(deterministic=True) for each in made]
    read = {"elwc": data.parse_from_example_list, "eie": data.parse_from_example_in_example}
    found = []
    for kind, serialized in records.items():
        with tf.io.TFRecordWriter(str(HERE / f"{kind}.tfrecord")) as writer:
            for record in serialized:
                writer.write(record)
        for rows in ([0, 1, 2, 3, 4], [1, 3], [0, 4], [4]):
            for size in (None, 1, 2, 3, 6):
                for examples in (EXAMPLES, REQUIRED):
                    found.append(
                        {
                            "format": kind,
                            "rows": rows,
                            "list_size": size,
                            "required": examples is REQUIRED,
                        }
                    )
                    options = {"size_feature_name": "size", "mask_feature_name": "mask"}
                    try:
                        values = read[kind](
                            [serialized[row] for row in rows], size, CONTEXT, examples, **options
                        )
                        found[-1]["values"] = {name: plain(value) for name, value in values.items()}
                    except tf.errors.InvalidArgumentError as error:
                        found[-1]["error"] = str(error).split("\n")[0]
    return found


def features(values):
    return json.dumps({"features": {"feature": values}})


def one_feature(**lists):
    return features({"a": lists})


TEXTS = {
    "ints": one_feature(int64List={"value": [1, -2, 3]}),
    "ints as text": one_feature(
        int64List={"value": ["1", "-9223372036854775808", "9223372036854775807"]}
    ),
    "snake names": one_feature(int64_list={"value": [1]}),
    "floats": one_feature(
        floatList={"value": [1.5, -0.0, 3e38, 1, "2.5", "NaN", "Infinity", "-Infinity"]}
    ),
    "float literal nan": '{"features":{"feature":{"a":{"floatList":{"value":[NaN]}}}}}',
    "float literal inf": '{"features":{"feature":{"a":{"floatList":{"value":[Infinity]}}}}}',
    "float too large": one_feature(floatList={"value": [1e39]}),
    "float lower nan": one_feature(floatList={"value": ["nan"]}),
    "int from float": one_feature(int64List={"value": [1.0]}),
    "int from float text": one_feature(int64List={"value": ["1.0"]}),
    "int exponent": '{"features":{"feature":{"a":{"int64List":{"value":[1e3]}}}}}',
    "int fraction": one_feature(int64List={"value": [1.5]}),
    "int too large": one_feature(int64List={"value": [9223372036854775808]}),
    "int from bool": one_feature(int64List={"value": [True]}),
    "int space text": one_feature(int64List={"value": [" 1"]}),
    "int empty text": one_feature(int64List={"value": [""]}),
    "bytes": one_feature(bytesList={"value": ["YWJj", ""]}),
    "bytes url": one_feature(bytesList={"value": ["_-8="]}),
    "bytes no padding": one_feature(bytesList={"value": ["YQ"]}),
    "bytes bad": one_feature(bytesList={"value": ["!!"]}),
    "bytes number": one_feature(bytesList={"value": [1]}),
    "bytes not ascii": one_feature(bytesList={"value": ["\u00e9"]}),
    "empty object": "{}",
    "empty text": "",
    "empty features": '{"features":{}}',
    "null features": '{"features":null}',
    "null feature": features({"a": None}),
    "kind not set": features({"a": {}}),
    "null list": one_feature(int64List=None),
    "null value": one_feature(int64List={"value": None}),
    "null item": one_feature(int64List={"value": [None]}),
    "empty list": one_feature(int64List={"value": []}),
    "value no list": one_feature(int64List={"value": 5}),
    "two kinds": one_feature(int64List={"value": [1]}, floatList={"value": [1]}),
    "unknown field": '{"features":{},"other":1}',
    "unknown in feature": one_feature(int32List={"value": [1]}),
    "twice": '{"features":{"feature":{"a":{"int64List":{"value":[1]}},"a":{"int64List":{"value":[2]}}}}}',
    "features twice": '{"features":{"feature":{"a":{"int64List":{"value":[1]}}}},'
    '"features":{"feature":{"b":{"int64List":{"value":[2]}}}}}',
    "unicode key": features({"\u00e9": {"int64List": {"value": [1]}}}),
    "empty key": features({"": {"int64List": {"value": [1]}}}),
    "comments": "/* x */ {}",
    "trailing comma": '{"features":{"feature":{"a":{"int64List":{"value":[1,]}}}}}',
    "trailing comma object": '{"features":{},}',
    "single quotes": "{'features':{}}",
    "bare names": "{features:{}}",
    "trailing text": "{} x",
    "two objects": "{}{}",
    "white space": ' \n\t{ "features" : { } }\r\n',
    "byte order mark": "\ufeff{}",
    "list": "[]",
    "null": "null",
    "number": "5",
    "text": '"x"',
    "cut": '{"features":{"feature":{"a"',
    "bad utf8": b'{"features":{"feature":{"\xff":{"int64List":{"value":[1]}}}}}',
    "control in text": '{"features":{"feature":{"a\nb":{"int64List":{"value":[1]}}}}}',
    "lone surrogate": '{"features":{"feature":{"\\ud800":{"int64List":{"value":[1]}}}}}',
    "leading zero": '{"features":{"feature":{"a":{"int64List":{"value":[01]}}}}}',
    "plus": '{"features":{"feature":{"a":{"int64List":{"value":[+1]}}}}}',
    "float subnormal": one_feature(floatList={"value": [1e-45, 1e-50, 0.1, 16777217]}),
    "features list": '{"features":[]}',
    "feature list": '{"features":{"feature":[]}}',
    "deep": '{"features":' + "[" * 200 + "]" * 200 + "}",
}


def json_examples():
    """What `tf.io.decode_json_example` makes of each text."""
    found = {}
    for name, text in TEXTS.items():
        data = text if isinstance(text, bytes) else text.encode()
        found[name] = {"json": base64.b64encode(data).decode()}
        try:
            made = tf.train.Example.FromString(tf.io.decode_json_example(tf.constant(data)).numpy())
            made = made.SerializeToString(deterministic=True)
            found[name]["example"] = base64.b64encode(made).decode()
        # of which the second is an error in TensorFlow's
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            found[name]["example"] = None
    return found


if __name__ == "__main__":
    (HERE / "lists.json").write_text(json.dumps(lists(ranking_data(sys.argv[1]))) + "\n")
    (HERE / "json_examples.json").write_text(json.dumps(json_examples(), indent=0) + "\n")
