"""Write the whole public interface into docs/assistants.md, from the package itself.

    python docs/list_api.py

The sections, and which methods a class shows, are those of docs/reference; the signatures and sentences are
the code's. `tests/docs/test_docs_assistants.py` writes it again, and compares.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE = DOCS / "assistants.md"
PAGES = ("reading", "features", "writing", "parsing", "order", "images", "tfds", "errors")
BEGIN, END = "<!-- api -->\n", "<!-- /api -->\n"
WIDTH = 100


def resolve(path: str) -> object:
    """The object that a dotted name means."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = inspect.getattr_static(found, part, None) or getattr(found, part)
        return found
    raise ModuleNotFoundError(path)


def sentence(thing: object) -> str:
    """The first sentence of its docstring."""
    paragraph = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    first = re.match(r".+?\.(?= [A-Z`]|$)", paragraph)
    return (first[0] if first else paragraph).replace("``", "`")


def signature(name: str, thing: Any, is_made_by_us: bool) -> str:
    """How it is called: the names of its arguments, and their defaults."""
    if is_made_by_us or isinstance(thing, property) or inspect.ismodule(thing):
        return name
    if isinstance(thing, (classmethod, staticmethod)):
        thing = thing.__func__
    if inspect.isclass(thing) and thing.__init__ is not object.__init__:
        thing = thing.__init__
    found = inspect.signature(thing)
    kept = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in found.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return name + str(found.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def entry(name: str, thing: object, is_made_by_us: bool, indent: str) -> str:
    """A name with its signature, and its sentence below."""
    called = textwrap.fill(
        signature(name, thing, is_made_by_us),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
    said = textwrap.fill(
        sentence(thing),
        WIDTH,
        initial_indent=f"{indent}    # ",
        subsequent_indent=f"{indent}    # ",
    )
    return f"{called}\n{said}"


def section(page: str) -> str:
    """The names of a page of the reference."""
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    entries = []
    for path, options in re.findall(r"^::: (\S+)(?:\n    options: (.*))?", text, re.MULTILINE):
        thing, members = resolve(path), re.search(r"members: \[([^]]*)\]", options)
        is_made_by_us = "merge_init_into_class: false" in options
        name = path.removeprefix("torch_tfrecord.")
        if (
            "loading." in name or "error_log." in name
        ):  # functions return these; they are not imported
            name = name.rpartition(".")[2]
        entries.append(entry(name, thing, is_made_by_us, ""))
        for member in members[1].split(", ") if members else ():
            if inspect.ismodule(thing):
                if member[0].isupper():
                    entries.append(entry(f"{name}.{member}", getattr(thing, member), False, ""))
            else:
                method = inspect.getattr_static(thing, member)
                entries.append(entry(f".{member}", method, False, "    "))
    title = text.partition("\n")[0].removeprefix("# ")
    body = "\n".join(entries)
    return f"### {title}\n\n```\n{body}\n```\n"


def listed() -> str:
    """The page with the interface as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return (
        f"{before}{BEGIN}\n" + "\n".join(map(section, PAGES)) + f"\n{END}" + rest.partition(END)[2]
    )


if __name__ == "__main__":
    PAGE.write_text(listed(), encoding="utf-8")
