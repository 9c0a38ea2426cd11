"""Reduces features.json files to distinct structures, and reads random examples of each with TFDS.

Runs only where tensorflow-datasets is installed (4.9.10 with TensorFlow 2.21 made what is here); no
test imports it.

    python structures.py reduce FILE.jsonl ... > structures.json   of lines {"features": ..., "origin": ...}
    python structures.py values [SEED] < structures.json           adds random records, and what TFDS reads from them
"""

import base64
import io
import json
import random
import sys
import wave
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tfds"))

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import json_format
from oracle import picture, value

F = tfds.features
KEPT_NAMES = {"steps", "observation", "action", "image", "language_instruction"}
EXAMPLES = 2


def normal(features):
    """The JSON of TFDS 4.9.10 for the JSON of any generation."""
    if "pythonClassName" in features:
        message = json_format.ParseDict(features, tfds.core.features.feature.feature_pb2.Feature())
        return json_format.MessageToDict(F.FeatureConnector.from_proto(message).to_proto())
    return json_format.MessageToDict(F.FeatureConnector.from_json(features).to_proto())


def reduced(node):
    """A feature without names, sizes, class counts and descriptions; equal ones of a dict are left
    out.
    """
    content_key = next(key for key in node if isinstance(node[key], dict))
    content = dict(node[content_key])
    if content_key == "featuresDict":
        items = sorted(content.get("features", {}).items())
        kept = {name: reduced(item) for name, item in items if name in KEPT_NAMES}
        seen, others = {json.dumps(item) for item in kept.values()}, {}
        for item, ending in sorted(
            (
                (reduced(item), "/x" * ("/" in name))
                for name, item in items
                if name not in KEPT_NAMES
            ),
            key=json.dumps,
        ):
            if json.dumps(item) + ending not in seen:
                others[f"f{len(others)}{ending}"] = item
                seen.add(json.dumps(item) + ending)
        content = {"features": {**kept, **others}}
    elif content_key == "sequence":
        content = {**content, "feature": reduced(content["feature"])}
        content["length"] = "2" if int(content.get("length", -1)) > 0 else "-1"
    elif content_key == "translation":
        content["languages"] = ["de", "en"]
    sizes = content.get("shape", {}).get("dimensions", [])
    if content_key in ("image", "video"):
        content["shape"] = {
            "dimensions": [*("4" if int(size) > 0 else "-1" for size in sizes[:-1]), sizes[-1]]
        }
    elif sizes and content_key != "boundingBox":
        content["shape"] = {"dimensions": ["2" if int(size) > 1 else size for size in sizes]}
    for name in ("minimum", "maximum", "sampleRate", "useColormap", "label"):
        content.pop(name, None)
    if "numClasses" in content:
        content["numClasses"] = "3"
    return {"pythonClassName": node["pythonClassName"], content_key: content}


def reduce(files):
    """The distinct structures, each with the first origin and the number of features.json that have
    it.
    """
    found = {}
    for file in files:
        for line in Path(file).read_text().splitlines():
            row = json.loads(line)
            try:
                features = reduced(normal(row["features"]))
            except Exception as error:  # what TFDS itself cannot load
                print(f"{row['origin']}: {error!r}"[:300], file=sys.stderr)
                continue
            entry = found.setdefault(
                json.dumps(features, sort_keys=True), {"origin": row["origin"], "count": 0}
            )
            entry.update(features=features, count=entry["count"] + 1)
    return list(found.values())


def png(shape, number, dtype=np.uint8):
    """A file, so that TFDS stores it as it is: a JPEG that it writes, it would decode with the less
    exact transform.
    """
    height, width, channels = (size or 3 for size in shape)
    pixels = picture(number, height, width, channels, dtype)
    if dtype != np.uint8:
        return pixels
    return io.BytesIO(tf.io.encode_png(pixels).numpy())


