"""``tfrecord gallery``: records as people look at them, on a sheet of pictures or in the browser."""

from __future__ import annotations

import io
import logging
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from index_tools._features import load_features, open_dataset
from index_tools._outputs import check_outputs
from index_tools._terminal import Verb, data_files, escape, integer
from index_tools.show import describe_bytes, describe_values
from torch_tfrecord import TFRecordError, tfds
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.files import AtomicFile
from torch_tfrecord.media import Parts
from torch_tfrecord.shown import printable, shown_value
from torch_tfrecord.tables import FoundRecord

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["GALLERY", "Gallery", "make_app"]

_LINES = 10  # so many errors are printed
_MOST_BYTES = 1 << 28  # the largest record, and its decoded values
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_DESCRIPTION = """\
Shows pictures with their boxes and masks, labels with the names of their classes, text, numbers, and
plots of sounds, of long lists, and of the steps of RLDS episodes beside a strip of their frames. One
PATH alone may be the folder of a TFDS data set. Builds indexes where there are none.

Without --png, serves pages to a browser on this machine until you end it by Ctrl-C: 48 records on each,
with a link for every position, and a filter by a column that the index keeps (`tfrecord index
--columns label`). Records are not trusted: the pages show text as text, and pictures that were decoded
within limits and drawn anew. Requests by another host name or from another site are refused.

The names of labels are those of TFDS, of --labels, or of labels-*.txt beside the files.

examples:
  tfrecord gallery data/
  tfrecord gallery 'data/train-*' --where label=3 --port 8000 --no-browser
  tfrecord gallery data/ --png sheet.png -n 100"""


class Gallery:
    """A data set to look at, record by record; several threads may use it.

    Args:
        paths: Files, or one TFDS folder.
        features: A file of code that assigns features; None to show records as they are stored.
        labels: A file of class names; None for the one beside the files.

    Attributes:
        dataset: Its records.
    """

    def __init__(self, paths: Sequence[str], features: str | None, labels: str | None) -> None:
        self._tree: Any = {}
        if Path(paths[0], "dataset_info.json").exists():
            self._tree, self.dataset = tfds.info(paths[0]).features, tfds.load(paths[0], "all")
        else:
            specs = load_features(features, paths) if features else None
            self.dataset = open_dataset(
                data_files(paths), specs, max_batch_bytes=_MOST_BYTES, on_error="skip"
            )
        # the names of the shards are those of their labels, too
        first = Path(self.dataset.files[0])
        found = [Path(labels)] if labels else first.parent.glob("labels-*.txt")
        own = [path for path in found if labels or first.match(f"{path.stem[7:]}*")]
        self._labels = own[0].read_text("utf-8").splitlines() if own else []

    def positions(self, where: str) -> Sequence[int]:
        """The positions of the records that a filter selects, such as "label=3"; "" for all.

        Raises:
            IndexMismatchError: The index has no such column.
            ValueError: The column has numbers, and the value is none.
        """
        if not where:
            return range(len(self.dataset))
        name, _, value = where.partition("=")
        kept = self.dataset._kept(name)
        return [*self.dataset.find(name, kept.parse(value, name))]

    def parts(self, position: int) -> Parts:
        """The parts of a record; if it cannot be read, why."""
        sample: dict[str, Any] = {}
        try:
            number = self.dataset._absolute(position)
            if self.dataset._record_files.table.find_one(number)[-1] > _MOST_BYTES:
                raise TFRecordError(f"expected a record of at most {_MOST_BYTES} bytes")
            sample = {"record": self.dataset.raw(position)}
            context, lists = FoundRecord("", position, 0, sample["record"]).decode()
            sample = context | lists or sample
            if self.dataset.features and not self._tree:
                sample = self.dataset[position]
        except TFRecordError as error:
            sample |= {"error": str(error).encode()}
        return Parts.of(sample, self._describe)

    def _describe(self, name: str, value: Any) -> str:
        names = self._labels if "label" in name else ()
        with suppress(AttributeError, KeyError):
            feature = self._tree[name]
            names = getattr(feature, "feature", feature).names or names
        if isinstance(value, bytes):
            return describe_bytes(value, 2000)
        known = []
        if isinstance(value, np.ndarray):
            value = value.ravel()
            known = [names[int(number)] for number in value[:8] if 0 <= number < len(names)]
        with suppress(TypeError, ValueError):  # other than arrays, and lists of bytes
            return " ".join([describe_values(value), *known])
        return shown_value(value)


