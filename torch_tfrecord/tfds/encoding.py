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
from torch_tfrecord.errors import locate_value
from torch_tfrecord.media import encode_image
from torch_tfrecord.protobuf import RowEncoder
from torch_tfrecord.tfds.features import fits, innermost
from torch_tfrecord.tfds.parser import LeafPlace, leaves_of

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
        self._encoders = [_LeafEncoder(leaf, as_numpy_layout) for leaf in self._places]

    def encode(self, sample: Mapping[str, object]) -> bytes:
        """Return the serialized Example of one sample.

        Raises:
            TypeError, ValueError: A value does not fit its feature; names the feature.
        """
        values: dict[str, object] = {}
        self._collect(self._features, sample, (), values)
        record: dict[str, _Values] = {}
        for leaf, encoder in zip(self._places, self._encoders, strict=True):
            try:
                record.update(encoder.entries(values[leaf.path]))
            except (TypeError, ValueError, OverflowError) as error:
                raise locate_value(error, f"feature {leaf.path!r}") from error
        return RowEncoder().encode(record)

    def _collect(
        self, feature: object, value: Any, names: tuple[str, ...], values: dict[str, object]
    ) -> None:
        """Collect the value of each leaf, nested by the sequences around it."""
        # Before the test for a dict and a sequence, which it is, too.
        if isinstance(feature, f.TranslationVariableLanguages):
            _collect_languages(value, names, values)
        elif isinstance(feature, f.FeaturesDict):
            _check_names(feature, value, names)
            for name, item in feature.items():
                self._collect(item, value.get(name), (*names, name), values)
        elif isinstance(feature, f.Sequence) and isinstance(innermost(feature), f.FeaturesDict):
            self._collect_sequence(feature.feature, value, names, values)
        else:
            values["/".join(names)] = value

    def _collect_sequence(
        self, inner: object, value: object, names: tuple[str, ...], values: dict[str, object]
    ) -> None:
        if isinstance(value, Mapping):  # columns, as `load` returns them
            self._collect(inner, value, names, values)
            return
        if not isinstance(value, Sequence):
            raise TypeError(
                f"feature {'/'.join(names)!r}: expected a list of dicts or a dict of lists, got {_kind(value)}"
            )
        # A list of dicts becomes a dict of lists, one for each leaf below.
        rows: list[dict[str, object]] = [{} for _ in value]
        for item, row in zip(value, rows, strict=True):
            self._collect(inner, item, names, row)
        for leaf in self._places:
            if leaf.names[: len(names)] == names:
                values[leaf.path] = [row[leaf.path] for row in rows]


def _collect_languages(value: object, names: tuple[str, ...], values: dict[str, object]) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(
            f"feature {'/'.join(names)!r}: expected a dict of languages, got {_kind(value)}"
        )
    # The form that `load` returns; else a dict of languages, each with one text or several.
    if set(value) == {"language", "translation"}:
        pairs = list(zip(value["language"], value["translation"], strict=True))
    else:
        texts = {
            code: [text] if isinstance(text, str) else list(text) for code, text in value.items()
        }
        # TFDS sorts them, so that equal samples are equal bytes.
        pairs = sorted((code, text) for code, several in texts.items() for text in several)
    for number, name in enumerate(("language", "translation")):
        values["/".join((*names, name))] = [pair[number] for pair in pairs]


def _check_names(expected: Mapping[str, object], value: object, names: tuple[str, ...]) -> None:
    where = f"feature {'/'.join(names)!r}" if names else "the sample"
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: expected a dict, got {_kind(value)}")
    # An optional feature may be left out, or be None.
    missing = [
        name
        for name in expected
        if name not in value and not getattr(expected[name], "optional", False)
    ]
    unknown = [name for name in value if name not in expected]
    if missing or unknown:
        raise ValueError(
            f"{where}: expected the names {sorted(expected)}, got {sorted(map(str, value))}"
        )


