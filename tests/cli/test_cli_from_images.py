"""`tfrecord from-images`: an image folder to shards, whatever else lies in it."""

import io
import os
from pkgutil import resolve_name

import numpy as np
import pytest
import torch

from index_tools.main import main
from torch_tfrecord import TFRecordDataset, decode_example, encode_image

EXISTS = (
    "tfrecord: a set of shards exists: out/train-00000-of-00002.tfrecord; remove it, or choose another OUTPUT_PREFIX "
    "(--force with --num-shards writes over a set of as many shards)\n"
)


def picture(channels=3, seed=0, size=(20, 30)):
    values = np.random.default_rng(seed).integers(0, 256, (channels, *size), dtype=np.uint8)
    return torch.from_numpy(np.sort(values, axis=2))  # smooth enough that a JPEG is smaller


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


@pytest.fixture
def photos(folder):
    """Two classes with five images: three JPEG and two PNG."""
    for number in range(3):
        put(folder / "photos" / "cat" / f"{number}.jpg", encode_image(picture(seed=number), "jpeg"))
    put(folder / "photos" / "dog" / "a.png", encode_image(picture(seed=3), "png"))
    put(folder / "photos" / "dog" / "deep" / "b.PNG", encode_image(picture(4, seed=4), "png"))
    return folder / "photos"


def records(pattern="out/train-*.tfrecord*"):
    dataset = TFRecordDataset(pattern, index="require")
    return [decode_example(dataset.raw(position)) for position in range(len(dataset))]


def names(examples):
    return [example["image/filename"][0].decode() for example in examples]


def test_records_have_tensorflows_keys(photos, folder, capsys):
    assert main(["from-images", "photos", "out/train", "--no-shuffle", "--num-shards", "1"]) == 0
    examples = records()
    assert names(examples) == ["0.jpg", "1.jpg", "2.jpg", "a.png", "b.PNG"]
    assert examples[3] == {
        "image/class/label": [1],
        "image/class/text": [b"dog"],
        "image/encoded": [(photos / "dog" / "a.png").read_bytes()],
        "image/filename": [b"a.png"],
        "image/format": [b"PNG"],
        "image/height": [20],
        "image/width": [30],
    }
    assert [example["image/class/label"].tolist() for example in examples] == [
        [0],
        [0],
        [0],
        [1],
        [1],
    ]
    assert examples[0]["image/format"] == [b"JPEG"]
    assert examples[0]["image/encoded"] == [(photos / "cat" / "0.jpg").read_bytes()]
    assert (folder / "out" / "labels-train.txt").read_bytes() == b"cat\ndog\n"
    assert sorted(os.listdir("out")) == [
        ".torch_index",
        "labels-train.txt",
        "train-00000-of-00001.tfrecord",
    ]
    assert len(os.listdir("out/.torch_index")) == 1


def test_the_report_is_a_table_of_bytes(photos, capsys):
    assert main(["from-images", "photos", "out/train", "--num-shards", "2"]) == 0
    jpeg, png = (
        sum(path.stat().st_size for path in photos.rglob("*") if path.suffix.lower() == suffix)
        for suffix in (".jpg", ".png")
    )
    assert capsys.readouterr() == (
        "wrote 5 records of 2 classes in 2 shards: out/train-00000-of-00002.tfrecord to "
        "out/train-00001-of-00002.tfrecord\n"
        "wrote 2 class names: out/labels-train.txt\n"
        "\n"
        "format  images  re-encoded  bytes before  bytes after\n"
        f"jpeg         3           0  {jpeg:>12}  {jpeg:>11}\n"
        f"png          2           0  {png:>12}  {png:>11}\n"
        f"total        5           0  {jpeg + png:>12}  {jpeg + png:>11}\n",
        "",
    )


def test_the_order_is_a_function_of_the_seed(photos):
    orders = []
    for arguments in (
        [],
        ["--seed", "0"],
        ["--shuffle", "--seed", "1"],
        ["--no-shuffle"],
        ["--jobs", "3"],
    ):
        prefix = f"out{len(orders)}/train"
        assert main(["from-images", "photos", prefix, *arguments]) == 0
        orders.append(names(records(f"{prefix}-*.tfrecord")))
    assert orders[0] == orders[1] == orders[4] == ["2.jpg", "1.jpg", "b.PNG", "a.png", "0.jpg"]
    assert orders[2] == ["0.jpg", "a.png", "b.PNG", "2.jpg", "1.jpg"]
    assert orders[3] == ["0.jpg", "1.jpg", "2.jpg", "a.png", "b.PNG"]


