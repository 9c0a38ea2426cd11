"""Encode samples as records with a feature tree: the inverse of `leaves`, in the form that TFDS
writes.

Source: ``encode_example`` of each class of ``tensorflow_datasets.core.features``, and
``core/example_serializer.py`` of TFDS 4.9.10.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

import torch_tfrecord.tfds.features as f
from torch_tfrecord.columns import RaggedTensor, rows_of
from torch_tfrecord.errors import ParseError, locate_value
from torch_tfrecord.media import encode_image
from torch_tfrecord.protobuf import RowEncoder
from torch_tfrecord.tfds.features import fits, innermost
from torch_tfrecord.tfds.parser import Decoding, LeafPlace, leaves_of

__all__ = ["SampleEncoder"]

_Array: TypeAlias = npt.NDArray[np.generic]
_Floats: TypeAlias = npt.NDArray[np.float64]
_Values: TypeAlias = "_Array | list[bytes]"


class SampleEncoder:
    """Encodes samples as records.

    Args:
        features: The feature tree.
        as_numpy_layout: Image arrays are [H, W, C] and video arrays [T, H, W, C]; else [C, H, W]
            and [T, C, H, W].

    Raises:
        ValueError: A feature cannot be written.
    """

    def __init__(self, features: f.FeatureConnector, *, as_numpy_layout: bool = False) -> None:
        self._features = features
        # TFDS writes nothing for a dict of nothing.
        self._places = [leaf for leaf in leaves_of(features) if not leaf.is_empty]
        self._encoders = [_LeafEncoder(place, as_numpy_layout) for place in self._places]

    def encode(self, sample: Mapping[str, object]) -> bytes:
        """Return the serialized Example of one sample.

        Raises:
            TypeError, ValueError: A value does not fit its feature; names the feature.
        """
        values: dict[str, object] = {}
        self._collect(self._features, sample, (), values)
        record: dict[str, _Values] = {}
        for place, encoder in zip(self._places, self._encoders, strict=True):
            try:
                record.update(encoder.entries(values[place.path]))
            except (TypeError, ValueError, OverflowError) as error:
                raise locate_value(error, f"feature {place.path!r}") from error
        return RowEncoder().encode(record)

    def _collect(
        self, feature: Any, value: Any, names: tuple[str, ...], values: dict[str, object]
    ) -> None:
        """Collect the value of each leaf, nested by the sequences around it."""
        # Before the test for a dict and a sequence, which it is, too.
        if isinstance(feature, f.TranslationVariableLanguages):
            value = _languages(value, names)
        if isinstance(feature, f.FeaturesDict):
            _check_names(feature, value, names)
            for name, item in feature.items():
                self._collect(item, value.get(name), (*names, name), values)
        elif isinstance(feature, f.Sequence) and isinstance(innermost(feature), f.FeaturesDict):
            if isinstance(value, Mapping):  # columns, as `load` returns them
                self._collect(feature.feature, value, names, values)
                return
            if not isinstance(value, Sequence):
                raise _no_dict("a list of dicts or a dict of lists", value, names)
            # A list of dicts becomes a dict of lists, one for each leaf below.
            rows: list[dict[str, object]] = [{} for _ in value]
            for item, row in zip(value, rows, strict=True):
                self._collect(feature.feature, item, names, row)
            for leaf in self._places:
                if leaf.names[: len(names)] == names:
                    values[leaf.path] = [row[leaf.path] for row in rows]
        else:
            values["/".join(names)] = value


def _no_dict(expected: str, value: object, names: tuple[str, ...]) -> TypeError:
    where = f"feature {'/'.join(names)!r}" if names else "the sample"
    return TypeError(f"{where}: expected {expected}, got {_kind(value)}")


def _languages(value: object, names: tuple[str, ...]) -> Mapping[str, object]:
    """The texts of a sample in the form that `load` returns; they may be a dict of languages, each with
    one text or several.
    """
    if not isinstance(value, Mapping):
        raise _no_dict("a dict of languages", value, names)
    if set(value) == {"language", "translation"}:
        return value
    texts = {code: [text] if isinstance(text, str) else list(text) for code, text in value.items()}
    # TFDS sorts them, so that equal samples are equal bytes.
    pairs = sorted((code, text) for code, several in texts.items() for text in several)
    return {"language": [code for code, _ in pairs], "translation": [text for _, text in pairs]}


def _check_names(expected: Mapping[str, Any], value: object, names: tuple[str, ...]) -> None:
    if not isinstance(value, Mapping):
        raise _no_dict("a dict", value, names)
    # An optional feature may be left out, or be None.
    needed = {name for name in expected if not expected[name].optional}
    if not needed <= value.keys() <= expected.keys():
        where = f"feature {'/'.join(names)!r}" if names else "the sample"
        raise ValueError(
            f"{where}: expected the names {sorted(expected)}, got {sorted(map(str, value))}"
        )


class _LeafEncoder:
    """Encodes the record entries of one leaf."""

    def __init__(self, place: LeafPlace, as_numpy_layout: bool) -> None:
        self._lengths = place.lengths
        self._is_optional = place.feature.optional
        try:
            self._encode = _value_encoder(place.feature, as_numpy_layout)
            # Under the keys that reading looks for; boxes as plain numbers, without an image.
            leaf = place.reader(Decoding(as_numpy_layout=True))
        except (ParseError, ValueError) as error:
            raise locate_value(error, f"feature {place.path!r}") from None
        self._keys = [want.key for want in leaf.wants]
        # An empty list of bytes is an array of no strings, so that its kind is written.
        stored = leaf.element.stored
        self._empty = np.zeros(
            0, np.float32 if stored is torch.float32 else "S1" if stored is bytes else np.int64
        )

    def entries(self, value: object) -> dict[str, _Values]:
        """Return the entries as key -> values."""
        if value is None and not self._lengths:
            if self._is_optional:
                return {}
            raise TypeError("expected a value, got None")
        # The lengths of all rows of each level, as a ragged tensor is stored.
        row_lengths: list[list[int]] = [[] for _ in self._lengths]
        items = _flatten(value, self._lengths, row_lengths)
        parts = [self._encode(item) for item in items]
        values: Any = self._empty
        if parts and isinstance(parts[0], list):
            values = [item for part in parts for item in part] or values
        else:
            values = np.concatenate([values, *parts])
        sizes, keys = row_lengths[1:], self._keys
        if len(keys) == 2:  # TFDS then writes each shape beside the bytes
            sizes = [[size for item in items for size in _numbers(item).shape]]
        elif len(keys) > 2:
            keys = keys[1:]
        return dict(zip(keys, [values, *(np.array(each, np.int64) for each in sizes)], strict=True))


def _flatten(
    value: object, lengths: Sequence[int | None], row_lengths: list[list[int]]
) -> list[object]:
    """Return the innermost values, and append the row lengths of each level to `row_lengths`."""
    if not lengths:
        return [value]
    rows = _rows(value)
    if lengths[0] is not None and len(rows) != lengths[0]:
        raise ValueError(f"expected a sequence of {lengths[0]}, got {len(rows)}")
    row_lengths[0].append(len(rows))
    return [item for row in rows for item in _flatten(row, lengths[1:], row_lengths[1:])]


def _rows(value: Any) -> Any:
    if isinstance(value, RaggedTensor) or (isinstance(value, torch.Tensor) and value.dim()):
        return rows_of(value)
    # These have a length, but are single values here.
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__"):
        raise TypeError(f"expected a sequence, got {_kind(value)}")
    return value


def _value_encoder(
    feature: f.FeatureConnector, as_numpy_layout: bool
) -> Callable[[object], _Values]:
    """Return the function that turns one value into list values."""
    match feature:
        case f.Video():
            return _value_encoder(feature.frame, as_numpy_layout)
        case f.Image() | f.LabeledImage():
            return lambda value: [_picture(value, feature, as_numpy_layout)]
        case f.Text():
            return lambda value: [_text(value)]
        case f.ClassLabel():
            return lambda value: _label(value, feature)
        case f.BBoxFeature():
            return lambda value: _box(value, feature)
        case f.Audio(lazy_decode=True):
            # Samples need an encoder for each file format; TFDS stores the file.
            return lambda value: [_bytes(value)]
        case f.Tensor() | f.Scalar() | f.Audio():
            if feature.dtype == f.STRING:
                return lambda value: _strings(value, feature.shape)
            if feature.encoding != "none":
                return lambda value: [_raw(value, feature)]
            if feature.shape.count(None) > 1:
                raise ValueError("two unknown sizes need encoding 'bytes' or 'zlib'")
            return lambda value: _list_numbers(value, feature)
    raise ValueError(f"cannot write {feature!r}")


def _numbers(value: object) -> _Array:
    return (
        value.as_subclass(torch.Tensor).numpy(force=True)
        if isinstance(value, torch.Tensor)
        else np.asarray(value)
    )


def _array(value: object, feature: f.Tensor | f.Scalar | f.Audio) -> _Array:
    """Cast a value to the feature's dtype and shape; integers must not change."""
    found = _numbers(value)
    if not fits(found.shape, feature.shape):
        raise ValueError(f"expected shape {feature.shape}, got {found.shape}")
    # NumPy wraps around without a word; floats may lose digits, integers must not change.
    array = found.astype(feature.dtype)
    if array.dtype.kind in "iub" and not np.array_equal(array, found):
        raise ValueError(f"a value does not fit {array.dtype}")
    return array


