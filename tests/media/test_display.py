"""What a notebook and `show` draw of samples, batches and datasets.

Covers media/display.
"""

import base64
import io
import re
import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from torchvision import tv_tensors

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    Text,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    encode_image,
    make_dataloader,
    show,
)
from torch_tfrecord.media import Parts

RED = (255, 0, 0)


def solid(color, height=40, width=60):
    return torch.tensor(color, dtype=torch.uint8)[:, None, None].expand(3, height, width)


def by_name(sample):
    return {part.name: part for part in Parts.of(sample)}


def pixels(part, side=320):
    return np.asarray(part.draw(side).convert("RGB"))


@pytest.fixture
def dataset(tmp_path):
    with TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for number in range(6):
            picture = encode_image(solid((40 * number, 0, 0)), "png")
            row = {"image": picture, "label": number, "text": f"<b>{number}</b>"}
            writer.write(encode_example(row))
    features = {"image": Image(), "label": FixedLenFeature((), torch.int64), "text": Text()}
    return TFRecordDataset(str(tmp_path / "a.tfrecord"), features)


def thumbnails(html):
    found = re.findall('<img src="data:image/png;base64,([^"]*)">', html)
    return [PILImage.open(io.BytesIO(base64.b64decode(data, validate=True))) for data in found]


def test_a_dataset_and_a_batch_show_their_first_samples(dataset):
    batch = dataset.__getitems__([0, 1, 2, 3, 4])
    for value, title in (dataset, "TFRecordDataset(6 records"), (batch, "ColumnBatch(5 samples)"):
        html = value._repr_html_()
        assert html.startswith(f"<p>{title}")
        assert "<td>image<td>uint8 (3, 40, 60)<td><img" in html
        assert "<td>label<td>int64 ()<td>0<td>1<td>2<td>3<tr>" in html
        assert "&lt;b&gt;3&lt;/b&gt;" in html and "<b>" not in html
        colors = [picture.getpixel((5, 5)) for picture in thumbnails(html)]
        assert colors == [(0, 0, 0), (40, 0, 0), (80, 0, 0), (120, 0, 0)]


def test_looking_at_a_batch_does_not_change_it(dataset):
    batch, again = dataset.__getitems__([1, 2]), dataset.__getitems__([1, 2])
    batch._repr_html_()
    assert [sample["text"] for sample in batch] == [sample["text"] for sample in again]


def test_a_sample_of_a_batch_shows_itself(dataset):
    (sample, *_) = dataset.__getitems__([2, 3])
    assert type(sample).__name__ == "Sample"
    (picture,) = thumbnails(sample._repr_html_())
    assert picture.getpixel((0, 0)) == (80, 0, 0)


def test_samples_are_compared_by_the_names_of_features():
    # one has a picture where the other has none: their parts come in another order
    html_of = TFRecordDataset._repr_html_
    html = html_of([{"b": [], "a": b"x"}, {"b": encode_image(solid(RED), "png"), "a": b"y"}])
    assert html.index("<td>a<td>") < html.index("<td>b<td>")
    assert re.search("<td>a<td>bytes <td>b&#x27;x&#x27;<td>b&#x27;y&#x27;<tr><td>b<td>", html)


def test_text_keys_and_names_are_escaped():
    html = TFRecordDataset._repr_html_({"<script>1</script>": "<script>2</script>", "k": b'"><i>'})
    assert "<script" not in html and "<i>" not in html
    assert "&lt;script&gt;1" in html and "&lt;script&gt;2" in html


def test_boxes_in_four_lists_and_in_the_order_of_tfds_are_drawn_where_pillow_draws_them():
    picture = encode_image(torch.zeros(3, 100, 200, dtype=torch.uint8), "png")
    lists = {
        f"image/object/bbox/{side}": np.array([value], np.float32)
        for side, value in (("xmin", 0.1), ("ymin", 0.2), ("xmax", 0.6), ("ymax", 0.7))
    }
    tfds_order = {"objects/bbox": np.array([0.2, 0.1, 0.7, 0.6], np.float32)}
    box = torch.tensor([[20.0, 20.0, 120.0, 70.0]])
    made = tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=(100, 200))
    for boxes in (lists, tfds_order, {"objects": {"bbox": made}}):
        found = pixels(by_name({"image/encoded": picture, **boxes})["image/encoded"])
        rows, columns = np.nonzero(found.any(-1))
        assert (rows.min(), rows.max(), columns.min(), columns.max()) == pytest.approx(
            (20, 70, 20, 120), abs=1
        )
        assert tuple(found[20, 60]) == (255, 51, 85)
        assert not found[30:60, 40:100].any()


def test_what_only_has_the_name_of_a_box_leaves_the_picture_alone():
    odd = {"a/xmin": np.array([0.1, 0.2]), "bbox": b"text", "b/bbox": np.arange(5.0)}
    first = Parts.of({"image": encode_image(solid(RED), "png"), **odd})[0]
    assert (pixels(first) == RED).all()


def test_masks_are_painted_over_the_picture_of_their_size():
    mask = torch.zeros(1, 40, 60, dtype=torch.uint8)
    mask[:, :20] = 1
    values = {
        "other/mask": encode_image(torch.ones(1, 9, 9, dtype=torch.uint8), "png"),
        "segmentation": encode_image(mask, "png"),
        "image": encode_image(solid(RED), "png"),
    }
    first, *others = Parts.of(values)
    assert first.name == "image"
    found = pixels(first)
    assert {tuple(color) for color in found[:19].reshape(-1, 3)} == {(127, 120, 0)}
    assert {tuple(color) for color in found[21:].reshape(-1, 3)} == {RED}
    assert {part.name for part in others} == {"other/mask", "segmentation"}


