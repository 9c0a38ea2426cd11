"""`tfrecord gallery`: pages of records that are not trusted, and the sheet of pictures.

Covers index_tools/gallery.
"""

import html
import io
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from importlib import resources

import numpy as np
import pytest
import torch
from image_kinds import png_that_claims
from PIL import Image as PILImage
from rlds_episodes import write_episodes

from index_tools.gallery import Gallery, make_app
from index_tools.main import main
from torch_tfrecord import TFRecordWriter, encode_example, encode_image, tfds

SCRIPT = "<script>window.ran = 1</script>"
BREAKOUT = "\"><img src=x onerror='window.ran = 1'>"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def write(path, rows):
    with TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(row if isinstance(row, bytes) else encode_example(row))


def client(*paths, features=None, labels=None):
    return make_app(Gallery(paths, features, labels), "127.0.0.1").test_client()


def solid(color, height=30, width=40):
    picture = torch.tensor(color, dtype=torch.uint8)[:, None, None].expand(3, height, width)
    return encode_image(picture, "png")


def picture_of(answer):
    assert (answer.status_code, answer.content_type) == (200, "image/png")
    return PILImage.open(io.BytesIO(answer.data)).convert("RGB")


def cards(page):
    return [int(number) for number in re.findall(r"<p><b>(\d+)</b>", page.text)]


def texts(page):
    """What a browser shows: the page without its tags."""
    return html.unescape(re.sub("<[^>]*>", " ", page.text))


def write_colors(path="a.tfrecord", count=100):
    write(path, [{"image": solid((n, 0, 7)), "label": n % 3} for n in range(count)])


def test_a_page_has_a_thumbnail_and_a_link_for_each_position(folder):
    write_colors()
    (folder / "labels-a.txt").write_text("cat\ndog\nowl\n")
    (folder / "labels-b.txt").write_text("wrong\nwrong\nwrong\n")
    app = client("a.tfrecord")
    page = app.get("/")
    assert page.status_code == 200
    assert cards(page) == [*range(48)]
    assert "1 to 48 of 100" in texts(page)
    assert re.search(r"<b>4</b> 1 dog</p>", page.text)
    sources = re.findall('src="(/picture[^"]*)"', page.text)
    assert sources[5] == "/picture/5/0/320"
    for number in (0, 5, 47):
        picture = picture_of(app.get(sources[number]))
        assert picture.size == (40, 30)
        assert picture.getcolors() == [(1200, (number, 0, 7))]
    assert 'href="/record/5"' in page.text
    record = app.get("/record/5")
    assert record.status_code == 200
    assert "2 owl" in texts(record) and "png 40x30" in texts(record)
    assert 'rel="prev" href="/record/4"' in record.text
    assert 'rel="next" href="/record/6"' in record.text


def test_paging_and_positions():
    write_colors()
    app = client("a.tfrecord")
    assert cards(app.get("/?page=2")) == [*range(96, 100)]
    assert cards(app.get("/?position=50")) == [*range(48, 96)]
    for odd in ("page=99", "position=" + "9" * 50, "position=100000", "page=1e99"):
        assert cards(app.get(f"/?{odd}")) == [96, 97, 98, 99], odd
    for odd in ("page=-1", "page=x", "position=", "position=-5", "page=nan", "page=" + "9" * 5000):
        assert cards(app.get(f"/?{odd}"))[0] == 0, odd
    assert app.get("/record/100").status_code == 404
    assert app.get("/record/-1").status_code == 404
    assert app.get("/picture/0/99/320").status_code == 404
    assert app.get("/picture/0/0/99999").status_code == 404
    assert app.post("/").status_code == 405


def test_a_filter_by_a_kept_column():
    write_colors()
    app = client("a.tfrecord")
    missing = app.get("/?where=label%3D1")
    assert missing.status_code == 404
    assert "tfrecord index --columns label PATHS" in texts(missing)
    assert main(["index", "a.tfrecord", "--columns", "label"]) == 0
    app = client("a.tfrecord")
    page = app.get("/?where=label%3D1")
    assert cards(page) == [*range(1, 100, 3)]
    assert 'href="/record/4?where=label%3D1"' in page.text
    record = app.get("/record/4?where=label%3D1").text
    assert 'href="/record/1?where=label%3D1"' in record
    assert 'href="/record/7?where=label%3D1"' in record
    assert "no records" in texts(app.get("/?where=label%3D9"))
    assert app.get("/?where=label%3Dx").status_code == 404


def test_boxes_masks_texts_and_sounds_of_a_record():
    mask = torch.zeros(1, 60, 80, dtype=torch.uint8)
    mask[:, 40:] = 1
    row = {
        "image/encoded": solid((0, 0, 0), 60, 80),
        "image/segmentation": encode_image(mask, "png"),
        "caption": "a long text " * 100,
        "numbers": np.arange(50, dtype=np.float32),
    }
    for side, value in (("xmin", 0.25), ("xmax", 0.75), ("ymin", 0.1), ("ymax", 0.5)):
        row[f"image/object/bbox/{side}"] = [value]
    write("a.tfrecord", [row])
    app = client("a.tfrecord")
    page = app.get("/record/0")
    picture = picture_of(app.get("/picture/0/0/1280"))
    assert picture.getpixel((20, 20)) == (255, 51, 85)
    assert picture.getpixel((40, 20)) == (0, 0, 0)
    assert picture.getpixel((40, 50)) == (0, 120, 0)
    assert ("a long text " * 100).strip() in texts(page)
    assert page.text.count("<figure") == 3  # and the plot of the numbers
    assert "0, 1, 2, 3, 4, 5, 6, 7, ..." in texts(page)


