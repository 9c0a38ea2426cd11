"""Pictures in other encodings: what each costs, what is kept as it is, of a folder and of records.

Covers index_tools/pictures, index_tools/reencode.
"""

import io
import json
import os
import sys

import numpy as np
import pytest
from PIL import Image

from index_tools.main import main
from index_tools.pictures import Encoding
from index_tools.reencode import reencode
from torch_tfrecord import (
    TFRecordDataset,
    TFRecordWriter,
    decode_example,
    decode_image,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)

NAMES = ["as they are", "PNG optimised", "WebP lossless"]
NAMES += [f"JPEG {quality}" for quality in (100, 95, 90, 85, 75)]


def drawing(seed=0, height=40, width=60):
    """A smooth picture with some noise, uint8 [H, W, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).integers(-6, 7, (height, width, 3))
    colors = np.stack([2 * x + y, 255 - 3 * x, 4 * y], 2)
    return np.clip(colors + noise, 0, 255).astype(np.uint8)


def saved(pixels, format="png", **options):
    buffer = io.BytesIO()
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def with_alpha(alpha):
    return np.concatenate([drawing(), np.full((40, 60, 1), alpha, np.uint8)], 2)


def opened(encoded):
    return Image.open(io.BytesIO(encoded))


def put(path, encoded):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded)


def records(pattern):
    dataset = TFRecordDataset(pattern, index="memory")
    return [dataset.raw(position) for position in range(len(dataset))]


def ssim(one, other):
    """Wang et al. 2004, of two gray images: a Gaussian window of 11 x 11, the mean over all places
    where it fits.
    """
    line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2

    def blurred(image):
        places = np.lib.stride_tricks.sliding_window_view(image, (11, 11))
        return (places * window).sum((2, 3))

    means = blurred(one), blurred(other)
    variances = blurred(one**2) - means[0] ** 2, blurred(other**2) - means[1] ** 2
    shared = blurred(one * other) - means[0] * means[1]
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = (2 * means[0] * means[1] + c1) * (2 * shared + c2)
    return (found / ((means[0] ** 2 + means[1] ** 2 + c1) * (sum(variances) + c2))).mean()


def test_the_table_has_the_values_of_the_formulas(folder, capsys):
    files = [saved(drawing(seed)) for seed in range(3)]
    for number, encoded in enumerate(files):
        put(folder / "in" / "a" / f"{number}.png", encoded)
    assert main(["from-images", "in", "out", "--image-quality", "table", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["encoding"] for row in rows] == NAMES
    assert not (folder / "out").exists()
    # matplotlib, which torchmetrics imports where it is there, may have made its cache
    assert {*folder.iterdir()} - {folder / ".cache"} == {folder / "in"}
    total = sum(map(len, files))
    assert rows[0] == {
        "encoding": "as they are",
        "bytes": total,
        "ratio": 1.0,
        "psnr": None,
        "worst_psnr": None,
        "ssim": 1.0,
        "worst_ssim": 1.0,
    }
    exact = saved(drawing(0), "png", optimize=True)
    assert rows[1]["bytes"] <= total
    assert len(exact) <= len(files[0])
    for row in rows[1:3]:
        assert (row["psnr"], row["ssim"], row["worst_ssim"]) == (None, 1.0, 1.0)
    for row in rows[3:]:
        quality = int(row["encoding"].split()[1])
        sizes, psnrs, ssims = [], [], []
        for seed in range(3):
            jpeg = saved(drawing(seed), "jpeg", quality=quality)
            before, after = drawing(seed).astype(float), np.asarray(opened(jpeg)).astype(float)
            sizes.append(len(jpeg))
            psnrs.append(10 * np.log10(255**2 / ((before - after) ** 2).mean()))
            weights = [0.2989, 0.587, 0.114]
            ssims.append(ssim(before @ weights, after @ weights))
        assert row["bytes"] == sum(sizes)
        assert row["ratio"] == pytest.approx(sum(sizes) / total)
        assert row["psnr"] == pytest.approx(np.median(psnrs), abs=1e-4)
        assert row["worst_psnr"] == pytest.approx(min(psnrs), abs=1e-4)
        # torchmetrics also takes places at the edges
        assert row["ssim"] == pytest.approx(np.median(ssims), abs=0.01)
        assert row["worst_ssim"] == pytest.approx(min(ssims), abs=0.01)


def test_the_table_of_a_terminal(folder, capsys):
    put(folder / "in" / "a" / "0.png", saved(drawing()))
    put(folder / "in" / "a" / "text.txt", b"no picture")
    assert main(["from-images", "in", "out", "--image-quality", "table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "encoding",
        "bytes",
        "ratio",
        "psnr",
        "worst_psnr",
        "ssim",
        "worst_ssim",
    ]
    assert lines[1].split() == [
        *["as", "they", "are"],
        str(len(saved(drawing()))),
        *["1.000", "inf", "inf", "1.0000", "1.0000"],
    ]
    assert [" ".join(line.split()[:2]) for line in lines[2:9]] == NAMES[1:]
    assert lines[-1] == ("median and worst of 1 picture: PSNR of RGB in dB, SSIM of luma")


def test_the_table_without_pictures_or_torchmetrics(folder, capsys, monkeypatch):
    put(folder / "in" / "a" / "text.txt", b"no picture")
    assert main(["from-images", "in", "out", "--image-quality", "table"]) == 2
    assert capsys.readouterr().err == (
        "tfrecord: expected at least one picture to measure, got none\n"
    )
    monkeypatch.setitem(sys.modules, "torchmetrics.functional", None)
    assert main(["from-images", "in", "out", "--image-quality", "table"]) == 2
    text = "tfrecord: the table needs the package torchmetrics: pip install torchmetrics, or all of"
    assert capsys.readouterr().err.startswith(text)


class TestEncoding:
    """One picture."""

    @pytest.mark.parametrize("format", ["png", "webp"])
    @pytest.mark.parametrize("alpha", [None, 0, 255])
    def test_lossless_is_lossless(self, format, alpha):
        # also the colours of what is transparent
        pixels = drawing() if alpha is None else with_alpha(alpha)
        new, why = Encoding(format).encode(saved(pixels))
        assert why == ""
        assert opened(new).format == format.upper()
        # Pillow's WebP leaves out alpha that is 255 everywhere
        mode = "RGB" if alpha is None else "RGBA"
        assert np.array_equal(np.asarray(opened(new).convert(mode)), pixels)

    def test_a_jpeg_is_compressed_again_only_if_told(self):
        old = saved(drawing(), "jpeg", quality=95)
        assert Encoding("jpeg", 50).encode(old) == (old, "")
        new, _ = Encoding("jpeg", 50, recompress=True).encode(old)
        assert new == saved(opened(old), "jpeg", quality=50)
        # nothing would be saved
        assert Encoding("jpeg", 100, recompress=True).encode(old) == (old, "")

    @pytest.mark.parametrize("alpha", [100, 255])
    def test_alpha_is_kept_unless_told(self, alpha):
        old = saved(with_alpha(alpha))
        assert Encoding("jpeg").encode(old) == (old, "alpha")
        new, why = Encoding("jpeg", 90, drop_alpha=True).encode(old)
        assert (new, why) == (saved(drawing(), "jpeg", quality=90), "")
        new, _ = Encoding("png", drop_alpha=True).encode(old)
        assert np.array_equal(np.asarray(opened(new)), drawing())

    def test_a_color_that_is_transparent_is_alpha(self):
        old = saved(drawing()[..., 0], transparency=int(drawing()[0, 0, 0]))
        assert Encoding("jpeg").encode(old) == (old, "alpha")

    def test_16_bits_are_kept_unless_told(self):
        deep = np.arange(2400, dtype=np.uint16).reshape(40, 60) * 27
        old = saved(deep)
        for format in ("jpeg", "png", "webp"):
            assert Encoding(format).encode(old) == (old, "16-bit")
        new, why = Encoding("png", to_8bit=True).encode(old)
        assert why == ""
        assert np.array_equal(np.asarray(opened(new)), deep >> 8)

    def test_animations_are_kept(self):
        frames = [Image.fromarray(drawing(seed)) for seed in range(3)]
        for format in ("gif", "webp"):
            old = saved(frames[0], format, save_all=True, append_images=frames[1:])
            assert Encoding("png", drop_alpha=True).encode(old) == (old, "animation")
        new, why = Encoding("png").encode(saved(frames[0], "gif"))
        assert (opened(new).format, why) == ("PNG", "")

    def test_too_large_for_the_format(self):
        old = saved(np.zeros((2, 70_000), np.uint8))
        for format in ("jpeg", "webp"):
            assert Encoding(format).encode(old) == (old, "too large")

    @pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation(self, format, orientation):
        upright = Image.fromarray(drawing())
        old = saved(upright, "png", exif=turned(orientation))
        options = {"image_quality": 100}
        kept, _ = Encoding(format, **options).encode(old)
        assert opened(kept).getexif().get(0x0112, 1) == orientation
        assert opened(kept).size == (60, 40)
        applied, _ = Encoding(format, **options, orientation="applied").encode(old)
        assert opened(applied).getexif().get(0x0112, 1) == 1
        found = np.asarray(opened(applied).convert("RGB")).astype(int)
        wanted = decode_image(old, apply_orientation=True).permute(1, 2, 0).numpy()
        assert np.abs(found - wanted).max() <= (90 if format == "jpeg" else 0)
        assert np.abs(found - wanted).mean() < (5 if format == "jpeg" else 1e-9)


class TestOptions:
    """Of the command."""

    def test_a_folder(self, folder, capsys):
        put(folder / "in" / "a" / "0.png", saved(drawing()))
        put(folder / "in" / "a" / "1.jpg", saved(drawing(), "jpeg", exif=turned(6)))
        put(folder / "in" / "b" / "2.png", saved(with_alpha(9)))
        arguments = ["--image-format", "webp", "--orientation", "applied", "--no-shuffle", "--json"]
        assert main(["from-images", "in", "out/t", *arguments]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["formats"]["jpeg"]["re-encoded"] == 1
        assert (report["kept"], report["skipped"]) == ({}, [])
        assert report["classes"] == {"a": 2, "b": 1}
        assert report["paths"] == ["out/labels-t.txt", "out/t-00000-of-00001.tfrecord"]
        found = [*map(decode_example, records("out/t-*.tfrecord"))]
        assert [row["image/format"] for row in found] == [[b"WEBP"]] * 3
        sizes = [(row["image/height"].item(), row["image/width"].item()) for row in found]
        assert sizes == [(40, 60), (60, 40), (40, 60)]
        assert np.array_equal(np.asarray(opened(found[2]["image/encoded"][0])), with_alpha(9))

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (["--to-8bit"], "--drop-alpha, --to-8bit, --recompress and --orientation need"),
            (["--orientation", "applied"], "otherwise no image is re-encoded"),
            (["--image-format", "png", "--image-quality", "3"], "png is lossless here"),
            (["--image-quality", "0"], "expected an integer from 1 to 100, got '0'"),
            (["--image-quality", "tables"], "expected an integer from 1 to 100, got 'tables'"),
            (["--image-format", "gif"], "invalid choice: 'gif'"),
        ],
    )
    @pytest.mark.parametrize("verb", ["from-images", "reencode"])
    def test_wrong_use(self, folder, options, error, verb, capsys):
        put(folder / "in" / "a" / "0.png", saved(drawing()))
        assert main([verb, "in", "out", *options]) == 2
        assert error in capsys.readouterr().err


class TestReencode:
    """Of records."""

    ROWS = (
        {"image/encoded": saved(drawing(0)), "image/format": "PNG", "x": np.float32([1, -0.0])},
        {"image/encoded": saved(with_alpha(9)), "image/format": "png", "label": 3},
        {"image/encoded": saved(drawing(1)), "image/format": "png", "name": [b"\xff\x00", b""]},
        {"label": 4},
    )

    @pytest.fixture
    def path(self):
        with TFRecordWriter("in.tfrecord") as writer:
            for row in self.ROWS:
                writer.write(row)
        return "in.tfrecord"

    def test_all_else_is_as_it_was(self, path):
        counts = reencode(path, "out/t", Encoding("jpeg", 80), num_shards=1)
        old, new = records(path), records("out/t-00000-of-00001.tfrecord")
        jpegs = [saved(drawing(seed), "jpeg", quality=80) for seed in range(2)]
        assert counts == {
            "records": 4,
            "pictures": 3,
            "bytes_before": sum(len(row["image/encoded"]) for row in self.ROWS[:3]),
            "bytes_after": len(jpegs[0]) + len(self.ROWS[1]["image/encoded"]) + len(jpegs[1]),
            "kept_alpha": 1,
        }
        assert new[1] == old[1]
        assert new[3] == old[3]
        # TensorFlow's encoder is ours: test_example.py
        changed = {"image/encoded": jpegs[0], "image/format": "JPEG"}
        assert new[0] == encode_example(self.ROWS[0] | changed)
        changed = {"image/encoded": jpegs[1], "image/format": "jpeg"}
        assert new[2] == encode_example(self.ROWS[2] | changed)
        assert len(TFRecordDataset("out/t-*.tfrecord", index="require")) == 4

    def test_a_storage_has_no_folders(self, path):
        reencode(path, "memory://reencoded/t", Encoding("jpeg", 80), num_shards=1)
        assert len(TFRecordDataset("memory://reencoded/t-*", index="memory")) == 4
        assert not os.path.exists("memory:")

    def test_steps_of_a_sequence_example(self):
        frames = [saved(drawing(seed)) for seed in range(3)]
        with TFRecordWriter("in.tfrecord") as writer:
            writer.write(encode_sequence_example({"id": 7}, {"frame": frames, "t": [1.5, 2, 3]}))
        counts = reencode("in.tfrecord", "t", Encoding("webp"), feature="frame")
        assert counts["pictures"] == 3
        context, lists = decode_sequence_example(records("t-*.tfrecord")[0])
        assert context == {"id": [7]}
        assert [step.tolist() for step in lists["t"]] == [[1.5], [2.0], [3.0]]
        for seed, (frame,) in enumerate(lists["frame"]):
            assert np.array_equal(np.asarray(opened(frame)), drawing(seed))

    def test_the_command(self, path, capsys):
        options = ["--image-quality", "80", "--compression", "GZIP"]
        assert main(["reencode", path, "out/t", *options]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == ["records: 4", "pictures: 3"]
        assert len(records("out/t-00000-of-00001.tfrecord.gz")) == 4
        assert main(["reencode", path, "out/t", *options, "--json"]) == 2
        assert "a set of shards exists" in capsys.readouterr().err
        options += ["--json", "--force", "--num-shards", "1"]
        assert main(["reencode", path, "out/t", *options]) == 0
        assert json.loads(capsys.readouterr().out)["kept_alpha"] == 1

    def test_the_table(self, path, capsys):
        assert main(["reencode", path, "out/t", "--image-quality", "table", "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["encoding"] for row in rows] == NAMES
        assert rows[0]["bytes"] == sum(len(row["image/encoded"]) for row in self.ROWS[:3])

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ([], "expected --image-format or --image-quality"),
            (["--image-format", "png", "--feature", "x"], "expected pictures in the feature 'x'"),
            (["--image-format", "png", "--orientation", "applied"], "expected orientation kept"),
        ],
    )
    def test_wrong_use(self, path, folder, options, error, capsys):
        assert main(["reencode", path, "out/t", *options]) == 2
        assert error in capsys.readouterr().err
        assert not (folder / "out").exists()

    def test_a_damaged_picture_is_named_and_nothing_is_written(self, folder, capsys):
        with TFRecordWriter("in.tfrecord") as writer:
            writer.write({"image/encoded": saved(drawing())})
            writer.write({"image/encoded": saved(drawing())[:-20]})
        assert main(["reencode", "in.tfrecord", "out/t", "--image-format", "webp"]) == 1
        assert capsys.readouterr().err.startswith("tfrecord: in.tfrecord: record 1 at byte ")
        assert not (folder / "out").exists()
