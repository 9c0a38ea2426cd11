"""Read one leaf of the feature tree from records: a single element, a sequence, or ragged rows.

TFDS does not declare how nested sequences are stored: there the keys in the record decide::

    k                                                        one list: an element, or those of a sequence
    k/ragged_flat_values, k/ragged_row_lengths_0, ...        nested sequences, outermost lengths first
    k/shape, k/value                                         tensors of two or more unknown sizes, and their shapes

An element decodes one value, a `Leaf` handles the nesting around it. Source: the
``decode_example`` of each class of ``tensorflow_datasets.core.features``, 4.9.10.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

import torch_tfrecord.tfds.features as f
from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, Array, Ints, reserve, splits_of
from torch_tfrecord.columns import (
    Column,
    LackingError,
    Nested,
    RawTensor,
    Want,
    rows_of,
    stack,
)
from torch_tfrecord.errors import ParseError, TFRecordError, read_each
from torch_tfrecord.media import decode_image, decode_sound, image_sizes, read_wav
from torch_tfrecord.samples import DType
from torch_tfrecord.tfds.features import Shape, fits

__all__ = [
    "BoxLeaf",
    "Element",
    "EncodedElement",
    "Leaf",
    "ListElement",
    "PictureElement",
    "decoded_sound",
    "raw_tensor",
]

_MAX_LENGTH = 1 << 33  # more than fits a record, since protobuf limits messages to 2 GiB
_Pixels: TypeAlias = "npt.NDArray[Any]"


class Element:
    """How one value is decoded.

    Attributes:
        what: Name of the kind of value, for errors.
        dtype: Dtype of the tensors; None if the values are not tensors.
        shape: Shape of one element.
        stored: Dtype of the list that has it.
        count: List values per element; None if the shape has an unknown size, inferred from the
            list.
        is_text, is_encoded: Whether each value is UTF-8, or other bytes that `decode` reads.
        plain_mode: The mode of `decode_image` that gives the value, a `tv_tensors.Image`; None if
            that takes more, or the value is no image.
    """

    stored: DType = bytes
    count: int | None = 1
    is_text = is_encoded = False
    plain_mode: str | None = None

    def __init__(self, what: str, dtype: torch.dtype | None = None, shape: Shape = ()) -> None:
        self.what, self.dtype, self.shape = what, dtype, shape

    def one(self, values: Any) -> Any:
        """The element of a list."""
        return self.each(values, 1)[0]

    def each(self, values: Any, number: int) -> Any:
        """That number of elements of equal size: a tensor [number, ...] if they have the same
        shape, else a list.
        """
        raise NotImplementedError

    def many(self, values: Any) -> Any:
        """All elements of a list, as `each` gives them."""
        found = "string" if self.dtype is None else "number"
        if self.count is None and len(values):
            raise ParseError(
                f"expected a shape list next to elements of unknown shape, got one list of {found}s"
            )
        if self.count == 0:
            raise ParseError(
                f"expected elements of at least one {found}: the record does not say how many there are"
            )
        number, rest = divmod(len(values), self.count or 1)
        if rest:
            raise ParseError(
                f"expected a multiple of {self.count} values for shape {self.shape}, got {len(values)}"
            )
        return self.each(values, number)

    def sizes(self, num_values: int, number: int) -> tuple[int, ...]:
        """The shape of that number of elements, which have so many values together.

        Raises:
            ParseError: The number of values does not fit the shape.
        """
        if not number:
            return (0, *(size or 0 for size in self.shape))
        if self.shape.count(None) > 1:
            raise ParseError(f"expected the sizes of shape {self.shape} in the record, got none")
        # An unknown size beside a size of 0 may be any: 0 is taken, as in NumPy.
        fixed = math.prod(size for size in self.shape if size is not None)
        each = num_values // number
        found = each // fixed if fixed else 0
        if each != fixed * (found if None in self.shape else 1):
            multiple = "a multiple of " if None in self.shape else ""
            raise ParseError(f"expected {multiple}{fixed} values for {self.shape}, got {each}")
        return (number, *(found if size is None else size for size in self.shape))


class ListElement(Element):
    """Values in a list: ints and bools in an int64_list, floats in a float_list; byte strings, as
    bytes or nested lists of bytes.

    Args:
        dtype: Dtype of the tensor, None for byte strings. uint64 is bit-cast from int64, as TFDS
            writes it.
        shape: Shape of one element; at most one None.
    """

    def __init__(self, dtype: torch.dtype | None, shape: Shape = ()) -> None:
        super().__init__(str(dtype).removeprefix("torch.") if dtype else "bytes", dtype, shape)
        if dtype is not None:
            # Bools are stored as integers.
            self.stored = torch.float32 if dtype.is_floating_point else torch.int64
        self.count = None if None in shape else math.prod(size or 0 for size in shape)

    def each(self, values: Any, number: int) -> Any:
        """A tensor [number, *shape], or a list of nested lists."""
        sizes = self.sizes(len(values), number)
        if self.dtype is None:
            flat = np.empty(len(values), object)
            flat[:] = values
            return flat.reshape(sizes).tolist()
        # The list has int64 of the same bits, as protobuf has no list of uint64.
        stored = torch.int64 if self.dtype == torch.uint64 else self.dtype
        return Column.cast(values, stored).view(self.dtype).reshape(sizes)


class EncodedElement(Element):
    """One byte string per element, decoded by a function.

    Args:
        what, dtype, shape: See `Element`.
        decode: Turns bytes into the value.
        is_text: Whether they are UTF-8.
    """

    def __init__(
        self,
        what: str,
        decode: Callable[..., Any],
        dtype: torch.dtype | None = None,
        shape: Shape = (),
        *,
        is_text: bool = False,
    ) -> None:
        super().__init__(what, dtype, shape)
        self.decode, self.is_text, self.is_encoded = decode, is_text, not is_text

    def one(self, values: Sequence[bytes]) -> object:
        """The only value of a list."""
        if len(values) != 1:
            raise ParseError(f"expected 1 value, got {len(values)}")
        return self.decode(values[0])

    def each(self, values: Sequence[bytes], number: int) -> object:
        """Decode all values of a list."""
        # A list of empty strings takes next to nothing in the record.
        reserve(number * (OBJECT_BYTES if self.dtype is None else TENSOR_BYTES))
        return self.join([*map(self.decode, values)])

    def join(self, items: list[Any]) -> object:
        """Stack decoded elements if they have the same shape."""
        if items or self.dtype is None:
            return stack(items)
        return torch.empty(self.sizes(0, 0), dtype=self.dtype, device="cpu")


def raw_tensor(dtype: torch.dtype, shape: Shape, is_zlib: bool) -> EncodedElement:
    """A tensor stored as its raw bytes.

    Args:
        dtype: Dtype of the tensor.
        shape: None for unknown sizes; with two or more, the record also has the shape.
        is_zlib: Whether the bytes are compressed.
    """
    spec = RawTensor((), dtype, compression="zlib" if is_zlib else None)
    name = f"{str(dtype).removeprefix('torch.')}, {'zlib' if is_zlib else 'bytes'}"
    return EncodedElement(name, partial(_raw_tensor, spec, shape), dtype, shape)


def _raw_tensor(
    spec: RawTensor, wanted: Shape, data: bytes, shape: Shape | None = None
) -> torch.Tensor:
    """Decode a tensor, with the shape in the record or at most one unknown size."""
    shape = wanted if shape is None else shape
    if not fits(shape, wanted):
        raise ParseError(f"expected a shape like {wanted}, got {shape}")
    sizes = tuple(-1 if size is None else size for size in shape)
    return spec._value([memoryview(data)], sizes, 0)


_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Number of channels -> mode of `decode_image`, for uint8 images."""


