"""The viewer of docs/viewer.md: its reading part under node, by what TensorFlow, protobuf and Python gave; the page in
headless Chromium, by what `tfrecord show --json` prints.

Needs the node that playwright brings along, or else skips; some need Chromium, too, in `CHROMIUM` or on the path.
"""

import base64
import contextlib
import hashlib
import io
import json
import random
import re
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import browser_path, open_browser
from golden_cases import CASES
from image_kinds import png_that_claims
from odd_server import odd_server
from PIL import Image as PILImage
from viewer_page import DOCS, NODE, in_node, write_page
from wire_examples import length_delimited

from index_tools.main import main
from torch_tfrecord import TFRecordWriter, build_index, encode_example, encode_image

DATA = Path(__file__).parents[1] / "data"
SCRIPT = DOCS / "site" / "viewer.js"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package"),
    pytest.mark.skipif(NODE is None, reason="playwright is not installed"),
]
in_browser = pytest.mark.skipif(
    browser_path() is None, reason="playwright or Chromium is not installed"
)

MARKUP = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>"


def base64_of(data):
    return base64.b64encode(data).decode()


def framed(*records):
    with tempfile.TemporaryDirectory() as folder:
        with TFRecordWriter(f"{folder}/a") as writer:
            for record in records:
                writer.write(record)
        return Path(folder, "a").read_bytes()


# The reading part, in node.

READ = """
const {createHash} = require("crypto");
const readAll = async (bytes) => {
  const raw = {size: bytes.length, read: async (begin, end) => bytes.slice(begin, end)};
  const source = await V.openBytes(raw), found = [];
  for (let at = 0; typeof at === "number"; at = await V.follow(source, found.at(-1))) {
    const record = await V.readRecord(source, at, 1 << 26);
    if (!record) break;
    found.push(record);
  }
  return found.map(({at, length, payload, error, isChecked}) =>
    ({at, length, error, isChecked, sha256: createHash("sha256").update(payload).digest("hex")}));
};
Promise.all(input.map((text) => readAll(unbase64(text)))).then((all) => console.log(JSON.stringify(all)));
"""


def read_all(*files):
    return in_node(READ, [base64_of(data) for data in files])


def test_the_script_is_short_and_makes_no_markup():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 600
    words = "innerHTML|outerHTML|insertAdjacentHTML|document.write|eval|Function|srcdoc|import|WebSocket|sendBeacon"
    assert [line for line in lines if re.search(rf"\b({words})\b\s*[=(]", line)] == []


def test_records_are_those_that_tensorflow_wrote():
    facts = sorted((DATA / "records").glob("*.json"))
    facts = [path for path in facts if path.name not in ("damaged.json", "framing.json")]
    assert len(facts) == 24
    found = read_all(*(path.with_suffix("").read_bytes() for path in facts))
    for path, records in zip(facts, found, strict=True):
        expected = json.loads(path.read_text())["records"]
        assert len(records) == len(expected), path
        for record, fact in zip(records, expected, strict=True):
            assert (record["error"], record["isChecked"]) == ("", True), path
            assert (record["at"], record["length"]) == (fact["offset"], fact["length"]), path
            assert record["sha256"].startswith(fact["sha256"]), path


def test_damage_is_found_where_tensorflow_finds_it():
    cases = json.loads((DATA / "records" / "damaged.json").read_text())["cases"]
    found = in_node(READ, [case["file"] for case in cases])
    num_errors = 0
    for case, records in zip(cases, found, strict=True):
        name, expected = case["name"], case["tensorflow"]
        if "_as_" in name:
            continue  # TensorFlow was told a wrong compression, which is detected here
        good = 0
        while good < len(records) and not records[good]["error"]:
            good += 1
        hashes = [record["sha256"] for record in records[:good]]
        assert hashes[: expected["records_read"]] == expected["sha256"], name
        if expected["error"]:
            num_errors += 1
            assert name == "gzip_trailing_zeros" or good < len(records), (
                name
            )  # node passes zeros over
            assert "gzip" in name or len(hashes) == expected["records_read"], name
        elif good < len(records):  # TensorFlow is silent about a file that ends within a header
            assert re.match(
                "truncated header|damaged (gzip|deflate) data", records[good]["error"]
            ), name
    assert num_errors > 150


