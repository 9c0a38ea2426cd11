"""Pictures and sounds of TFDS features: encoded bytes to tensors."""

from __future__ import annotations

import functools
import io
import wave
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

import torch_tfrecord.tfds.features as f
from torch_tfrecord.errors import ParseError
from torch_tfrecord.images.codec import decode_image
from torch_tfrecord.tfds.elements import BytesElement, stack_alike

__all__ = ["PictureElement", "SoundElement"]

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_WAV_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


class PictureElement(BytesElement):
    """An image: uint8, uint16, or float32 in the four bytes of RGBA pixels.

    Args:
        feature: Its shape and dtype, and whether its pixels are classes.
        as_numpy_layout: Plain tensors [H, W, C], in place of `tv_tensors.Image` (of classes `Mask`) [C, H, W].
        is_video: Many are a `tv_tensors.Video`.
    """

    def __init__(self, feature: f.Image | f.LabeledImage, as_numpy_layout: bool, is_video: bool = False) -> None:
        super().__init__(what="Image")
        self.shape, self.dtype = feature.shape, getattr(torch, feature.dtype)
        self._is_numpy_layout = as_numpy_layout
        self._one = tv_tensors.Mask if isinstance(feature, f.LabeledImage) else tv_tensors.Image
        self._many = tv_tensors.Video if is_video else self._one

    def decode(self, data: bytes) -> torch.Tensor:
        """One picture."""
        pixels = self._pixels(data)
        channels, height, width = pixels.shape
        stored = (height, width, channels)
        if any(size not in (None, found) for size, found in zip(self.shape, stored, strict=True)):
            raise ParseError(f"expected an image of (height, width, channels) {self.shape}, got {stored}")
        return pixels.permute(1, 2, 0).contiguous() if self._is_numpy_layout else self._one(pixels)

    def _pixels(self, data: bytes) -> torch.Tensor:
        channels = self.shape[-1]
        if self.dtype == torch.float32:
            rgba = decode_image(data, "RGBA").permute(1, 2, 0).contiguous()
            return rgba.view(torch.float32).permute(2, 0, 1)
        if self.dtype == torch.uint8 and channels in _MODES:
            return decode_image(data, _MODES[channels])
        pixels = decode_image(data, "unchanged").numpy()
        if self.dtype == torch.uint16:
            pixels = pixels if pixels.dtype == np.uint16 else pixels.astype(np.uint16) * 257  # as libpng's expansion
        else:
            pixels = pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)
        return torch.from_numpy(_with_channels(pixels, channels))

    def join(self, items: list[Any]) -> Any:
        """Stacked where the sizes are equal; a tensor also where there are none."""
        plain = [item.as_subclass(torch.Tensor) for item in items]
        stacked = stack_alike(plain) if items else self._none()
        if not isinstance(stacked, torch.Tensor):
            return items
        return stacked if self._is_numpy_layout else self._many(stacked)

    def _none(self) -> torch.Tensor:
        height, width, channels = (size or 0 for size in self.shape)
        sizes = (height, width, channels) if self._is_numpy_layout else (channels, height, width)
        return torch.empty(0, *sizes, dtype=self.dtype)


def _with_channels(pixels: np.ndarray[Any, Any], channels: int | None) -> np.ndarray[Any, Any]:
    """As TensorFlow does: gray is repeated, alpha dropped, and opaque where it is missing."""
    found = len(pixels)
    if channels is None or channels == found:
        return pixels
    color = pixels[:1] if found in (1, 2) else pixels[:3]
    opaque = np.full_like(pixels[:1], np.iinfo(pixels.dtype).max)
    if channels in (1, 2) and len(color) == 3:
        raise ParseError(f"expected {channels} channels, got a picture in colours")
    color = np.repeat(color, 3, axis=0) if channels >= 3 and len(color) == 1 else color
    return np.concatenate([color, opaque]) if channels in (2, 4) else np.ascontiguousarray(color)


class SoundElement(BytesElement):
    """The file of a sound, decoded to [T] or [T, channels]; WAV by Python itself, others stay bytes.

    Args:
        feature: Its shape and dtype.
    """

    def __init__(self, feature: f.Audio, dtype: torch.dtype) -> None:
        decode = functools.partial(_decode_wav, shape=feature.shape, dtype=dtype)
        super().__init__(decode if feature.file_format in ("wav", None) else None, "Audio")


def _decode_wav(data: bytes, *, shape: tuple[int | None, ...], dtype: torch.dtype) -> Any:
    if data[:4] != b"RIFF":
        return data
    try:
        with wave.open(io.BytesIO(data)) as sound:
            width, channels = sound.getsampwidth(), sound.getnchannels()
            raw = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        raise ParseError(f"expected a WAV file of PCM samples, got bytes that are none ({error})") from error
    if width == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        numbers = wide.view("<i4")[:, 0]
    else:
        numbers = np.frombuffer(raw, _WAV_DTYPES[width])
        numbers = numbers.astype(np.int16) - 128 if width == 1 else numbers
    wanted = shape[1] if len(shape) > 1 else 1
    if channels != wanted:
        raise ParseError(f"expected a sound of {wanted} channels, got {channels}")
    tensor = torch.from_numpy(numbers.copy())
    return (tensor.reshape(-1, channels) if len(shape) > 1 else tensor).to(dtype)
