"""Small GIF, BMP and PNG files of unusual kinds, drawn here byte by byte, and what TensorFlow
decodes from them.

``python oracle.py`` writes ``pictures.npz`` in this folder, in an environment with tensorflow-cpu
2.21. It holds each file as ``<name>``, and TensorFlow's result [H, W, C] as ``<name>|<channels>``,
or ``<name>|uint16`` where it is asked for 16 bits.
"""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np

_COLORS = bytes([200, 30, 60, 10, 240, 20, 5, 90, 250, 250, 250, 0])


def gif(*frames, transparent=None, local=b""):
    """A GIF of 6 x 5 pixels with a table of four colours; each frame is (left, top, width,
    height).
    """
    data = b"GIF89a" + struct.pack("<HHBBB", 6, 5, 0x81, 0, 0) + _COLORS
    for left, top, width, height in frames:
        if transparent is not None:
            data += b"\x21\xf9\x04" + struct.pack("<BHB", 1, 0, transparent) + b"\0"
        data += (
            b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0x81 if local else 0) + local
        )
        data += _uncompressed([(x + y) % 4 for y in range(height) for x in range(width)])
    return data + b"\x3b"


def _uncompressed(indices):
    """LZW codes of 3 bits, with a clear code (4) before every second one, so that they never become
    longer.
    """
    codes = [
        code
        for number, index in enumerate(indices)
        for code in ([] if number % 2 else [4]) + [index]
    ] + [5]
    packed = sum(code << 3 * place for place, code in enumerate(codes)).to_bytes(
        len(codes) * 3 // 8 + 1, "little"
    )
    return b"\2" + bytes([len(packed)]) + packed + b"\0"


def bmp(info_bytes=40, masks=(), *, bits=32, top_down=False):
    """A BMP of 5 x 4 pixels of random bytes; with masks they say what is where."""
    pixels = np.random.default_rng(1).bytes((5 * bits + 31) // 32 * 4 * 4)
    compression = 3 if masks else 0
    head = struct.pack(
        "<IiiHHIIiiII",
        info_bytes,
        5,
        -4 if top_down else 4,
        1,
        bits,
        compression,
        len(pixels),
        1,
        1,
        0,
        0,
    )
    head += struct.pack(f"<{len(masks)}I", *masks)
    head = head.ljust(info_bytes, b"\0")
    return (
        b"BM"
        + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head))
        + head
        + pixels
    )


def chunk(name, payload):
    return (
        struct.pack(">I", len(payload))
        + name
        + payload
        + struct.pack(">I", zlib.crc32(name + payload))
    )


def gamma(value):
    return chunk(b"gAMA", struct.pack(">I", value))


def png(*extra, bits=8, color=2, behind=b""):
    """A PNG of 8 x 8 random pixels, the first three columns gray."""
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[color]
    rows = np.random.default_rng(2).integers(0, 256, (8, 8, channels, bits // 8), dtype=np.uint8)
    rows[:, :3] = rows[:, :3, :1]
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, bits, color, 0, 0, 0)) + b"".join(extra)
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9))
    return b"\x89PNG\r\n\x1a\n" + head + body + behind + chunk(b"IEND", b"")


def pictures():
    palette = chunk(b"PLTE", np.random.default_rng(5).bytes(768))
    srgb = chunk(b"sRGB", b"\0")
    files = {
        "gif whole": gif((0, 0, 6, 5)),
        "gif one small": gif((2, 1, 3, 2)),
        "gif small": gif((2, 1, 3, 2), (0, 0, 6, 5)),
        "gif small local": gif((2, 1, 3, 2), (0, 0, 6, 5), local=bytes(range(1, 13))),
        "gif small transparent": gif((1, 0, 4, 5), (0, 0, 6, 5), transparent=1),
        "gif transparent": gif((0, 0, 6, 5), transparent=2),
        "bmp": bmp(),
        "bmp top down": bmp(top_down=True),
        "bmp 24": bmp(bits=24),
        "bmp masks": bmp(56, (0xFF0000, 0xFF00, 0xFF, 0)),
        "bmp alpha mask": bmp(56, (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
        "bmp version 5": bmp(124),
        "bmp gray": bmp(bits=8),
        "bmp gray, top down": bmp(bits=8, top_down=True),
        "bmp gray, version 5": bmp(124, bits=8),
        "bmp gray, of TensorFlow's test": bytes.fromhex(
            "424d3d000000000000003600000028000000020000000200000001000800000000001000000013"
            "0b0000130b00000000000000000000ff000000ff000000"
        ),
        "png": png(),
        "png sRGB": png(srgb),
        "png sRGB, gamma": png(srgb, gamma(50000)),
        "png gamma, sRGB": png(gamma(50000), srgb),
        "png two gammas": png(gamma(50000), gamma(30000)),
        "png unknown sRGB": png(chunk(b"sRGB", b"\x09")),
        "png long sRGB": png(chunk(b"sRGB", b"\0\0")),
        "png late gamma": png(behind=gamma(45455)),
        "png gamma behind palette": png(palette, gamma(45455), color=3),
        "png palette": png(gamma(45455), palette, color=3),
        "png palette, transparent": png(
            gamma(45455), palette, chunk(b"tRNS", bytes(range(99))), color=3
        ),
        "png alpha": png(gamma(45455), color=6),
        "png gray": png(gamma(45455), color=0),
        "png 16": png(bits=16),
        "png 16 gamma": png(gamma(45455), bits=16),
        "png 16 gray": png(bits=16, color=0),
    }
    for value in (
        0,
        15,
        16,
        1600,
        30000,
        45000,
        45455,
        94999,
        95000,
        97000,
        105000,
        105264,
        220000,
        10**7,
        2**31 - 1,
    ):
        files[f"png gamma {value}"] = png(gamma(value))
    return files


def main():
    import tensorflow as tf

    found = {}
    for name, data in pictures().items():
        found[name] = np.frombuffer(data, np.uint8)
        kind = name.split()[0]
        channels_of_png = (1,) if name.startswith("png gamma ") else (0, 1, 3, 4)
        for channels in {"gif": (0, 3), "bmp": (0, 3, 4), "png": channels_of_png}[kind]:
            decoded = tf.io.decode_image(data, channels=channels, expand_animations=False)
            found[f"{name}|{channels}"] = decoded.numpy()
        if name.startswith("png 16") or name == "png":
            found[f"{name}|uint16"] = tf.io.decode_png(data, dtype=tf.uint16).numpy()
    np.savez_compressed(Path(__file__).parent / "pictures.npz", **found)


if __name__ == "__main__":
    sys.exit(main())
