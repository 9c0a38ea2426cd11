"""The specs that a verb reads records with: the option ``--features``, and those of well-known data sets."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Sequence
from typing import Any

from torch_tfrecord import TFRecordDataset, infer_features
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.shown import shown_value

__all__ = ["RECIPES", "load_code", "load_features", "open_dataset"]


def load_features(source: str | None, paths: Sequence[str]) -> Any:
    """The features of an option, or those inferred from some records: see `load_code`."""
    return load_code(source, paths)["features"]


def load_code(source: str | None, paths: Sequence[str]) -> dict[str, Any]:
    """The names that an option's code assigns; `features` alone where there is no code.

    Args:
        source: A file of Python code, or None.
        paths: The files whose records are looked at.

    Raises:
        ValueError: The code fails, or does not assign features.
    """
    if source is None:
        return {"features": infer_features(list(paths))}
    try:
        code = runpy.run_path(source)
    except OSError:
        raise
    except Exception as error:  # whatever the code does
        raise ValueError(f"{source}: {type(error).__name__}: {error}") from error
    found = code.get("features")
    if not isinstance(found, RecordFeatures):
        raise ValueError(
            f"{source}: expected code that assigns `features`, a dict of specs, got {shown_value(found)}"
        )
    return code


def open_dataset(files: Sequence[str], features: Any = None, **options: Any) -> TFRecordDataset:
    """The dataset of some files, without its warnings: a verb prints what is damaged or missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TFRecordDataset(files, features, **options)


# Features of well-known data sets, as code.

_DETECTION = """\
# TensorFlow's Object Detection API and Open Images: tensorflow/models, research/object_detection,
# data_decoders/tf_example_decoder.py and dataset_tools/oid_tfrecord_creation.py
import torch
from torch_tfrecord import Image, VarLenFeature

features = {
    "image/encoded": Image(),
    "image/format": VarLenFeature(str),
    "image/filename": VarLenFeature(str),
    "image/source_id": VarLenFeature(str),
    "image/height": VarLenFeature(torch.int64),
    "image/width": VarLenFeature(torch.int64),
    "image/class/label": VarLenFeature(torch.int64),
    "image/class/text": VarLenFeature(str),
    "image/class/confidence": VarLenFeature(torch.float32),
    "image/object/bbox/xmin": VarLenFeature(torch.float32),
    "image/object/bbox/xmax": VarLenFeature(torch.float32),
    "image/object/bbox/ymin": VarLenFeature(torch.float32),
    "image/object/bbox/ymax": VarLenFeature(torch.float32),
    "image/object/class/label": VarLenFeature(torch.int64),
    "image/object/class/text": VarLenFeature(str),
    "image/object/area": VarLenFeature(torch.float32),
    "image/object/is_crowd": VarLenFeature(torch.int64),
    "image/object/difficult": VarLenFeature(torch.int64),
    "image/object/group_of": VarLenFeature(torch.int64),
    "image/object/occluded": VarLenFeature(torch.int64),
    "image/object/truncated": VarLenFeature(torch.int64),
    "image/object/depiction": VarLenFeature(torch.int64),
}"""

_WAYMO = """\
# waymo-research/waymo-open-dataset, src/waymo_open_dataset/utils/occupancy_flow_data.py; the road
# graph has 20,000 or 30,000 samples, by the version
import torch
from torch_tfrecord import FixedLenFeature, FixedLenSequenceFeature, Text

agent = {
    torch.float32: "bbox_yaw height length vel_yaw velocity_x velocity_y width x y z",
    torch.int64: "timestamp_micros valid",
}
light = {torch.float32: "x y z", torch.int64: "state valid"}
features = {
    "scenario/id": Text(),
    "roadgraph_samples/dir": FixedLenSequenceFeature((3,), torch.float32, allow_missing=True),
    "roadgraph_samples/id": FixedLenSequenceFeature((1,), torch.int64, allow_missing=True),
    "roadgraph_samples/type": FixedLenSequenceFeature((1,), torch.int64, allow_missing=True),
    "roadgraph_samples/valid": FixedLenSequenceFeature((1,), torch.int64, allow_missing=True),
    "roadgraph_samples/xyz": FixedLenSequenceFeature((3,), torch.float32, allow_missing=True),
    "state/id": FixedLenFeature((128,), torch.float32),
    "state/type": FixedLenFeature((128,), torch.float32),
    "state/is_sdc": FixedLenFeature((128,), torch.int64),
    "state/tracks_to_predict": FixedLenFeature((128,), torch.int64),
    **{
        f"state/{time}/{name}": FixedLenFeature((128, steps), dtype)
        for time, steps in (("past", 10), ("current", 1), ("future", 80))
        for dtype, names in agent.items()
        for name in names.split()
    },
    **{
        f"traffic_light_state/{time}/{name}": FixedLenFeature((steps, 16), dtype)
        for time, steps in (("past", 10), ("current", 1))
        for dtype, names in light.items()
        for name in names.split()
    },
}"""

