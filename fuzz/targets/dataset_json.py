"""features.json and dataset_info.json: read, shown, written and read again the same, or ParseError.

The first byte of an input chooses the file, the rest is its text.
"""

import json
import os
from pathlib import Path

from tools import FOLDER, damage, damage_json, outcome

from torch_tfrecord import tfds
from torch_tfrecord.tfds.features_json import features_from_json, features_to_json

COMPILED = False
f = tfds.features
_FOLDER = Path(FOLDER) / "named" / "1.0.0"
_FILES = {b"f": "features.json", b"i": "dataset_info.json"}


def _write():
    features = {
        "label": f.ClassLabel(names=("a", "b")),
        "image": f.Image((None, None, 3)),
        "text": f.Text(),
        "steps": f.Dataset(
            {"x": f.Tensor((2, None), "float32"), "y": f.Sequence(f.Scalar("int64"), length=2)}
        ),
        "box": f.BBoxFeature(),
        "sound": f.Audio(),
    }
    tfds.write(
        _FOLDER,
        {"train": [{"n": 1}] * 3, "test": [{"n": 2}]},
        {"n": f.Scalar("int64")},
        name="named",
    )
    (_FOLDER / "features.json").write_text(json.dumps(features_to_json(f.FeaturesDict(features))))
    return {kind: (_FOLDER / name).read_bytes() for kind, name in _FILES.items()}


_TRUE = _write()


def seeds():
    return [kind + content for kind, content in _TRUE.items()]


def mutate(rng, data):
    try:
        text = json.dumps(damage_json(rng, json.loads(data[1:])))
    # nested by an earlier mutation deeper than Python's json goes
    except (ValueError, RecursionError):
        text = _TRUE[b"f"].decode()
    if rng.random() < 0.05:
        text = text.replace("{", '{"feature": {' * rng.choice([2, 90, 400, 3000]), 1)
    if rng.random() < 0.05:
        text = text.replace("2", "9" * rng.choice([20, 400, 5000]), 1)
    content = text.encode("utf-8", "surrogatepass")
    return data[:1] + (damage(rng, content, 2) if rng.random() < 0.2 else content)


def check(data):
    kind, content = data[:1], data[1:]
    if kind not in _FILES:
        return
    path = _FOLDER / _FILES[kind]
    path.write_bytes(content)
    try:
        info, _ = outcome(tfds.info, _FOLDER)
    finally:
        path.write_bytes(_TRUE[kind])
    if info is None:
        return
    assert len(str(info)) < 100_000
    for split in info.splits:
        files, _ = outcome(info.files, split)
        for file in files or ():
            assert os.path.commonpath([os.path.normpath(file), _FOLDER]) == str(_FOLDER), file
    written, error = outcome(features_to_json, info.features, errors=ValueError)
    assert error is None or "UnknownFeature" in str(error)
    if written is not None:
        again = features_from_json(json.loads(json.dumps(written)), "again")
        assert features_to_json(again) == written