@pytest.fixture
def hostile(folder):
    name = "x\"'<script>&lt;.tfrecord"
    rows = [
        {"text": SCRIPT, "label": 0},
        {SCRIPT: BREAKOUT, BREAKOUT: SCRIPT, "image": solid((1, 2, 3))},
        {"image/encoded": b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran = 1'/>"},
        {"image/encoded": png_that_claims(50_000)},
        {"image/encoded": solid((1, 2, 3))[:60]},
        {"bytes": b"\xff\xfe<b>", "control": "a\x1b[31m\u202e"},
        {"long": b"A" * 64_000_000},
        b"<b>not an Example</b>",
        {},
    ]
    write(folder / name, rows)
    (folder / "labels-x.txt").write_text(f"{SCRIPT}\n")
    return client(str(folder))


def test_nothing_of_a_record_is_html(hostile):
    pages = [hostile.get("/"), *(hostile.get(f"/record/{n}") for n in range(9))]
    pages += [hostile.get(f"/?where={SCRIPT}"), hostile.get(f"/?page={SCRIPT}")]
    for page in pages:
        assert len(page.data) < 30_000
        tags = re.findall(r"<(script|svg|img|b|i)\b([^>]*)>", page.text)
        for tag, attributes in tags:
            assert tag in ("script", "img", "b")
            assert not re.search(r"\bon\w+=", attributes)
            assert tag != "script" or attributes.startswith(' src="/static/gallery.js"')
            assert tag != "img" or re.search(' src="/picture/', attributes)
        assert "<script>" not in page.text and "&lt;script&gt;" in page.text
    assert SCRIPT in texts(pages[1]) and BREAKOUT.replace('"', '\\"') in texts(pages[2])
    assert "x\"'<script>&lt;.tfrecord" in texts(pages[1])
    assert "0xfffe3c623e (5 bytes)" in texts(pages[6])
    assert "\x1b" not in pages[6].text and "\u202e" not in pages[6].text
    assert "A" * 2000 + '..." (64.0 MB)' in texts(pages[7])
    assert "<b>not an Example</b>" in texts(pages[8])


def test_pictures_that_are_refused_say_so(hostile):
    for position in (3, 4):
        picture = picture_of(hostile.get(f"/picture/{position}/0/320"))
        assert picture.size == (320, 320)
        colors = {color for _, color in picture.getcolors(99999)}
        assert (228, 228, 224) in colors and (68, 68, 68) in colors
    assert "<img" not in hostile.get("/record/2").text  # SVG is text
    assert picture_of(hostile.get("/picture/1/0/320")).getpixel((0, 0)) == (1, 2, 3)


def test_every_answer_has_the_headers(hostile):
    urls = ["/", "/record/0", "/picture/1/0/64", "/static/gallery.css", "/static/gallery.js"]
    urls += ["/record/99", "/nothing", "/?where=x", "/static/../gallery.html"]
    for url in urls:
        answer = hostile.get(url)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, url
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; img-src 'self'; style-src 'self'; script-src")
        assert "unsafe" not in policy
        assert "Set-Cookie" not in answer.headers
        answer.close()


def test_another_host_and_another_origin_are_refused(hostile):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1]", ""):
        answer = hostile.get("/", headers={"Host": host})
        assert answer.status_code == 400, host
        assert "X-Frame-Options" in answer.headers
    for origin in ("http://evil.example", "null", "http://localhost:81", "https://localhost"):
        answer = hostile.get("/", headers={"Origin": origin})
        assert answer.status_code == 403, origin
    assert hostile.get("/", headers={"Origin": "http://localhost"}).status_code == 200
    assert hostile.get("/", headers={"Host": "127.0.0.1:8000"}).status_code == 200


def test_a_damaged_record_is_told_and_the_others_are_shown(folder):
    write_colors(count=3)
    data = bytearray((folder / "a.tfrecord").read_bytes())
    length = len(data) // 3
    data[length + 40] ^= 1
    (folder / "a.tfrecord").write_bytes(data)
    app = client("a.tfrecord")
    assert cards(app.get("/")) == [0, 1, 2]
    shown = texts(app.get("/record/1"))
    assert f"a.tfrecord: record 1 at byte {length}: corrupted record: expected payload" in shown
    assert picture_of(app.get("/picture/2/0/320")).getpixel((0, 0)) == (2, 0, 7)