RECIPES = {
    "bert-pretraining": """\
# google-research/bert, create_pretraining_data.py, where the lengths are options
import torch
from torch_tfrecord import FixedLenFeature, VarLenFeature

features = {
    "input_ids": VarLenFeature(torch.int64),
    "input_mask": VarLenFeature(torch.int64),
    "segment_ids": VarLenFeature(torch.int64),
    "masked_lm_positions": VarLenFeature(torch.int64),
    "masked_lm_ids": VarLenFeature(torch.int64),
    "masked_lm_weights": VarLenFeature(torch.float32),
    "next_sentence_labels": FixedLenFeature((), torch.int64),
}""",
    "imagenet": """\
# tensorflow/models, research/inception/inception/data/build_imagenet_data.py
import torch
from torch_tfrecord import FixedLenFeature, Image, Text, VarLenFeature

features = {
    "image/encoded": Image(),
    "image/height": FixedLenFeature((), torch.int64),
    "image/width": FixedLenFeature((), torch.int64),
    "image/colorspace": Text(),
    "image/channels": FixedLenFeature((), torch.int64),
    "image/format": Text(),
    "image/filename": Text(),
    "image/class/label": FixedLenFeature((), torch.int64),
    "image/class/synset": Text(),
    "image/class/text": Text(),
    "image/object/bbox/xmin": VarLenFeature(torch.float32),
    "image/object/bbox/xmax": VarLenFeature(torch.float32),
    "image/object/bbox/ymin": VarLenFeature(torch.float32),
    "image/object/bbox/ymax": VarLenFeature(torch.float32),
    "image/object/bbox/label": VarLenFeature(torch.int64),
}""",
    "mnist": """\
# tensorflow/tensorflow, tensorflow/examples/how_tos/reading_data/convert_to_records.py
import torch
from torch_tfrecord import FixedLenFeature, RawTensor

features = {
    "image_raw": RawTensor(("height", "width", "depth"), torch.uint8),
    "height": FixedLenFeature((), torch.int64),
    "width": FixedLenFeature((), torch.int64),
    "depth": FixedLenFeature((), torch.int64),
    "label": FixedLenFeature((), torch.int64),
}""",
    "object-detection": _DETECTION,
    "open-images": _DETECTION,
    "waymo-motion": _WAYMO,
    "youtube8m-frames": """\
# research.google.com/youtube8m/download.html; before 2018, id is named video_id
import torch
from torch_tfrecord import RawTensor, SequenceFeatures, Text, VarLenFeature

features = SequenceFeatures(
    context_features={
        "id": Text(),
        "labels": VarLenFeature(torch.int64),
    },
    sequence_features={
        "rgb": RawTensor((1024,), torch.uint8),
        "audio": RawTensor((128,), torch.uint8),
    },
)""",
    "youtube8m-videos": """\
# research.google.com/youtube8m/download.html; before 2018, id is named video_id
import torch
from torch_tfrecord import FixedLenFeature, Text, VarLenFeature

features = {
    "id": Text(),
    "labels": VarLenFeature(torch.int64),
    "mean_rgb": FixedLenFeature((1024,), torch.float32),
    "mean_audio": FixedLenFeature((128,), torch.float32),
}""",
}
"""Name -> code that assigns `features`, with where the names and shapes are from."""