def test_several_pictures_are_a_strip_and_come_after_a_single_one():
    colors = [(n, 255 - n, 0) for n in range(0, 240, 12)]
    frames = [encode_image(solid(color, 20, 20), "png") for color in colors]
    strip, label = Parts.of({"label": np.array([3]), "frames": frames})
    assert strip.name == "frames" and len(strip.frames) == 20
    found = pixels(strip)
    assert found.shape[:2] == (20, 140)  # every third one
    middles = [tuple(found[10, 10 + 20 * n]) for n in range(7)]
    assert middles == colors[::3]
    assert Parts([strip, label]).caption == "[3]"


def test_tensors_of_every_layout_become_pictures():
    planes = torch.arange(3 * 20 * 30, dtype=torch.uint8).reshape(3, 20, 30)
    expected = planes.permute(1, 2, 0).numpy()
    rows = {
        "chw": tv_tensors.Image(planes),
        "hwc": planes.permute(1, 2, 0),
        "rgba": torch.cat([planes, planes[:1]]),
        "batch": planes[None],
    }
    for name, part in by_name(rows).items():
        assert np.array_equal(pixels(part), expected), name
    gray = pixels(by_name({"gray": planes[:1]})["gray"])
    assert np.array_equal(gray, np.repeat(expected[..., :1], 3, -1))


def test_depth_and_normalised_pictures_go_from_black_to_white():
    depth = torch.linspace(-2.0, 3.0, 400).reshape(1, 20, 20)
    found = pixels(by_name({"depth": depth})["depth"])
    assert (found[0, 0, 0], found[-1, -1, 0]) == (0, 255)
    deep = torch.arange(400, dtype=torch.int32).reshape(1, 20, 20).to(torch.uint16) * 100
    found = pixels(by_name({"deep": encode_image(deep, "png")})["deep"])
    assert (found[0, 0, 0], found[-1, -1, 0]) == (0, 255)


def test_key_points_are_no_picture_and_jagged_tensors_are_told():
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    parts = by_name({"points": torch.ones(2, 3, 2), "jagged": jagged, "half": torch.ones(2).half()})
    assert not any(part.frames for part in parts.values())
    assert "NestedTensor" in parts["jagged"].text


def test_damaged_and_huge_pictures_become_a_note():
    damaged = encode_image(solid(RED), "png")[:50]
    huge = encode_image(torch.zeros(1, 6000, 6000, dtype=torch.uint8), "png")
    for data in (damaged, huge):
        (part,) = Parts.of({"image": data})
        assert part.draw(320).getpixel((319, 319)) == (228, 228, 224)
    assert not by_name({"image": b"<svg onload='x'></svg>"})["image"].frames


def wav(samples):
    data = np.asarray(samples, "<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    body = b"WAVE" + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_what_is_plotted():
    values = {
        "sound": [wav(range(200))],
        "cut sound": wav(range(200))[:60],
        "channels": torch.arange(200.0).reshape(2, 100),
        "few": np.arange(9),
        "zeros": np.zeros(50),
        "none": np.zeros(0),
        "one": torch.tensor(3.0),
    }
    series = {name: part.series for name, part in by_name(values).items()}
    assert np.array_equal(series["sound"], np.arange(200)[:, None])
    assert np.array_equal(series["channels"], np.arange(200.0).reshape(2, 100).T)
    assert [name for name, found in series.items() if found is None] == [
        "cut sound",
        "few",
        "zeros",
        "none",
        "one",
    ]
    found = pixels(by_name(values)["sound"])
    assert found.shape[:2] == (320, 320) and (found < 200).any()


def test_the_steps_of_an_rlds_record_are_lines():
    actions = np.arange(36, dtype=np.float32)
    values = {"steps/action": actions, "steps/is_first": np.eye(1, 12, dtype=np.int64)[0]}
    assert np.array_equal(by_name(values)["steps/action"].series, actions.reshape(12, 3))


def test_show_draws_a_sample(dataset):
    figure = show({**dataset[1], "price": "$5 and \\frac", "x": torch.arange(20.0)})
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["image", "x", "label", "text", "price"]
    assert np.array_equal(figure.axes[1].lines[0].get_ydata(), np.arange(20.0))
    drawn = figure.axes[0].images[0].get_array()
    assert drawn.shape == (40, 60, 3) and (drawn == (40, 0, 0)).all()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=20)  # a dollar sign is no formula
    assert PILImage.open(io.BytesIO(buffer.getvalue())).format == "PNG"


def test_show_draws_the_samples_of_a_batch(dataset):
    figure = show(dataset.__getitems__([1, 2, 3]))
    assert [axes.get_title() for axes in figure.axes] == ["1", "2", "3"]
    colors = [axes.images[0].get_array()[0, 0].tolist() for axes in figure.axes]
    assert colors == [[40, 0, 0], [80, 0, 0], [120, 0, 0]]
    assert len(show(dataset).axes) == 6


def test_show_draws_a_batch_of_columns(dataset):
    batch = next(iter(make_dataloader(dataset, batch_size=4)))
    assert type(batch) is dict
    image = show(batch).axes[0].images[0].get_array()
    assert image.shape == (40, 240, 3)


def test_show_says_what_is_missing(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib: pip install matplotlib, or .*\[tools\]'$"):
        show(dataset[0])


def test_samples_of_other_kinds():
    assert [part.name for part in Parts.of((torch.ones(2), {"a": 1}))] == ["0", "1/a"]
    assert Parts.of({}) == []
    assert len(show(torch.zeros(3, 20, 20, dtype=torch.uint8)).axes) == 1
