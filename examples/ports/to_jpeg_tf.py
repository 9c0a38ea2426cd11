"""What PNG files cost as JPEG, and a table to choose by, in TensorFlow; the counterpart of
to_jpeg.py.
"""

from pathlib import Path

import tensorflow as tf


def measure(folder, qualities=(95, 85, 75)):
    """Quality -> bytes of all pictures, median PSNR and SSIM."""
    files = [path.read_bytes() for path in sorted(Path(folder).rglob("*.png"))]
    rows = {"png": (sum(map(len, files)), float("inf"), 1.0)}
    for quality in qualities:
        sizes, psnr, ssim = [], [], []
        for encoded in files:
            image = tf.io.decode_png(encoded, channels=3)
            jpeg = tf.io.encode_jpeg(image, quality=quality)
            again = tf.io.decode_jpeg(jpeg, dct_method="INTEGER_ACCURATE")
            sizes.append(len(jpeg.numpy()))
            psnr.append(float(tf.image.psnr(image, again, 255)))
            ssim.append(float(tf.image.ssim(image, again, 255)))
        middle = len(files) // 2
        rows[quality] = sum(sizes), sorted(psnr)[middle], sorted(ssim)[middle]
    return rows