@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [
        (["--num-shards", "3"], "of-00003.tfrecord"),
        (["--max-shard-bytes", "1B"], "of-00005.tfrecord"),
        (["--max-shard-bytes", "1GB", "--compression", "gzip"], "of-00001.tfrecord.gz"),
        (["--num-shards", "2", "--compression", "ZLIB"], "of-00002.tfrecord.zlib"),
        ([], "of-00001.tfrecord"),
    ],
)
def test_shards(photos, arguments, suffix):
    assert main(["from-images", "photos", "out/train", *arguments]) == 0
    assert all(
        name.endswith((suffix, ".torch_index", "labels-train.txt")) for name in os.listdir("out")
    )
    assert sorted(names(records())) == ["0.jpg", "1.jpg", "2.jpg", "a.png", "b.PNG"]


def test_jpeg_quality_keeps_jpeg_and_alpha(photos, capsys):
    assert main(["from-images", "photos", "out/train", "--jpeg-quality", "90", "--no-shuffle"]) == 0
    examples = records()
    for number in range(3):
        assert examples[number]["image/encoded"] == [
            (photos / "cat" / f"{number}.jpg").read_bytes()
        ]
    assert examples[3]["image/format"] == [b"JPEG"]
    assert examples[3]["image/encoded"] == [encode_image(picture(seed=3), "jpeg", 90)]
    assert examples[4]["image/format"] == [b"PNG"]
    assert examples[4]["image/encoded"] == [(photos / "dog" / "deep" / "b.PNG").read_bytes()]
    text = capsys.readouterr().out
    (row,) = (line.split() for line in text.splitlines() if line.startswith("png"))
    before = sum((photos / "dog" / name).stat().st_size for name in ("a.png", "deep/b.PNG"))
    after = sum(len(example["image/encoded"][0]) for example in examples[3:])
    assert row == ["png", "2", "1", str(before), str(after)]
    assert "kept 1 image as they were: alpha\n" in text