def test_a_record_above_the_limit_is_not_read(folder, monkeypatch):
    write("a.tfrecord", [{"long": b"A" * 5000}, {"short": b"B"}])
    monkeypatch.setattr("index_tools.gallery._MOST_BYTES", 4000)
    app = client("a.tfrecord")
    assert "expected a record of at most 4000 bytes" in texts(app.get("/record/0"))
    assert '"B"' in texts(app.get("/record/1"))


def test_features_of_a_file(folder):
    write("a.tfrecord", [{"raw": bytes(range(100)) * 12, "name": "x"}, {"raw": b"", "name": "y"}])
    (folder / "f.py").write_text(
        "import torch\nfrom torch_tfrecord import RawTensor, Text\n"
        "features = {'raw': RawTensor((20, 20, 3), torch.uint8), 'name': Text()}\n"
    )
    app = client("a.tfrecord", features="f.py")
    picture = picture_of(app.get("/picture/0/0/320"))
    assert np.array_equal(
        np.asarray(picture).ravel(), np.frombuffer(bytes(range(100)) * 12, np.uint8)
    )
    # of a record that the features do not fit: what is stored, and why
    assert "raw" in texts(app.get("/record/1")) and "1200" in texts(app.get("/record/1"))


def test_a_tfds_folder_and_its_class_names(folder):
    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["a<b>"])}
    sample = {"image": np.full((20, 20, 3), 9, np.uint8), "label": 0}
    tfds.write("data", {"train": [sample]}, features, name="few", as_numpy_layout=True)
    app = client("data")
    assert "0 a<b>" in texts(app.get("/record/0"))
    assert picture_of(app.get("/picture/0/0/320")).getpixel((0, 0)) == (9, 9, 9)


def test_an_episode_is_a_strip_and_a_plot(folder):
    write_episodes("episodes", [12], num_shards=1)
    app = client("episodes")
    page = app.get("/")
    assert 'class="card wide"' in page.text
    sources = re.findall('src="(/picture[^"]*)"', page.text)
    strip = picture_of(app.get(sources[0]))
    assert strip.size == (240, 32)  # every second of 12 frames of 40 x 32
    assert 'class="plot"' in page.text and len(sources) == 2
    assert picture_of(app.get(sources[1])).size == (320, 320)


def test_the_sheet(folder, capsys):
    write_colors(count=20)
    (folder / "here.png").write_bytes(b"mine")
    assert main(["gallery", "a.tfrecord", "--png", "here.png"]) == 2
    assert capsys.readouterr().err == (
        "tfrecord: here.png: it is there; --force writes over a file\n"
    )
    assert (folder / "here.png").read_bytes() == b"mine"
    assert main(["gallery", "a.tfrecord", "--png", "here.png", "-n", "9", "--force"]) == 0
    sheet = PILImage.open("here.png").convert("RGB")
    assert sheet.size == (2400, 600)
    found = {color for _, color in sheet.getcolors(99999)}
    assert {(n, 0, 7) for n in range(9)} <= found
    assert (9, 0, 7) not in found


def test_wrong_use(folder, capsys, monkeypatch):
    write_colors(count=3)
    assert main(["gallery", "missing.tfrecord"]) == 2
    assert "missing.tfrecord: No such file" in capsys.readouterr().err
    (folder / "b.tfrecord").write_bytes(solid((1, 2, 3)))
    assert main(["gallery", "b.tfrecord"]) == 1
    told, end = capsys.readouterr().err.splitlines()
    assert told.startswith("bad: b.tfrecord: record 0 at byte 0: corrupted record: ")
    assert end == "there are no records to show"
    assert main(["gallery", "a.tfrecord", "--where", "label=1", "--no-browser"]) == 1
    assert "tfrecord index --columns label" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        assert main(["gallery", "a.tfrecord", "--port", port, "--no-browser"]) == 2
    assert "in use" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "werkzeug.serving", None)
    assert main(["gallery", "a.tfrecord", "--no-browser"]) == 2
    assert capsys.readouterr().err == (
        "tfrecord: the gallery needs the package flask: pip install flask, or all of its extra: "
        "pip install 'torch-tfrecord[tools]', in a clone pip install -e '.[tools]'\n"
    )


def test_the_pages_are_package_data():
    pages = resources.files("index_tools") / "pages"
    names = {path.name for path in pages.iterdir()} | {
        path.name for path in (pages / "static").iterdir()
    }
    assert {"base.html", "gallery.html", "record.html", "error.html"} <= names
    assert {"gallery.css", "gallery.js"} <= names


@pytest.mark.slow
@pytest.mark.daily
def test_the_server_until_ctrl_c(folder):
    write_colors(count=3)
    command = [sys.executable, "-m", "index_tools", "gallery", "a.tfrecord", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as server:
        line = server.stdout.readline()
        url = re.fullmatch(
            r"serving 3 records until Ctrl-C: (http://127\.0\.0\.1:\d+/)\?where=\n", line
        )[1]
        with urllib.request.urlopen(f"{url}picture/1/0/320") as answer:
            assert PILImage.open(io.BytesIO(answer.read())).convert("RGB").getpixel((0, 0))[0] == 1
        request = urllib.request.Request(url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            urllib.request.urlopen(request)
        refused.value.close()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (130, "tfrecord: interrupted\n")
