"""The viewer of docs/viewer.md: its reading part under node, and its page."""

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["DOCS", "NODE", "in_node", "write_page"]

DOCS = Path(__file__).parents[2] / "docs"


def _node() -> str | None:
    """The Node that comes with playwright: older ones lose what was decompressed before damage."""
    with contextlib.suppress(ImportError):
        import playwright

        bundled = Path(playwright.__file__).parent / "driver" / "node"
        if bundled.is_file():
            return str(bundled)
    return None


NODE = _node()

_LOAD = """
const V = require(process.argv[1]);
const input = JSON.parse(require("fs").readFileSync(0));
const unbase64 = (text) => new Uint8Array(Buffer.from(text, "base64"));
"""


def in_node(script: str, value: Any) -> Any:
    """What a script prints as JSON; it has the viewer as `V`, the value as `input`, `unbase64`."""
    command = [NODE, "-e", _LOAD + script, str(DOCS / "site" / "viewer.js")]
    done = subprocess.run(
        command, input=json.dumps(value), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_page(folder: Path) -> Path:
    """The viewer's part of docs/viewer.md as a page of its own, with its script and its style."""
    text = (DOCS / "viewer.md").read_text(encoding="utf-8")
    (part,) = re.findall(r"^<link .*?</script>$", text, re.DOTALL | re.MULTILINE)
    (folder / "site").mkdir(exist_ok=True)
    for name in ("viewer.js", "viewer.css"):
        shutil.copy(DOCS / "site" / name, folder / "site" / name)
    page = folder / "viewer.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><title>viewer</title>\n{part}\n")
    return page
