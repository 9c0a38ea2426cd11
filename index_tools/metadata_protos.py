"""TensorFlow Metadata: what ``tfrecord stats --json`` prints as its protos, and these read back.

Source: schema.proto and statistics.proto of tensorflow-metadata 1.21.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0.schema_pb2 import Schema
from tensorflow_metadata.proto.v0.statistics_pb2 import DatasetFeatureStatisticsList

from torch_tfrecord.columns.dtypes import DType
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.image import Image
from torch_tfrecord.columns.lists import FixedLenFeature, VarLenFeature
from torch_tfrecord.errors import ParseError

__all__ = ["encode_schema", "encode_statistics", "read_schema", "read_statistics"]

# what is measured, and the fields that hold it
_FIELDS = re.findall(
    r"(\w+)=(\w+)",
    "records=num_non_missing missing=num_missing shortest=min_num_values longest=max_num_values zeros=num_zeros "
    "min=min median=median max=max mean=mean std=std_dev distinct=unique mean=avg_length mean=avg_num_bytes "
    "min=min_num_bytes max=max_num_bytes",
)
_DTYPES: dict[int, DType] = {1: bytes, 2: torch.int64, 3: torch.float32}
_DOMAINS = {"image": "image_domain", "text": "natural_language_domain"}
_TEXTS = ("domain", "natural_language_domain", "string_domain")
_FORMS = {"int64": "INT num", "float": "FLOAT num", "text": "STRING string", "bytes": "BYTES bytes"}


def _fields(stats: Any) -> Iterator[tuple[str, Any, str]]:
    """What is measured, and the message and field that hold it."""
    for key, field in _FIELDS:
        for message in (stats, stats.common_stats):
            if field in message.DESCRIPTOR.fields_by_name:
                yield key, message, field


def encode_statistics(facts: Mapping[str, Any], path: str) -> bytes:
    """What is measured as a DatasetFeatureStatisticsList, for a file of this name."""
    found = DatasetFeatureStatisticsList()
    dataset = found.datasets.add(num_examples=facts["records"])
    for row in facts["features"]:
        kind, form = _FORMS.get(row["kind"], _FORMS["bytes"]).split()
        one = dataset.features.add(path={"step": [row["feature"]]}, type=kind)
        stats = getattr(one, f"{form}_stats")
        for key, message, field in _fields(stats):
            if row.get(key) is not None:
                setattr(message, field, row[key])
        for value, number in row["top"] if form == "string" else ():
            stats.top_values.add(value=value, frequency=number)
    return _encode(found, path)


def read_statistics(path: str) -> dict[str, Any]:
    """Read the statistics of all data sets in a DatasetFeatureStatisticsList."""
    found = _read(DatasetFeatureStatisticsList(), path)
    rows = []
    for dataset in found.datasets:
        for one in dataset.features:
            stats = getattr(one, one.WhichOneof("stats") or "bytes_stats")
            row = {key: getattr(message, field) for key, message, field in _fields(stats)}
            top = [(each.value, each.frequency) for each in getattr(stats, "top_values", ())]
            name = ".".join(one.path.step) or one.name
            kind = dict(enumerate(_FORMS)).get(one.type, "struct")
            rows.append({"feature": name, "kind": kind, "top": top, **row})
    return {"records": sum(one.num_examples for one in found.datasets), "features": rows}


def encode_schema(facts: Mapping[str, Any], path: str) -> bytes:
    """The features as a Schema, for a file of this name: of a shape where each record has as many
    values.
    """
    found = Schema()
    for row in facts["features"]:
        one = found.feature.add(name=row["feature"], presence={"min_count": 1})
        one.type = {"int64": 2, "float": 3}.get(row["kind"], 1)
        least, most = row["shortest"], row["longest"]
        if least and least == most and not row["missing"]:
            one.presence.min_fraction = 1
            one.shape.SetInParent()
            if least > 1:
                one.shape.dim.add(size=least)
        else:
            one.value_count.min, one.value_count.max = least or 0, most or 0
        if row["kind"] in _DOMAINS:
            getattr(one, _DOMAINS[row["kind"]]).SetInParent()
    return _encode(found, path)


def read_schema(path: str) -> dict[str, Feature]:
    """Read the features of a Schema: of its shape if all records have it, else of any length."""
    features: dict[str, Feature] = {}
    for one in _read(Schema(), path).feature:
        if one.type not in _DTYPES:  # a struct, or of no type
            continue
        domain, shape = one.WhichOneof("domain_info"), tuple(dim.size for dim in one.shape.dim)
        dtype = _DTYPES[one.type] if domain not in _TEXTS else str
        is_fixed = one.HasField("shape") and one.presence.min_fraction == 1
        if is_fixed and domain == "image_domain":
            features[one.name] = Image()
        else:
            features[one.name] = FixedLenFeature(shape, dtype) if is_fixed else VarLenFeature(dtype)
    return features


def _encode(found: Any, path: str) -> bytes:
    is_text = path.endswith(".pbtxt")
    return text_format.MessageToString(found).encode() if is_text else found.SerializeToString()


def _read(found: Any, path: str) -> Any:
    content = Path(path).read_bytes()
    try:
        if path.endswith(".pbtxt"):
            return text_format.Parse(content, found)
        found.ParseFromString(content)
    except (text_format.ParseError, DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"expected a {found.DESCRIPTOR.name}", path=path) from error
    return found