def test_a_damaged_record_does_not_hide_the_others():
    records = [b"a" * 40, b"b" * 50, b"c" * 60, b"d" * 70]
    data = framed(*records)
    hashes = [hashlib.sha256(record).hexdigest() for record in records]
    places = {56 + 3: "length checksum", 56 + 9: "length checksum", 56 + 20: "payload checksum"}
    for place, what in places.items():
        damaged = bytearray(data)
        damaged[place] ^= 1
        (found,) = read_all(damaged)
        assert [record["sha256"] for record in found if not record["error"]] == [
            hashes[0],
            *hashes[2:],
        ]
        (bad,) = [record for record in found if record["error"]]
        assert (bad["at"], bad["error"].partition(" 0x")[0]) == (
            56,
            f"corrupted record: expected {what}",
        )
    (found,) = read_all(data[:-30])
    assert found[-1]["error"] == (
        "truncated record: expected 86 bytes (payload 70), got 56 up to the end"
    )
    # A length that no file has, with the right checksum of it.
    length = struct.pack("<Q", (1 << 63) + 5)
    checksum = framed(length)[-4:]
    (found,) = read_all(data[:56] + length + checksum + data[56:])
    assert [record["error"] for record in found] == [
        "",
        f"truncated record: expected {(1 << 63) + 21} bytes (payload {(1 << 63) + 5}), got 240 up to the end",
        *3 * [""],
    ]


PARSE = """
const name = {"": null, bytes: "bytes_list", float32: "float_list", int64: "int64_list"};
const base64 = (bytes) => Buffer.from(bytes).toString("base64");
const flat = (feature) => [name[feature.kind], feature.kind === "float32"
  ? feature.chunks.map((chunk) => Buffer.from(chunk).toString("hex")).join("")
  : V.values(feature, 1e9).map((value) => typeof value === "bigint" ? String(value) : base64(value.bytes))];
const shown = (map, show) => Object.fromEntries([...map].map(([key, value]) => [key, show(value)]));
console.log(JSON.stringify(input.map((text) => {
  const message = V.parseMessage(unbase64(text));
  return message && [shown(message.context, flat), shown(message.lists, (steps) => steps.map(flat))];
})));
"""


def test_values_are_those_that_protobuf_read_of_the_golden_cases():
    def flat(feature):
        kind, values = feature["kind"], feature["values"]
        if kind == "int64_list":
            return [kind, [str(value) for value in values]]
        if kind == "float_list":
            return [kind, "".join(struct.pack("<I", int(bits, 16)).hex() for bits in values)]
        return [kind, values]

    given, expected, views = [], [], []
    for case in CASES:
        for serialized, view in zip(case["serialized"], case["protobuf"], strict=True):
            lists = view.get("feature_lists", {})
            context = view.get("context", view.get("features", {}))
            given.append(serialized)
            views.append(view)
            expected.append(
                [
                    {key: flat(feature) for key, feature in context.items()},
                    {key: [flat(step) for step in steps] for key, steps in lists.items()},
                ]
                if view["parses"]
                else None
            )
    found = in_node(PARSE, given)
    assert len(found) > 1300
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one and other and "feature_lists" not in views[number]:  # protobuf read an Example
            one[1] = {}
        assert one == other, given[number]


def test_floats_are_printed_as_python_does():
    bits = random.Random(0).sample(range(1 << 32), 5000)
    numbers = np.array(bits, np.uint32).view(np.float32)
    ties = np.array([1048576.5, 1048577.5, -272441.25, 272441.75, 0.0, -0.0, 1e7, 1e-5], np.float32)
    numbers = np.concatenate([numbers, ties, ties * 2.0**-20, np.arange(300, dtype=np.float32) / 8])
    found = in_node(
        "const feature = {kind: 'float32', count: input[1], chunks: [unbase64(input[0])]};"
        "console.log(JSON.stringify(V.describe(feature, {numbers: 1e6})));",
        [base64_of(numbers.tobytes()), len(numbers)],
    )
    assert found.split(", ") == [f"{number:.7g}" for number in numbers.tolist()]