def make_app(gallery: Gallery, host: str) -> Flask:
    """The pages of a gallery, for requests by this host name, or those of this machine."""
    from flask import Flask, Response, abort, render_template, request

    app = Flask(__name__, template_folder="pages", static_folder="pages/static")
    app.config["TRUSTED_HOSTS"] = [host, "localhost", "127.0.0.1"]
    app.jinja_env.globals.update(gallery=gallery, printable=printable)
    few = threading.Semaphore(2)  # each record or picture may take hundreds of megabytes

    @app.before_request
    def refuse_others() -> None:
        own = request.host_url[:-1]
        if request.headers.get("Origin", own) != own:
            abort(403)

    @app.after_request
    def protect(response: Response) -> Response:
        response.headers.update(_HEADERS)
        return response

    @app.errorhandler(IndexError)
    @app.errorhandler(TFRecordError)
    @app.errorhandler(ValueError)
    def tell(error: Exception) -> tuple[str, int]:
        return render_template("error.html", error=error), 404

    @app.get("/")
    @app.get("/record/<int:position>")
    def page(position: int | None = None) -> str:
        with few:
            return render_template(
                f"{'gallery' if position is None else 'record'}.html",
                found=gallery.positions(request.args.get("where", "")),
                position=position,
            )

    @app.get("/picture/<int:position>/<int:number>/<int(min=64, max=1280):side>")
    def picture(position: int, number: int, side: int) -> Response:
        with few:
            drawn = gallery.parts(position)[number].png(side)
        return Response(drawn, mimetype="image/png")

    return app


def _run(
    paths: list[str],
    features: str | None,
    labels: str | None,
    where: str,
    png: str | None,
    n: int,
    force: bool,
    host: str,
    port: int,
    no_browser: bool,
) -> int:
    check_outputs([png] if png else [], force)
    gallery = Gallery(paths, features, labels)
    found = gallery.positions(where)
    errors = gallery.dataset.report.errors
    for error in errors[:_LINES]:
        print(f"bad: {escape(error)}", file=sys.stderr)
    if not found:
        print("there are no records to show", file=sys.stderr)
        return 1 if errors else 2
    if png:
        cells = Parts(
            parts[0]._replace(name=f"{position} {parts.caption}")
            for position in found[:n]
            for parts in [gallery.parts(position)]
        )
        buffer = io.BytesIO()
        cells.figure(8).savefig(buffer)
        AtomicFile.save(png, buffer.getvalue())
        return 0
    with needs_extra("the gallery", "tools", "flask"):
        from werkzeug.serving import make_server
    logging.getLogger("werkzeug").setLevel("ERROR")
    with socket.create_server((host, port)) as listener:
        server = make_server(
            host, port, make_app(gallery, host), threaded=True, fd=listener.fileno()
        )
        url = f"http://{host}:{server.port}/?where={quote(where)}"
        print(f"serving {len(found)} records until Ctrl-C: {url}", flush=True)
        if not no_browser:
            webbrowser.open(url)
        server.serve_forever()
    raise KeyboardInterrupt  # which the server has caught


GALLERY = Verb(
    _DESCRIPTION,
    _run,
    "paths --force",
    {
        "--features": {
            "metavar": "FILE.py",
            "help": "code that assigns `features`, to read records with; not for TFDS",
        },
        "--labels": {"help": "file of the names of the classes, one per line"},
        "--where": {
            "default": "",
            "help": "only records with a value of a kept column, as label=3",
        },
        "--png": {"help": "file to write a sheet of pictures to, instead of serving"},
        "-n": {
            "type": integer(1, 500),
            "default": 48,
            "help": "records on the sheet (default: %(default)s)",
        },
        "--host": {"default": "127.0.0.1", "help": "address to serve at (default: %(default)s)"},
        "--port": {"type": integer(0, 65535), "default": 0, "help": "default: any free one"},
        "--no-browser": {"action": "store_true", "help": "do not open a browser"},
    },
)
