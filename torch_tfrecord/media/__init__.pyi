from .codec import (
    check_image,
    decode_image,
    encode_image,
    image_format,
    image_size,
    resize_with_crop_or_pad,
)
from .crop_jobs import image_sizes
from .crops import RandomResizedCrop, ResizedCenterCrop
from .display import Parts, show, to_html
from .headers import guess_content
from .image import Image
from .media_decoders import decode_sound, decoders_state, read_wav
from .sounds import Audio, Video

__all__ = [
    "Audio",
    "Image",
    "Parts",
    "RandomResizedCrop",
    "ResizedCenterCrop",
    "Video",
    "check_image",
    "decode_image",
    "decode_sound",
    "decoders_state",
    "encode_image",
    "guess_content",
    "image_format",
    "image_size",
    "image_sizes",
    "read_wav",
    "resize_with_crop_or_pad",
    "show",
    "to_html",
]