DESCRIBE = """
console.log(JSON.stringify(input.map((text) => {
  const bytes = unbase64(text), {kind, rows} = V.describeRecord(bytes);
  const all = V.describeBytes({bytes, size: bytes.length}, V.SHORT);
  return [kind, rows.map((row) => [row.name, row.kind, String(row.count), V.describe(row.feature, V.SHORT)]), all];
})));
"""


def shown_records(capsys, *arguments):
    capsys.readouterr()
    assert main(["show", "--json", "--no-features", *map(str, arguments)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def assert_as_shown(records, expected, file=""):
    """Kind, rows and bytes of records as `tfrecord show --json` prints them."""
    assert len(records) == len(expected), file
    for (kind, rows, text), shown in zip(records, expected, strict=True):
        features = sorted(map(tuple, shown["features"]))
        if kind == "no Example":
            assert not shown["kind"].startswith(("Example", "Sequence")), file
            assert text == features[0][0], (file, shown["position"])
        else:
            found = sorted(tuple(cell.strip() for cell in row) for row in rows)
            assert (kind, found) == (shown["kind"], features), (file, shown["position"])


def picture(format, height=5, width=7):
    image = PILImage.frombytes("RGB", (width, height), bytes(range(3 * height * width)))
    image.save(buffer := io.BytesIO(), format)
    return buffer.getvalue()


def test_bytes_are_described_as_tfrecord_show_does(tmp_path, capsys):
    values = [picture(format) for format in ("png", "jpeg", "gif", "bmp", "webp")]
    values += [b"", b"text", b'a\\b"c\n', "é ü 猫 🐈".encode() * 20, b"\xff\xfe<b>", b"\x1b[31m"]
    values += ["\u202etxt.exe".encode(), "\ufeffx".encode(), b"<svg onload=alert(1)>", b"BM text"]
    values += [bytes(range(200)), b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"x" * 61]
    values += [b"y" * 60, b"\xed\xa0\x80", b"\xc0\x80", b"z" * 999_950, MARKUP.encode()]
    rows = [{"value": value} for value in values]
    rows += [{MARKUP: 1, "__proto__": [1.5, -0.0], "constructor": b"x", "\u202ex\x00": [2**63 - 1]}]
    rows += [
        {},
        {"n": list(range(-20, 20))},
        {"empty": np.zeros(0, np.int64), "b": np.zeros(0, np.bytes_)},
    ]
    with TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for row in rows:
            writer.write(encode_example(row))
        for value in values[5:]:
            writer.write(value)
    expected = shown_records(capsys, "-n", 1000, tmp_path / "a.tfrecord")
    payloads = [encode_example(row) for row in rows] + values[5:]
    found = in_node(DESCRIBE, [base64_of(payload) for payload in payloads])
    assert_as_shown(found, expected)


def test_sizes_of_pictures():
    found = [("webp", {"lossless": True}), ("webp", {"quality": 50}), ("jpeg", {})]
    found += [("jpeg", {"progressive": True}), ("png", {}), ("gif", {}), ("bmp", {})]
    pictures = []
    for (format, options), (height, width) in zip(
        found, [(300, 2), (9, 500), (1, 1), (4, 3), (8, 1000), (2, 3), (5, 6)], strict=True
    ):
        PILImage.new("RGB", (width, height)).save(buffer := io.BytesIO(), format, **options)
        pictures.append((buffer.getvalue(), f"{format} {width}x{height}"))
    alpha = PILImage.new("RGBA", (70, 80))
    alpha.save(buffer := io.BytesIO(), "webp", exif=b"Exif\0\0")  # VP8X
    pictures.append((buffer.getvalue(), "webp 70x80"))
    shown = in_node(DESCRIBE, [base64_of(data) for data, _ in pictures])
    assert [text.partition(",")[0] for _, _, text in shown] == [text for _, text in pictures]


def test_a_message_of_which_only_the_first_bytes_are_there(tmp_path):
    image = encode_image(torch.zeros(3, 90, 80, dtype=torch.uint8), "bmp")
    payload = encode_example({"a": [2**62, 5], "b": "first", "image": image})
    script = DESCRIBE.replace("V.describeRecord(bytes)", "V.describeRecord(bytes, 21789)")
    assert len(payload) < 21789
    payload = encode_example(
        {"a": [2**62, 5], "b": "first", "image": image + bytes(21789 - len(payload))}
    )
    assert len(payload) == 21789
    for most in (300, 5000, 21788):
        ((kind, rows, _),) = in_node(script, [base64_of(payload[:most])])
        assert kind.startswith("Example")
        for row in rows:
            assert row in (
                ["a", "int64", "2", "4611686018427387904, 5"],
                ["b", "bytes", "1", '"first"'],
                ["image", "bytes", "1", f"bmp 80x90, {len(image) / 1000:.1f} KB"],
            )
    assert len(rows) == 3


REMOTE = """
(async () => {
  const raw = new V.UrlBytes(input.url), found = [];
  try {
    for (const [begin, end] of input.ranges) found.push(Buffer.from(await raw.read(begin, end)).toString("base64"));
  } catch (error) { found.push(error.message); }
  console.log(JSON.stringify([found, raw.size === Infinity ? null : raw.size]));
})();
"""
BODY = bytes(range(250)) * 4


def read_remote(answer, *ranges):
    with odd_server(answer) as server:
        found, size = in_node(REMOTE, {"url": f"{server.url}/a.tfrecord", "ranges": ranges})
        asked = [(each.command, each.headers.get("Range", "")) for each in server.requests]
    return found, size, asked


def send_range(request, told=True, extra=()):
    """As a bucket does; with `told` what it sends, the total included."""
    begin, end = request.asked(len(BODY))
    if request.command == "HEAD":
        request.send(200, dict(extra), BODY)
    elif begin >= len(BODY):
        request.send(
            416, {**dict(extra), "Content-Range": f"bytes */{len(BODY)}"} if told else dict(extra)
        )
    else:
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(BODY)}"} if told else {}
        request.send(206, {**headers, **dict(extra)}, BODY[begin:end])


def test_ranges_of_an_address():
    parts = [base64_of(BODY[10:20]), base64_of(BODY[990:]), ""]
    ranges = [10, 20], [990, 1100], [2000, 2001]
    found, size, asked = read_remote(send_range, *ranges)
    assert (found, size) == (parts, 1000)
    assert asked == [("GET", "bytes=10-19"), ("GET", "bytes=990-1099")]
    # where the range is not told: the size by HEAD, or where the bytes end
    found, size, asked = read_remote(lambda request: send_range(request, told=False), *ranges)
    assert (found, size) == (parts, 1000)
    assert [command for command, _ in asked] == ["GET", "HEAD", "GET"]

    def no_head(request):
        if request.command == "HEAD":
            request.send(403, {})
        else:
            send_range(request, told=False)

    found, size, asked = read_remote(no_head, *ranges)
    assert (found, size) == (parts, 1000)
    assert [command for command, _ in asked] == ["GET", "HEAD", "GET"]
    found, size, _ = read_remote(no_head, [10, 20], [2000, 2001])
    assert (found, size) == ([*parts[:1], ""], 2000)  # at most


def test_answers_that_are_no_ranges():
    found, size, asked = read_remote(
        lambda request: request.send(200, {}, BODY), [10, 20], [990, 1100]
    )
    assert (found, size, len(asked)) == ([base64_of(BODY[10:20]), base64_of(BODY[990:])], 1000, 1)
    endless = (bytes(1 << 20) for _ in range(80))
    found, _, _ = read_remote(lambda request: request.send(200, {}, endless), [10, 20])
    assert found[0].startswith("expected the status 206, got 200: the server ignores `Range`")
    found, _, _ = read_remote(lambda request: request.send(404, {}), [10, 20])
    assert found == ["expected the status 206 (a range of the file), got 404"]
    other = {"Content-Range": "bytes 0-9/1000"}
    found, _, _ = read_remote(lambda request: request.send(206, other, BODY[:10]), [10, 20])
    assert found == ["expected bytes from 10 on, got bytes 0-9/1000"]
    sizes = iter([1000, 999])

    def changed(request):
        begin, end = request.asked(1000)
        told = {"Content-Range": f"bytes {begin}-{end - 1}/{next(sizes)}"}
        request.send(206, told, BODY[begin:end])

    found, _, _ = read_remote(changed, [10, 20], [30, 40])
    assert found[1] == "expected a file of 1000 bytes, it now has 999"
    short = {"Content-Range": "bytes 10-19/1000"}
    found, _, _ = read_remote(lambda request: request.send(206, short, BODY[:4]), [10, 20])
    assert found == ["expected 10 bytes, got 4"]
    with contextlib.closing(__import__("socket").create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    found, _ = in_node(REMOTE, {"url": f"http://127.0.0.1:{port}/a", "ranges": [[0, 1]]})
    assert found[0].startswith("no answer that this page may read")


# The page, in Chromium.

RECORDS = """() => [...document.querySelectorAll("#tfrecord-viewer section")].map((section) => ({
  title: section.querySelector(".title").textContent,
  kind: section.querySelector(".kind").textContent,
  rows: [...section.querySelectorAll("tr")].map((row) =>
    [...row.children].map((cell) => (cell.querySelector(".values") ?? cell).textContent)),
  text: section.querySelector(":scope > .values")?.textContent ?? "",
  error: section.querySelector("p.error")?.textContent ?? "",
  pictures: [...section.querySelectorAll("img")].map((image) => [image.naturalWidth, image.naturalHeight]),
}))"""
IDLE = """() => document.querySelector("#tfrecord-viewer .bar > span > button").hidden &&
  [...document.images].every((image) => image.complete)"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


class Viewer:
    """The page, with what it asked of the network."""

    def __init__(self, page, address):
        self.page, self.address = page, address
        self.requests, self.problems = [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.goto(address)
        self.requests.clear()

    def open(self, *paths):
        self.page.set_input_files("input[type=file]", [str(path) for path in paths])
        return self.records()

    def go(self, fragment):
        self.page.evaluate("(fragment) => { location.hash = fragment }", fragment)
        return self.records()

    def click(self, text):
        self.page.get_by_role("button", name=text, exact=True).first.click()
        return self.records()

    def fill(self, name, value):
        self.page.fill(f"input[name={name}]", str(value))
        self.page.press(f"input[name={name}]", "Enter")
        return self.records()

    def records(self):
        self.page.wait_for_timeout(20)  # until what was clicked has begun
        self.page.wait_for_function(IDLE)
        return self.page.evaluate(RECORDS)

    @property
    def status(self):
        return self.page.text_content("[role=status]")


@pytest.fixture
def viewer(browser, tmp_path):
    (tmp_path / "page").mkdir()
    page = browser.new_page()
    yield (found := Viewer(page, write_page(tmp_path / "page").as_uri()))
    page.close()
    assert found.problems == []


def write_golden(folder):
    """Files of messages in TensorFlow's golden cases: SequenceExamples, and unusual wire forms."""
    sequences = [
        case for case in CASES if "context_features" in case and "batch" not in case["name"]
    ]
    odd = [case for case in CASES if case["group"] == "wire"]
    for name, cases in (("sequences", sequences), ("wire", odd)):
        with TFRecordWriter(f"{folder}/{name}") as writer:
            for case in cases[:: len(cases) // 12]:
                writer.write(base64.b64decode(case["serialized"][0]))
    return folder / "sequences", folder / "wire"


@in_browser
def test_the_page_shows_what_tfrecord_show_prints(viewer, tmp_path, capsys):
    records = DATA / "records"
    files = [
        *(records / f"{name}.tfrecord" for name in ("plain", "empty", "one_record", "zeros")),
        *(records / f"{name}.tfrecord" for name in ("skewed_sizes", "looks_like_tfrecord")),
        records / "concatenated.tfrecord",
        records / "zlib.tfrecord.zlib",
        *(records / f"{name}.tfrecord.gz" for name in ("gzip", "thousand_small_gzip")),
        records / "gzip_multi_member_split_inside_record.tfrecord.gz",
        records / "gzip_empty_member_inside.tfrecord.gz",
        DATA / "ports" / "imagenet-00000-of-00002.tfrecord",
        DATA / "ports" / "text-00000-of-00002.tfrecord",
        next((DATA / "tfds" / "drawings").rglob("*.tfrecord-00000-*")),
        *write_golden(tmp_path),
    ]
    num_records = num_pictures = 0
    for path in files:
        pages = [viewer.open(path)]
        while not viewer.page.is_disabled("text=next →") and len(pages) < 2:
            pages.append(viewer.click("next →"))
        if len(pages) > 1:
            assert viewer.click("← previous") == pages[0], path
        found = [one for page in pages for one in page]
        expected = shown_records(capsys, "-n", len(found) or 1, path)
        assert_as_shown([(one["kind"], one["rows"], one["text"]) for one in found], expected, path)
        for one, shown in zip(found, expected, strict=True):
            assert one["title"].startswith(
                f"record {shown['position']}, byte {shown['offset']}, {shown['length']} byte"
            )
        num_records += len(found)
        num_pictures += sum(len(one["pictures"]) for one in found)
    assert num_records > 150
    assert num_pictures > 10
    assert [url for url in viewer.requests if not url.startswith("blob:")] == []


@pytest.fixture
def hostile(tmp_path):
    """As in tests/cli/test_cli_gallery.py, and what only a page that parses by itself meets."""
    rows = [
        {"text": MARKUP, "label": 0},
        {MARKUP: MARKUP, "__proto__": 5, "</script>": 6, "image": picture("png")},
        {"svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran = 1'/>"},
        {"bomb": png_that_claims(30_000)},
        {"cut": picture("png")[:20], "broken": picture("png")[:33] + b"\0" * 40},
        {"bytes": b"\xff\xfe<b>", "control": "a\x1b[31m\u202e", "\u202exe": 1},
        {"long": b"A" * 300_000},
        MARKUP.encode(),
        {},
        {f"{number:05}": number for number in range(5000)},
    ]
    path = tmp_path / "x\"'<img src=x onerror=alert(1)>&lt;.tfrecord"
    with TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(row if isinstance(row, bytes) else encode_example(row))
        writer.write(b"\x4b" * 50_000 + b"\x4c" * 50_000)  # groups in groups
        writer.write(length_delimited(1, length_delimited(1, b"")[:1] + b"\xff" * 9 + b"\x01"))
    return path


@in_browser
def test_nothing_of_a_record_is_interpreted(viewer, hostile):
    page = viewer.page
    found = viewer.open(hostile)
    assert len(found) == 10
    assert found[0]["rows"][1] == [
        "text",
        "bytes",
        "1",
        f'"{MARKUP[:60]}..." ({len(MARKUP)} bytes)',
    ]
    rows = {row[0]: row[3] for row in found[1]["rows"]}
    assert rows["__proto__"] == "5" and rows["</script>"] == "6"
    assert rows[MARKUP] == f'"{MARKUP[:60]}..." ({len(MARKUP)} bytes)'
    assert found[1]["pictures"] == [[7, 5]]
    assert found[2]["rows"][0][3].startswith('"<svg xmlns=') and not found[2]["pictures"]
    assert found[3]["rows"][0][3].startswith("png 30000x30000") and not found[3]["pictures"]
    assert page.get_by_text("too many pixels to draw: 30000x30000").count() == 1
    assert found[4]["rows"][1][3] == "png (damaged), 20 bytes"
    assert page.get_by_text("does not decode", exact=True).count() == 1  # the broken one
    rows = {row[0]: row[3] for row in found[5]["rows"]}
    assert rows["bytes"] == "0xfffe3c623e (5 bytes)"
    assert rows["\\u202exe"] == "1"
    assert rows["control"] == "0x611b5b33316de280ae (9 bytes)"
    assert found[6]["rows"][0][3] == f'"{"A" * 60}..." (300.0 KB)'
    assert found[7]["kind"] == "no Example" and found[7]["text"].startswith('"<img src=x')
    assert found[8]["kind"] == "Example, 0 features"
    assert len(found[9]["rows"]) == 300
    assert page.get_by_text("4700 more features are not shown").count() == 1
    text = page.inner_text("#tfrecord-viewer")
    assert "\u202e" not in text and "\x1b" not in text
    while (more := page.get_by_role("button", name="more", exact=True)).count():
        more.first.click()
    found = viewer.records()
    assert f'"{MARKUP}"' in [row[3] for row in found[0]["rows"]]
    last = viewer.click("next →")
    assert [one["kind"] for one in last] == ["no Example", "no Example"]
    assert page.evaluate(
        "() => [typeof window.ran, document.querySelectorAll('svg, script').length]"
    ) == [
        "undefined",
        1,
    ]
    assert page.evaluate("() => Object.keys(Object.prototype)") == []
    assert [url for url in viewer.requests if not url.startswith("blob:")] == []


@pytest.fixture
def long_file(tmp_path):
    """A hundred records: of every ten, one of 300 KB."""
    path = tmp_path / "long.tfrecord"
    with TFRecordWriter(str(path)) as writer:
        for number in range(100):
            row = {"id": number}
            if number % 10 == 5:
                row["zeros"] = bytes(300_000)
            writer.write(encode_example(row))
    return path


@in_browser
def test_long_records_and_places(viewer, long_file):
    def ids(found):
        return [int(row[3]) for one in found for row in one["rows"] if row[0] == "id"]

    page = viewer.page
    found = viewer.open(long_file)
    assert ids(found) == [*range(10)]
    note = page.get_by_text(
        "The first 16.4 KB of 300.0 KB are shown, the payload's checksum was not checked."
    )
    assert note.count() == 1
    viewer.click("read all and check it")
    assert note.count() == 0
    assert ids(viewer.click("next →")) == [*range(10, 20)]
    assert ids(viewer.fill("record", 73)) == [*range(73, 83)]
    assert ids(viewer.click("← previous")) == [*range(63, 73)]
    assert ids(viewer.fill("record", 97)) == [97, 98, 99]
    assert page.is_disabled("text=next →")
    assert ids(viewer.fill("record", 3)) == [*range(3, 13)]
    assert ids(viewer.click("← previous")) == [0, 1, 2]
    assert page.is_disabled("text=← previous")
    viewer.fill("record", 100)
    assert viewer.status == "expected a record below 100, got 100"
    offsets = build_index(long_file).offsets.tolist()
    found = viewer.fill("byte", offsets[40] - 5)
    assert ids(found) == [*range(40, 50)]
    assert found[0]["title"].startswith(f"record, byte {offsets[40]}, ")
    viewer.fill("byte", 10**9)
    assert viewer.status == "no record begins at byte 1000000000 or behind it"
    damaged = bytearray(long_file.read_bytes())
    damaged[offsets[5] + 200_000] ^= 1
    long_file.with_name("damaged").write_bytes(damaged)
    viewer.open(long_file.with_name("damaged"))
    found = viewer.click("read all and check it")
    assert re.fullmatch(
        rf"damaged: record 5 at byte {offsets[5]}: corrupted record: expected payload checksum 0x\w{{8}}, got "
        r"0x\w{8} \(\d+ bytes\)",
        found[5]["error"],
    )
    assert ids(found) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


@in_browser
def test_indexes_dropped_beside_the_file(viewer, long_file, tmp_path):
    index = build_index(long_file)
    index.save(tmp_path / "index.safetensors")
    index.to_tfrecord2idx(tmp_path / "long.tfrecord.idx")
    for name in ("index.safetensors", "long.tfrecord.idx"):
        assert len(viewer.open(long_file, tmp_path / name)) == 10
        assert "100 records, by " in viewer.page.inner_text("#tfrecord-viewer")
        found = viewer.fill("record", 61)
        assert found[0]["title"].startswith(f"record 61, byte {index.offsets[61]}, ")
        assert (
            viewer.page.evaluate(
                "() => Number(document.querySelector('section td:nth-of-type(3)').textContent)"
            )
            == 61
        )
        viewer.fill("record", 100)
        assert viewer.status == "expected a record below 100, got 100"
    (tmp_path / "bad.idx").write_text("x")
    viewer.open(long_file, tmp_path / "bad.idx")
    assert viewer.status == "bad.idx: expected an index: lines of offset and size, or safetensors"
    (tmp_path / "wrong.idx").write_text("0 5\n7 5\n")
    viewer.open(long_file, tmp_path / "wrong.idx")
    viewer.fill("record", 1)
    assert viewer.status == "the index is of another file: no record at byte 7"


@in_browser
def test_addresses(viewer, long_file):
    body = long_file.read_bytes()
    offsets = build_index(long_file).offsets.tolist()
    cors = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Range"}
    exposed = {**cors, "Access-Control-Expose-Headers": "Content-Range"}

    def answer(request):
        begin, end = request.asked(len(body))
        headers = {"/open": exposed, "/hidden": cors}.get(request.path.partition("?")[0], {})
        if request.command == "OPTIONS":
            request.send(204, headers)
        elif request.command == "HEAD":
            request.send(200, headers, body)
        elif request.path == "/whole":
            request.send(200, cors, body)
        elif request.path == "/missing":
            request.send(404, cors)
        else:
            told = {"Content-Range": f"bytes {begin}-{end - 1}/{len(body)}"}
            request.send(206, {**headers, **told}, body[begin:end])

    page = viewer.page
    with odd_server(answer) as server:
        for path in ("open?a=b&c=%20d", "hidden"):
            url = f"{server.url}/{path}"
            found = viewer.fill("url", url)
            assert [one["rows"][0][3] for one in found] == [str(number) for number in range(10)]
            assert f"{len(body) / 1e6:.1f} MB" in page.inner_text("#tfrecord-viewer")
            sent = [each for each in server.requests if each.command == "GET"]
            assert (
                sum(end - begin for begin, end in (each.asked(len(body)) for each in sent))
                < 500_000
            )
            for each in server.requests:
                assert {"Cookie", "Referer"} & {*each.headers} == set()
            server.requests.clear()
        viewer.page.goto("about:blank")
        viewer.page.goto(f"{viewer.address}#url={server.url}/open&record=40")
        assert viewer.records()[0]["title"].startswith(f"record 40, byte {offsets[40]}, ")
        viewer.click("next →")
        assert page.evaluate("() => location.hash") == (
            f"#url={server.url.replace(':', '%3A').replace('/', '%2F')}%2Fopen&record=50"
        )
        assert viewer.go(f"url={server.url}/open&byte={offsets[62]}")[0]["title"].startswith(
            f"record, byte {offsets[62]}, "
        )
        assert len(viewer.go(f"url={server.url}/whole")) == 10
        assert len(viewer.go(f"url={server.url}/missing")) == 0
        assert viewer.status == "expected the status 206 (a range of the file), got 404"
        viewer.go(f"url={server.url}/closed")
        assert "does not allow other sites to read it (CORS)" in viewer.status
        viewer.go("url=javascript:alert(1)&record=1")
        assert viewer.status == "expected an address that begins with https:// or http://"
        origin = server.url
    assert {url for url in viewer.requests if not url.startswith((origin, "blob:", "file:"))} <= {
        "about:blank"
    }


@in_browser
def test_a_file_is_dropped_and_a_walk_is_cancelled(viewer, tmp_path):
    path = tmp_path / "many.tfrecord"
    record = framed(encode_example({"id": 5}))
    path.write_bytes(record * 400_000)
    viewer.open(path)
    viewer.page.fill("input[name=record]", "399999")
    viewer.page.press("input[name=record]", "Enter")
    viewer.page.wait_for_function(
        "() => /^passed record/.test(document.querySelector('[role=status]').textContent)"
    )
    viewer.click("cancel")
    assert viewer.status == "cancelled"
    assert len(viewer.fill("record", 1000)) == 10
    viewer.page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "dropped.tfrecord"));
          window.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
        }""",
        list(record),
    )
    (one,) = viewer.records()
    assert one["rows"] == [["id", "int64", "1", "5"]]
    assert "dropped.tfrecord" in viewer.page.inner_text("#tfrecord-viewer")