def with_pillow(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def test_what_is_no_image_is_listed(photos, folder, capsys):
    whole = (photos / "cat" / "0.jpg").read_bytes()
    put(photos / "cat" / "cut.jpg", whole[:-40])
    put(photos / "cat" / "empty.jpg", b"")
    put(photos / "dog" / "notes \n.txt", b"just text")
    put(photos / "dog" / ".DS_Store", b"hidden")
    put(photos / ".git" / "x.jpg", whole)
    put(photos / "readme.txt", b"in no class")
    os.mkfifo(photos / "dog" / "pipe")
    (photos / "dog" / "zlink").symlink_to("nowhere")
    (photos / "empty").mkdir()
    assert main(["from-images", "photos", "out/train"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("wrote 5 records of 3 classes")
    lines = output.out.split("\n\n")[-1].splitlines()
    assert lines[0] == "skipped 5 files:"
    assert lines[1].startswith(
        "  photos/cat/cut.jpg: expected a whole JPEG image of 20 x 30 pixels, got "
    )
    assert lines[2:] == [
        "  photos/cat/empty.jpg: expected a JPEG, PNG, GIF, BMP or WebP image, got 0 bytes (an empty file)",
        "  photos/dog/notes \\n.txt: expected a JPEG, PNG, GIF, BMP or WebP image, got 9 bytes that look like text",
        "  photos/dog/pipe: expected a regular file, got a pipe, socket or device",
        "  photos/dog/zlink: No such file or directory",
    ]
    assert output.err == (
        "warning: skipped 1 file directly in the folder, without a class\nwarning: no images in class 2: empty\n"
    )
    assert len(records()) == 5
    assert (folder / "out" / "labels-train.txt").read_text() == "cat\ndog\nempty\n"


def test_a_folder_without_any_image_writes_nothing(folder, capsys):
    put(folder / "in" / "a" / "x.txt", b"text")
    assert main(["from-images", "in", "out/train"]) == 1
    assert capsys.readouterr().out.startswith(
        "wrote nothing: no image could be read\n\nskipped 1 file:\n"
    )
    assert not (folder / "out").exists()


@pytest.mark.parametrize("inside", [[], ["a", "b"]])
def test_an_empty_folder_is_wrong_use(folder, inside, capsys):
    (folder / "in").mkdir()
    for name in inside:
        (folder / "in" / name).mkdir()
    assert main(["from-images", "in", "out/train"]) == 2
    assert capsys.readouterr().err == (
        "tfrecord: in: expected sub-folders with images, one per class, such as in/cat/1.jpg, got "
        f"{len(inside)} empty ones, and 0 files without a class directly in the folder\n"
    )
    assert os.listdir() == ["in"]


def test_a_folder_of_images_without_classes_says_how_they_should_lie(folder, capsys):
    for number in range(2):
        put(folder / "in" / f"{number}.jpg", encode_image(picture(), "jpeg"))
    assert main(["from-images", "in", "out/train"]) == 2
    assert capsys.readouterr().err == (
        "tfrecord: in: expected sub-folders with images, one per class, such as in/cat/1.jpg, got 0 empty ones, and "
        "2 files without a class directly in the folder\n"
    )


def test_wrong_folders(folder, capsys):
    assert main(["from-images", "missing", "out"]) == 2
    assert capsys.readouterr().err == "tfrecord: missing: No such file or directory\n"
    put(folder / "file", b"")
    assert main(["from-images", "file", "out"]) == 2
    assert capsys.readouterr().err == "tfrecord: file: Not a directory\n"
    put(folder / "in" / "two\nlines" / "x.jpg", b"")
    assert main(["from-images", "in", "out"]) == 2
    assert "expected class names without line breaks, got 'two\\nlines'" in capsys.readouterr().err
    assert main(["from-images", "in", "out/"]) == 2
    assert (
        "OUTPUT_PREFIX must end in a name for the shards, such as out/train, got 'out/'"
        in capsys.readouterr().err
    )


def test_names_that_are_not_utf8_stay_as_they_are(folder, capsys):
    data = encode_image(picture(), "png")
    name = os.fsencode(folder) + b"/in/caf\xe9 bar"
    os.makedirs(name)
    with open(name + b"/\xff \xe9.png", "wb") as file:
        file.write(data)
    assert main(["from-images", "in", "out"]) == 0
    (example,) = records("out-*.tfrecord")
    assert example["image/class/text"] == [b"caf\xe9 bar"]
    assert example["image/filename"] == [b"\xff \xe9.png"]
    assert (folder / "labels-out.txt").read_bytes() == b"caf\xe9 bar\n"


def test_links_are_followed_but_not_in_circles(photos, folder):
    (photos / "cat" / "again").symlink_to(photos / "cat")
    (photos / "dog2").symlink_to(photos / "dog")
    assert main(["from-images", "photos", "out/train", "--no-shuffle"]) == 0
    assert [(example["image/class/text"][0], *names([example])) for example in records()] == [
        *[(b"cat", f"{number}.jpg") for number in range(3)],
        *[(name, file) for name in (b"dog", b"dog2") for file in ("a.png", "b.PNG")],
    ]


def test_another_set_of_shards_is_not_mixed_with(photos, folder, capsys):
    assert main(["from-images", "photos", "out/train", "--num-shards", "2"]) == 0
    capsys.readouterr()
    for arguments in ([], ["--num-shards", "3"], ["--num-shards", "2", "--compression", "GZIP"]):
        for force in ([], ["--force"]):
            assert main(["from-images", "photos", "out/train", *arguments, *force]) == 2
            assert capsys.readouterr().err == EXISTS
    assert main(["from-images", "photos", "out/test"]) == 0


def test_a_set_is_written_over_only_if_asked(photos, folder, capsys):
    arguments = ["from-images", "photos", "out/train", "--num-shards", "2"]
    assert main(arguments) == 0
    before = {path: path.read_bytes() for path in (folder / "out").glob("*train*")}
    capsys.readouterr()
    assert main([*arguments, "--seed", "1"]) == 2
    assert capsys.readouterr() == ("", EXISTS)
    assert {path: path.read_bytes() for path in (folder / "out").glob("*train*")} == before
    assert main([*arguments, "--seed", "1", "--force"]) == 0
    assert {path: path.read_bytes() for path in (folder / "out").glob("*train*")} != before
    assert main([*arguments, "--force"]) == 0
    assert {path: path.read_bytes() for path in (folder / "out").glob("*train*")} == before


@pytest.mark.parametrize("arguments", [["--num-shards", "2"], ["--max-shard-bytes", "1B"]])
@pytest.mark.parametrize("step", ["load_image", "image_size", "AtomicFile.put"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_or_a_full_disk_leaves_nothing(
    photos, folder, arguments, step, error, monkeypatch, capsys
):
    calls = []
    place = f"index_tools.from_images.{step}"
    real = resolve_name(place)

    def fail(*args, **options):
        calls.append(step)
        if len(calls) == 3:
            raise error("No space left")
        return real(*args, **options)

    monkeypatch.setattr(place, fail)
    skips = step == "load_image" and error is OSError  # of one image: that one is left out
    status = 0 if skips else 130 if error is KeyboardInterrupt else 2
    assert main(["from-images", "photos", "new/out/train", "--jobs", "1", *arguments]) == status
    if not skips:
        assert os.listdir() == ["photos"]
        assert (
            capsys.readouterr().err
            == f"tfrecord: {'interrupted' if status == 130 else 'No space left'}\n"
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_labels_that_cannot_appear_take_the_shards_with_them(photos, error, monkeypatch):
    real = os.replace

    def fail(source, target):
        if str(target).endswith("labels-train.txt"):
            raise error
        real(source, target)

    monkeypatch.setattr(os, "replace", fail)
    assert main(["from-images", "photos", "out/train", "--num-shards", "2"]) in (2, 130)
    assert os.listdir() == ["photos"]


def test_a_film_is_not_read_whole(photos, capsys):
    with (photos / "cat" / "film.mp4").open("wb") as file:
        file.write(b"\x00\x00\x00\x20ftypisom")
        file.truncate(1 << 40)
    assert main(["from-images", "photos", "out/train"]) == 0
    assert "that look like an AVIF, HEIC or MP4 file" in capsys.readouterr().out