def _list_numbers(value: object, feature: f.Tensor | f.Scalar | f.Audio) -> _Array:
    array = _array(value, feature).ravel()
    # The bits of a uint64 are those of the int64 that it is stored as.
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _raw(value: object, feature: f.Tensor | f.Scalar | f.Audio) -> bytes:
    array = _array(value, feature)
    # TFDS writes the bytes of the machine, all of which are little-endian by now.
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return zlib.compress(raw) if feature.encoding == "zlib" else raw


def _strings(value: Any, shape: tuple[int | None, ...]) -> list[bytes]:
    flat = [value]
    for size in shape:
        if any(isinstance(item, (str, bytes)) or size not in (None, len(item)) for item in flat):
            raise ValueError(f"expected strings of shape {shape}")
        flat = [inner for item in flat for inner in item]
    return [*map(_encoded, flat)]


def _bytes(value: object) -> bytes:
    # A str is text, never a path.
    if isinstance(value, os.PathLike):
        return Path(value).read_bytes()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected bytes, got {_kind(value)}; what is in a file: its bytes, or its Path"
        )
    return bytes(value)


def _encoded(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else _bytes(value)


def _text(value: object) -> bytes:
    data = _encoded(value)
    data.decode()  # TFDS writes any bytes, and nothing reads them as text then
    return data


def _label(value: Any, feature: f.ClassLabel) -> npt.NDArray[np.int64]:
    number = feature.str2int(value) if isinstance(value, str) else int(value)
    if not -1 <= number < (feature.num_classes or 1 << 63):
        raise ValueError(
            f"expected a label of -1 (none) to {(feature.num_classes or 0) - 1}, got {number}"
        )
    return np.array([number], np.int64)


def _box(value: object, feature: f.BBoxFeature) -> npt.NDArray[np.float32]:
    found, bbox_format = _numbers(value), feature.bbox_format or ""
    if found.size != 4:
        raise ValueError(f"expected four numbers, got {found.size}")
    box = found.reshape(4).astype(np.float64)
    # Plain numbers are taken to be in the format of the feature already.
    if isinstance(value, tv_tensors.BoundingBoxes) and bbox_format:
        box = _stored_box(box, value, bbox_format)
    if bbox_format.startswith("REL_") and not ((box >= 0) & (box <= 1)).all():
        raise ValueError(f"expected numbers from 0 to 1 for {bbox_format}, got {box.tolist()}")
    return box.astype(np.float32)


def _stored_box(box: _Floats, value: tv_tensors.BoundingBoxes, bbox_format: str) -> _Floats:
    """Convert a box from the tv_tensor's format to TFDS's."""
    # All formats go through XYWH.
    kind, (first, second) = value.format.value, box.reshape(2, 2)
    if kind not in ("CXCYWH", "XYXY", "XYWH"):
        raise ValueError(f"cannot write boxes of format {kind}")
    size = second - first if kind == "XYXY" else second
    first = first - size / 2 if kind == "CXCYWH" else first
    box = np.concatenate([first, size if bbox_format == "XYWH" else first + size])
    if bbox_format.startswith("REL_"):
        height, width = value.canvas_size
        box = box / [width, height, width, height]
    return box[[1, 0, 3, 2]] if bbox_format.endswith("YXYX") else box


def _picture(value: object, feature: f.Image | f.LabeledImage, as_numpy_layout: bool) -> bytes:
    # A file is stored unchanged: encoding JPEG again would lose quality.
    if isinstance(value, (bytes, bytearray, memoryview, os.PathLike)):
        return _bytes(value)
    pixels = _numbers(value)
    if pixels.ndim != 3:
        raise ValueError(f"expected an image of three dimensions, got {pixels.shape}")
    if as_numpy_layout:
        pixels = pixels.transpose(2, 0, 1)
    channels, height, width = pixels.shape
    if not fits((height, width, channels), feature.shape):
        raise ValueError(
            f"expected an image of (height, width, channels) {feature.shape}, got {(height, width, channels)}"
        )
    # Casting would change pixels, or scale them in a way that nobody chose.
    if str(pixels.dtype) != feature.dtype:
        raise ValueError(f"expected pixels of {feature.dtype}, got {pixels.dtype}")
    if feature.dtype != "float32":
        return encode_image(pixels, feature.encoding_format or "png")
    if channels != 1:
        raise ValueError(f"expected one channel of float32, got {channels}")
    # The four bytes of each float32 are one RGBA pixel.
    raw = np.ascontiguousarray(pixels[0], dtype="<f4").view(np.uint8)
    return encode_image(raw.reshape(height, width, 4).transpose(2, 0, 1), "png")


def _kind(value: object) -> str:
    return type(value).__name__
