from .backends import TORCHCODEC_PIP, torchcodec_decoders
from .codec import (
    decode_image,
    encode_image,
    image_format,
    image_size,
    resize_with_crop_or_pad,
    turn_upright,
)
from .crops import RandomResizedCrop, ResizedCenterCrop
from .display import Part, caption, draw_cells, parts_of, show, to_html
from .headers import guess_content, read_header
from .image import Image
from .media_decoders import FFMPEG, decode_sound, decoders_obstacle, ffmpeg_version, read_wav
from .regions import decode_stack
from .sounds import Audio, Video

__all__ = [
    "FFMPEG",
    "TORCHCODEC_PIP",
    "Audio",
    "Image",
    "Part",
    "RandomResizedCrop",
    "ResizedCenterCrop",
    "Video",
    "caption",
    "decode_image",
    "decode_sound",
    "decode_stack",
    "decoders_obstacle",
    "draw_cells",
    "encode_image",
    "ffmpeg_version",
    "guess_content",
    "image_format",
    "image_size",
    "parts_of",
    "read_header",
    "read_wav",
    "resize_with_crop_or_pad",
    "show",
    "to_html",
    "torchcodec_decoders",
    "turn_upright",
]