class PictureElement(EncodedElement):
    """An image: uint8, uint16, or float32 stored in the four bytes of RGBA pixels.

    Args:
        feature: Gives shape and dtype; a `LabeledImage` has class numbers as pixels.
        as_numpy_layout: Return plain tensors [H, W, C] instead of `tv_tensors.Image` or `Mask` [C,
            H, W].
        is_video: Join several images to a `tv_tensors.Video`.
    """

    def __init__(
        self, feature: f.Image | f.LabeledImage, as_numpy_layout: bool, is_video: bool = False
    ) -> None:
        dtype = getattr(torch, feature.dtype)
        super().__init__("Image", self._decode, dtype, feature.shape)
        self._is_numpy_layout = as_numpy_layout
        self._mode = _MODES.get(self.shape[-1] or 0) if dtype == torch.uint8 else None
        self._one = tv_tensors.Mask if isinstance(feature, f.LabeledImage) else tv_tensors.Image
        self._many = tv_tensors.Video if is_video else self._one
        self.plain_mode = self._mode if self._many is tv_tensors.Image else None

    def _decode(self, data: bytes) -> torch.Tensor:
        pixels = self._pixels(data)
        channels, height, width = pixels.shape
        stored = (height, width, channels)
        if not fits(stored, self.shape):
            raise ParseError(
                f"expected an image of (height, width, channels) {self.shape}, got {stored}"
            )
        return (
            pixels.permute(1, 2, 0).contiguous()
            if self._is_numpy_layout
            else pixels.as_subclass(self._one)
        )

    def _pixels(self, data: bytes) -> torch.Tensor:
        if self.dtype == torch.float32:
            # TFDS stores depth as PNG: the four bytes of a float32 are the channels of a pixel.
            rgba = decode_image(data, "RGBA").permute(1, 2, 0).contiguous()
            return rgba.view(torch.float32).permute(2, 0, 1)
        if self._mode is not None:
            return decode_image(data, self._mode)
        # Other depths and numbers of channels follow the rules of `tf.io.decode_image`.
        pixels = decode_image(data, "unchanged").numpy()
        if self.dtype == torch.uint16 and pixels.dtype == np.uint8:
            pixels = pixels.astype(np.uint16) * 257  # as libpng expands 8 bits to 16
        elif self.dtype == torch.uint8 and pixels.dtype == np.uint16:
            pixels = (pixels >> 8).astype(np.uint8)  # libpng drops the lower byte
        return torch.from_numpy(_with_channels(pixels, self.shape[-1]))

    def join(self, items: list[Any]) -> object:
        """Stack images of equal size; return an empty tensor if there are none."""
        # Stacking tv_tensors calls `__torch_function__` for each of them.
        stacked = super().join([item.as_subclass(torch.Tensor) for item in items])
        if not isinstance(stacked, torch.Tensor):
            return items
        if self._is_numpy_layout:
            return stacked
        return (stacked if items else stacked.permute(0, 3, 1, 2)).as_subclass(self._many)