class _LeafEncoder:
    """Encodes the record entries of one leaf."""

    def __init__(self, place: LeafPlace, as_numpy_layout: bool) -> None:
        self._place = place
        self._encode, dtype = _value_encoder(place, as_numpy_layout)
        self._empty = np.zeros(0, dtype)
        shape = getattr(place.feature, "shape", ())
        # TFDS then writes each shape beside the bytes.
        self._has_shapes = (
            getattr(place.feature, "encoding", "none") != "none" and shape.count(None) > 1
        )
        self._depth = len(place.lengths)

    def entries(self, value: object) -> dict[str, _Values]:
        """Return the entries as key -> values."""
        key = self._place.path
        if value is None and not self._depth:
            if getattr(self._place.feature, "optional", False):
                return {}
            raise TypeError("expected a value, got None")
        # The lengths of all rows of each level, as a ragged tensor is stored.
        row_lengths: list[list[int]] = [[] for _ in range(self._depth)]
        items = _flatten(value, self._place.lengths, row_lengths)
        values = self._join([self._encode(item) for item in items])
        if self._has_shapes:
            shapes = [_numbers(item).shape for item in items]
            return {f"{key}/shape": np.array(shapes, np.int64).ravel(), f"{key}/value": values}
        if self._depth < 2:
            return {key: values}
        levels = {
            f"{key}/ragged_row_lengths_{at}": np.array(rows, np.int64)
            for at, rows in enumerate(row_lengths[1:])
        }
        return {f"{key}/ragged_flat_values": values, **levels}

    def _join(self, parts: list[_Values]) -> _Values:
        # An empty list of bytes is an array of no strings, so that its kind is written.
        if parts and isinstance(parts[0], list):
            return [item for part in parts for item in part] or self._empty
        return np.concatenate([self._empty, *parts])


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
    place: LeafPlace, as_numpy_layout: bool
) -> tuple[Callable[[object], _Values], npt.DTypeLike]:
    """Return the function that turns one value into list values, and the dtype of an empty list."""
    feature = place.feature
    if isinstance(feature, f.Video):
        feature = feature.frame
    if isinstance(feature, (f.Image, f.LabeledImage)):
        return lambda value: [_picture(value, feature, as_numpy_layout)], "S1"
    if isinstance(feature, f.Text):
        return lambda value: [_text(value)], "S1"
    if isinstance(feature, f.ClassLabel):
        return lambda value: _label(value, feature), np.int64
    if isinstance(feature, f.BBoxFeature):
        return lambda value: _box(value, feature), np.float32
    if isinstance(feature, f.Audio) and feature.lazy_decode:
        return lambda value: [_sound(value)], "S1"
    if not isinstance(feature, (f.Tensor, f.Scalar, f.Audio)):
        raise ValueError(f"feature {place.path!r}: cannot write {feature!r}")
    if feature.dtype == f.STRING:
        return lambda value: _strings(value, feature.shape), "S1"
    if feature.encoding != "none":
        return lambda value: [_raw(value, feature)], "S1"
    if feature.shape.count(None) > 1:
        raise ValueError(
            f"feature {place.path!r}: two unknown sizes need encoding 'bytes' or 'zlib'"
        )
    if not np.issubdtype(_numpy_dtype(feature.dtype), np.number) and feature.dtype != "bool":
        raise ValueError(
            f"feature {place.path!r}: cannot write {feature.dtype} without an encoding"
        )
    return lambda value: _list_numbers(value, feature), np.float32 if feature.dtype.startswith(
        "float"
    ) else np.int64


def _numpy_dtype(name: str) -> np.dtype[np.generic]:
    try:
        return np.dtype(name)
    except TypeError:
        raise ValueError(f"numpy has no dtype {name!r}") from None


def _numbers(value: object) -> _Array:
    return (
        value.as_subclass(torch.Tensor).numpy(force=True)
        if isinstance(value, torch.Tensor)
        else np.asarray(value)
    )


def _array(value: object, feature: f.Tensor | f.Scalar | f.Audio) -> _Array:
    """Cast a value to the feature's dtype and shape; integers must not change."""
    found, dtype = _numbers(value), _numpy_dtype(feature.dtype)
    if not fits(found.shape, feature.shape):
        raise ValueError(f"expected shape {feature.shape}, got {found.shape}")
    # NumPy wraps around without a word; floats may lose digits, integers must not change.
    array = found.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(array, found):
        raise ValueError(f"a value does not fit {dtype}")
    return array


def _list_numbers(value: object, feature: f.Tensor | f.Scalar | f.Audio) -> _Array:
    array = _array(value, feature).ravel()
    # The bits of the int64 that it is stored as.
    if array.dtype == np.uint64:
        return array.view(np.int64)
    return array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)


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
    return [_bytes(item.encode() if isinstance(item, str) else item) for item in flat]


def _bytes(value: object) -> bytes:
    # A str is text, never a path.
    if isinstance(value, os.PathLike):
        return Path(value).read_bytes()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"expected bytes, got {_kind(value)}")
    return bytes(value)


def _sound(value: object) -> bytes:
    # Samples need an encoder for each file format; TFDS stores the file.
    if isinstance(value, (torch.Tensor, np.ndarray)):
        raise TypeError(
            f"expected the bytes or the path of a sound file (lazy_decode), got {_kind(value)}"
        )
    return _bytes(value)


def _text(value: object) -> bytes:
    data = value.encode() if isinstance(value, str) else _bytes(value)
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
    found = _numbers(value)
    if found.size != 4:
        raise ValueError(f"expected four numbers, got {found.size}")
    box = found.reshape(4).astype(np.float64)
    # Plain numbers are taken to be in the format of the feature already.
    if isinstance(value, tv_tensors.BoundingBoxes) and feature.bbox_format is not None:
        box = _stored_box(box, value, feature.bbox_format)
    if (feature.bbox_format or "").startswith("REL_") and not ((box >= 0) & (box <= 1)).all():
        raise ValueError(
            f"expected numbers from 0 to 1 for {feature.bbox_format}, got {box.tolist()}"
        )
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
    stored = (*pixels.shape[1:], pixels.shape[0])
    if not fits(stored, feature.shape):
        raise ValueError(
            f"expected an image of (height, width, channels) {feature.shape}, got {stored}"
        )
    # Casting would change pixels, or scale them in a way that nobody chose.
    if str(pixels.dtype) != feature.dtype:
        raise ValueError(f"expected pixels of {feature.dtype}, got {pixels.dtype}")
    if feature.dtype == "float32":
        return encode_image(_as_rgba(pixels), "png")
    return encode_image(np.ascontiguousarray(pixels), feature.encoding_format or "png")


def _as_rgba(pixels: _Array) -> npt.NDArray[np.uint8]:
    """View the four bytes of each float32 as one RGBA pixel."""
    if len(pixels) != 1:
        raise ValueError(f"expected one channel of float32, got {len(pixels)}")
    height, width = pixels.shape[1:]
    raw = np.ascontiguousarray(pixels[0], dtype="<f4").view(np.uint8).reshape(height, width, 4)
    return np.ascontiguousarray(raw.transpose(2, 0, 1))


def _kind(value: object) -> str:
    return type(value).__name__