def numbers(dtype, shape, draw):
    """An array of a dtype, or strings; unknown sizes are the same throughout an example, as TFDS
    stacks them.
    """
    sizes = [draw.unknown if size is None else size for size in shape]
    dtype = np.dtype(dtype)
    count = int(np.prod(sizes, dtype=np.int64))
    if dtype.kind == "O":
        items = [f"{draw.randrange(99)}ü".encode() for _ in range(count)]
        return np.array(items, object).reshape(sizes) if sizes else items[0]
    if dtype.kind == "f":
        return np.array([draw.uniform(-2, 2) for _ in range(count)]).astype(dtype).reshape(sizes)
    low = 0 if dtype.kind in "ub" else -100
    return np.array(
        [draw.randint(low, 1 if dtype.kind == "b" else 100) for _ in range(count)], dtype
    ).reshape(sizes)


def sound(feature, draw):
    """A WAV file."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams(
            (feature.shape[1] if len(feature.shape) > 1 else 1, 2, 8000, 0, "NONE", None)
        )
        file.writeframes(bytes(draw.randrange(256) for _ in range(8)))
    stream.seek(0)
    return stream


def example(feature, draw):
    """A random value of a feature."""
    kind = type(feature).__name__
    if kind in ("Image", "LabeledImage"):
        if feature.np_dtype == np.float32:
            return numbers(np.float32, [size or 4 for size in feature.shape], draw)
        return png(feature.shape, draw.randrange(9), feature.np_dtype)
    if kind == "Video":
        return [
            png(feature.shape[1:], draw.randrange(9))
            for _ in range(feature.shape[0] or 1 + draw.randrange(2))
        ]
    if kind == "Translation":
        return {name: f"{name} {draw.randrange(99)}" for name in feature.languages}
    if kind == "TranslationVariableLanguages":
        return {"en": ["one", "uno"][: 1 + draw.randrange(2)], "de": "eins ü"}
    if isinstance(feature, F.FeaturesDict):
        return {name: example(item, draw) for name, item in feature.items()}
    if isinstance(feature, F.Sequence):
        count = feature._length or draw.randrange(4)
        return [example(feature.feature, draw) for _ in range(count)]
    if kind == "Text":
        return f"grüße {draw.randrange(99)}"
    if kind == "ClassLabel":
        return draw.randrange(-1, feature.num_classes or 0)
    if kind == "BBoxFeature":
        low, high = sorted(draw.uniform(0, 1) for _ in range(2))
        return F.BBox(low, low, high, high)
    if kind == "Audio" and feature._lazy_decode:
        return sound(feature, draw)
    if getattr(feature, "_optional", False) and draw.random() < 0.3:
        return None
    return numbers(feature.np_dtype, feature.shape, draw)


def nested(found, given):
    """The values that TFDS returned as JSON; null where None was given, for which TFDS makes up a
    number.
    """
    if isinstance(found, tf.data.Dataset):
        return {"steps": [nested(step, own) for step, own in zip(found, given, strict=True)]}
    if isinstance(found, dict):
        own = given if isinstance(given, dict) else {}
        return {"dict": {name: nested(item, own.get(name, 0)) for name, item in found.items()}}
    return None if given is None else value(found)


def values(structures, seed):
    """Add the records of random examples to each structure, and what TFDS reads from them."""
    for number, row in enumerate(structures):
        features = row["features"]
        feature = F.FeatureConnector.from_proto(
            json_format.ParseDict(features, tfds.core.features.feature.feature_pb2.Feature())
        )
        records, expected = [], []
        try:
            for index in range(EXAMPLES):
                draw = random.Random(f"{seed} {number} {index}")
                draw.unknown = draw.randrange(3)
                given = example(feature, draw)
                record = feature.serialize_example(given)
                data = tf.data.Dataset.from_tensors(record).map(feature.deserialize_example)
                expected.append(nested(next(iter(data)), given))
                records.append(base64.b64encode(record).decode())
        except Exception as error:  # what TFDS cannot write or read itself
            yield {**row, "error": f"{type(error).__name__}: {error}"[:120]}
        else:
            yield {**row, "records": records, "expected": expected}


if __name__ == "__main__":
    if sys.argv[1] == "reduce":
        json.dump(reduce(sys.argv[2:]), sys.stdout)
    else:
        json.dump(
            list(values(json.load(sys.stdin), sys.argv[2] if len(sys.argv) > 2 else "")), sys.stdout
        )