def _with_channels(pixels: _Pixels, channels: int | None) -> _Pixels:
    """Convert the number of channels as TensorFlow does: repeat gray, drop alpha, or add an opaque
    alpha.
    """
    found = len(pixels)
    if channels in (None, found):
        return pixels
    color = pixels[: found - 1 + found % 2]  # without alpha
    # TensorFlow would convert to gray with weights of its own: no feature of TFDS asks for it.
    if channels in (1, 2) and len(color) == 3:
        raise ParseError(f"expected {channels} channels, got a colour image")
    if channels in (3, 4):
        color = np.broadcast_to(color, (3, *color.shape[1:]))
    # A mask or a depth has no alpha; what reads it as RGBA gets it opaque.
    opaque = np.full_like(pixels[:1], np.iinfo(pixels.dtype).max)
    return np.concatenate([color, opaque] if channels in (2, 4) else [color])


def decoded_sound(data: bytes, *, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """An audio file's samples as integers [T] or [T, channels], as stored, or of 16 bits."""
    view = memoryview(data)
    # WAV is read without a decoder, as it has the samples as they are.
    numbers = (read_wav(view) or decode_sound(view)).integers()
    channels, wanted = numbers.shape[1], shape[1] if len(shape) > 1 else 1
    if channels != wanted:
        raise ParseError(f"expected audio of {wanted} channels, got {channels}")
    tensor = torch.from_numpy(np.array(numbers))
    return (tensor if len(shape) > 1 else tensor[:, 0]).to(dtype)


# The nesting.


class Leaf:
    """A `Reader` of one leaf.

    Args:
        key: Its key in the record: the names from the root, joined by "/".
        element: How to decode one value.
        lengths: One entry per sequence around it, outermost first: a fixed length, or None.
        is_optional: Whether a record may lack it.
        default: The value for a missing optional leaf.

    Attributes:
        wants: All keys of a record that may have it.
    """

    def __init__(
        self,
        key: str,
        element: Element,
        lengths: tuple[int | None, ...] = (),
        *,
        is_optional: bool = False,
        default: object = None,
    ) -> None:
        self.key, self.element, self.lengths = key, element, lengths
        self._is_optional, self._default = is_optional, default
        self._is_shaped = type(element) is EncodedElement and element.shape.count(None) > 1
        values, sizes = (element.stored, element.what), (torch.int64, "sizes")
        lists = {"": values}
        if self._is_shaped:
            lists = {"/value": values, "/shape": sizes}
        elif len(lengths) > 1:
            lists["/ragged_flat_values"] = values
            lists |= {f"/ragged_row_lengths_{level}": sizes for level in range(len(lengths) - 1)}
        self.wants = tuple(Want(key, key + suffix, *of) for suffix, of in lists.items())

    def read(self, columns: Sequence[Column]) -> object:
        """Read the batch's column: a tensor, or a list of the records' values.

        Raises:
            TFRecordError: The leaf is missing from a record, or has another type or shape; names
                the feature.
        """
        with self._labelled():
            together = self._numbers(columns[0])
            return self._one_by_one(columns) if together is None else together

    def one(self, lists: Mapping[str, Any]) -> object:
        """Read it from the lists of one record by their keys: arrays of numbers, and lists of
        bytes.
        """
        with self._labelled():
            return self._value(lists)

    @contextlib.contextmanager
    def _labelled(self) -> Iterator[None]:
        try:
            yield
        except LackingError:
            raise
        except TFRecordError as error:
            raise self.wants[0].labelled(error) from (error.__cause__ or error)

    def _numbers(self, column: Column) -> object:
        """The numbers of all records at once; None if records must be read one by one."""
        element, ends = self.element, self._ends(column)
        if ends is None:
            return None
        rows = element.each(column.values, int(ends[-1]))
        if not self.lengths:
            return rows
        if self.lengths[0] is None and not element.shape:
            # As those of a VarLenFeature.
            return Nested(rows, rows.dtype, (ends,))
        sizes = np.diff(ends)
        if (sizes == sizes[0]).all():
            return rows.reshape(len(sizes), sizes[0], *rows.shape[1:])
        return list(torch.split(rows, sizes.tolist()))

    def _ends(self, column: Column) -> Ints | None:
        """The row splits of all records' elements; None if records must be read one by one."""
        element, counts = self.element, np.diff(column.offsets)
        if (
            element.stored is bytes
            or not element.count
            or len(self.lengths) > 1
            or column.missing is not None
            or not len(counts)
        ):
            return None
        expected = self.lengths[0] if self.lengths else 1
        wrong = counts % element.count if expected is None else counts != element.count * expected
        # Values that do not fit are read one by one, where the error says why.
        if wrong.any():
            return None
        if len(counts) > 1:
            reserve(column.values.nbytes)
        return column.offsets // element.count

    def _one_by_one(self, columns: Sequence[Column]) -> list[object]:
        lists = [
            (
                want.key,
                column.strings(bytes) if want.kind.dtype is bytes else column.values,
                column.bounds(),
                column.missing,
            )
            for want, column in zip(self.wants, columns, strict=False)
        ]

        def read(row: int) -> object:
            return self._value(
                {
                    key: values[slice(*bounds[row])]
                    for key, values, bounds, missing in lists
                    if missing is None or not missing[row]
                }
            )

        return read_each(read, range(len(columns[0].offsets) - 1))

    def _value(self, lists: Mapping[str, Any]) -> Any:
        values = lists.get(self.wants[0].key)
        if values is None:
            if len(self.wants) > 2 and self.wants[2].key in lists:
                return self._ragged(lists)
            if not self.lengths:
                if self._is_optional:
                    return self._default
                raise self.wants[0].lacking()
            values = self._nothing
        if self._is_shaped:
            return self._shaped(values, lists.get(self.wants[1].key, ()))
        if not self.lengths:
            return self.element.one(values)
        rows = self.element.many(values)
        inner = [length or 0 for length in self.lengths[1:]]
        each = math.prod(inner)
        # Nested sequences in one list must have the lengths of the tree.
        if len(rows) % each if each else len(rows):
            raise ParseError(f"expected rows of the lengths {self.lengths}, got {len(rows)} values")
        levels = [np.array([len(rows) // (each or 1)])]
        for length in inner:
            levels.append(np.full(levels[-1].sum(), length))
        return self._nested(rows, levels)

    @property
    def _nothing(self) -> Any:
        """The values of a missing sequence, which is empty, as in TFDS."""
        return np.zeros(0, np.float32 if self.element.stored is torch.float32 else np.int64)

    def _ragged(self, lists: Mapping[str, Any]) -> object:
        _, flat, *wants = self.wants
        rows = self.element.many(lists.get(flat.key, self._nothing))
        levels: list[Ints] = []
        found = len(rows)
        for level, want in reversed([*enumerate(wants)]):
            if want.key not in lists:
                raise want.lacking()
            lengths = lists[want.key]
            # Clipped before summing: a sum that overflows might look right.
            if (lengths < 0).any() or np.minimum(lengths, _MAX_LENGTH).sum() != found:
                raise ParseError(
                    f"expected row lengths of level {level} that sum to {found}, got {sum(lengths.tolist())}"
                )
            found = len(lengths)
            levels.insert(0, lengths)
        return self._nested(rows, [np.array([found]), *levels])

    def _nested(self, rows: Any, levels: Sequence[Ints]) -> object:
        """Nest elements into rows.

        Args:
            rows: The elements.
            levels: The number of outermost rows, and the lengths of all rows of each level.
        """
        for expected, found in zip(self.lengths, levels, strict=True):
            wrong = [] if expected is None else found[found != expected]
            if len(wrong):
                raise ParseError(f"expected {expected} values in the sequence, got {wrong[0]}")
        if isinstance(rows, torch.Tensor):
            # Numbers of sequences of any length are jagged, as those of a VarLenFeature.
            if len(levels) == 1 and (self.lengths[0] is not None or rows.dim() > 1):
                return rows
            splits = tuple(map(splits_of, levels))
            return rows_of(Nested(rows.as_subclass(torch.Tensor), rows.dtype, splits))[0]
        # A list for each row; a tensor needs none.
        reserve(sum(map(len, levels)) * OBJECT_BYTES)
        for lengths in reversed(levels[1:]):
            rows = [rows[begin:end] for begin, end in pairwise(splits_of(lengths).tolist())]
        return rows

    def _shaped(self, values: Sequence[bytes], sizes: Any) -> object:
        element: Any = self.element
        rank, number = len(element.shape), len(values)
        shapes = np.array(sizes, np.int64)
        if len(shapes) != rank * number or (not self.lengths and number != 1) or (shapes < 0).any():
            raise ParseError(
                f"expected {rank} sizes for each value, got {len(shapes)} for {number} values"
            )
        if len(self.lengths) > 1:
            raise ParseError("expected tensors of unknown shape in one sequence at most")
        # Before the loop: tensors of nothing take next to nothing in the record.
        reserve(number * TENSOR_BYTES)
        pairs = zip(values, shapes.reshape(number, rank).tolist(), strict=True)
        items = [element.decode(value, tuple(shape)) for value, shape in pairs]
        return self._nested(element.join(items), [np.array([number])]) if self.lengths else items[0]


class BoxLeaf(Leaf):
    """Reads boxes as `tv_tensors.BoundingBoxes`, in pixels of an image in the same record.

    Only the image's header is read, for its size: you need not choose the image, and it is not
    decoded. Without an image, relative boxes get a canvas of (1, 1), and others stay four plain
    numbers.

    Args:
        key, element, lengths: See `Leaf`.
        bbox_format: Name of the format in TFDS.
        image: How to find the image in the record; None if there is no image.
    """

    def __init__(
        self,
        key: str,
        element: Element,
        lengths: tuple[int | None, ...],
        bbox_format: str,
        image: Want | None,
    ) -> None:
        super().__init__(key, element, lengths)
        self._is_relative = bbox_format.startswith("REL_")
        # torchvision has x first.
        self._order = [1, 0, 3, 2] if bbox_format.endswith("YXYX") else [0, 1, 2, 3]
        kind = "XYWH" if bbox_format == "XYWH" else "XYXY"
        self._like = tv_tensors.BoundingBoxes(
            torch.empty(0, 4, device="cpu"), format=kind, canvas_size=(1, 1)
        )
        self.wants = self.wants if image is None else (*self.wants, image)

    def read(self, columns: Sequence[Column]) -> object:
        """See `Leaf.read`."""
        # Without an image, relative boxes are those of a canvas of (1, 1).
        sizes = np.full((len(columns[0].offsets) - 1, 2), self._is_relative, np.int64)
        for column in columns[1:]:
            _read_sizes(column, sizes)
        with self._labelled():
            ends = self._ends(columns[0])
        if ends is None or not sizes.all():
            return [*map(self._row, rows_of(super().read(columns[:1])), sizes[:, None])]
        return self._boxes(columns[0].values.reshape(-1, 4), np.diff(ends), sizes)

    def one(self, lists: Mapping[str, Any]) -> object:
        """See `Leaf.one`; no image is looked at."""
        return self._row(super().one(lists), np.full((1, 2), self._is_relative, np.int64))

    def _row(self, row: Any, size: Ints) -> object:
        """A record's boxes, given as a tensor, and the [1, 2] size of its image."""
        if not size.all():
            return row
        numbers = row.numpy().reshape(-1, 4)
        return self._boxes(numbers, np.array([len(numbers)]), size)[0]

    def _boxes(self, numbers: Array, counts: Ints, sizes: Ints) -> list[object]:
        """The boxes of records: the numbers of all boxes, how many boxes each record has, and the (height,
        width) of each record's image.
        """
        numbers = numbers.take(self._order, axis=1)
        if self._is_relative:
            # (width, height, width, height)
            numbers *= sizes[:, [1, 0, 1, 0]].repeat(counts, axis=0)
        parts = torch.split(torch.from_numpy(numbers), counts.tolist())
        # Not by the constructor, in which torch gives Python's lock away six times.
        return [
            tv_tensors.wrap(part, like=self._like, canvas_size=tuple(size))
            for part, size in zip(parts, sizes.tolist(), strict=True)
        ]


def _read_sizes(column: Column, sizes: Ints) -> None:
    """Write (height, width) of each record's image, where it has one and not several, to ``sizes``."""
    # A want of one value is dense: what is missing is 0.
    ends = column.offsets if len(column.offsets) else np.arange(len(sizes) + 1)
    is_one = np.diff(ends) == 1
    if column.missing is not None:
        is_one &= column.missing == 0
    views = column._replace(values=column.values[ends[:-1][is_one]]).views()
    sizes[is_one] = image_sizes(views)
