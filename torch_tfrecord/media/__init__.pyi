from .backends import TORCHCODEC_PIP, torchcodec_decoders
from .codec import (
    CHANNELS,
    DEFAULT_MAX_PIXELS,
    decode_image,
    encode_image,
    image_format,
    image_size,
    resize_with_crop_or_pad,
    turn_upright,
)
from .crops import RandomResizedCrop, ResizedCenterCrop
from .headers import guess_content, read_header
from .image import Image
from .leading_crops import LeadingCrop, find_leading_crop, helped_by
from .media_decoders import FFMPEG, decode_sound, decoders_obstacle, ffmpeg_version, read_wav
from .regions import StoredImage, decode_stack
from .sounds import Audio, Video

__all__ = [
    "CHANNELS",
    "DEFAULT_MAX_PIXELS",
    "FFMPEG",
    "TORCHCODEC_PIP",
    "Audio",
    "Image",
    "LeadingCrop",
    "RandomResizedCrop",
    "ResizedCenterCrop",
    "StoredImage",
    "Video",
    "decode_image",
    "decode_sound",
    "decode_stack",
    "decoders_obstacle",
    "encode_image",
    "ffmpeg_version",
    "find_leading_crop",
    "guess_content",
    "helped_by",
    "image_format",
    "image_size",
    "read_header",
    "read_wav",
    "resize_with_crop_or_pad",
    "torchcodec_decoders",
    "turn_upright",
]
