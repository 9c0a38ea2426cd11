"""How large the package is, how many doors its rooms have, and which words it uses too often: each figure has a ceiling
that is only ever lowered. A figure that falls well below its ceiling fails, too: write the new one here.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("torch_tfrecord", "index_tools")

SIZES = {"tokens": 281_210, "tokens with the compiled core": 314_770, "modules": 173}
PAST_DOORS = {"names": 130, "imports": 0}
# In 10,000 words of docstrings, comments and docs.
WORDS = {
    "holds": 3.2,
    "tells": 0.8,
    "lies": 0.2,
    "stands": 0.7,
    "behind": 0.6,
    "whoever": 0.1,
    "shall": 0.1,
    "anew": 0.1,
    "Of at the start": 1,
    "What at the start": 1.8,
}

QUIET = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def paths(*suffixes):
    found = [path for name in FOLDERS for path in (ROOT / name).rglob("*")]
    return [path for path in found if path.suffix in suffixes]


def docstrings(tree):
    """The nodes of the docstrings of a module."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def tokens_of(path):
    """Those of Python but for comments, docstrings, line ends and indents: how lines are laid out and documented counts
    nothing.
    """
    text = path.read_text(encoding="utf-8")
    skipped = {(node.lineno, node.col_offset) for node in docstrings(ast.parse(text))}
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type not in QUIET and not (token.type == tokenize.STRING and token.start in skipped)
        for token in found
    )


def compiled_tokens_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".h":
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    else:
        text = re.sub(r'(?m)""".*?"""', "", text, flags=re.DOTALL)
        text = re.sub(r"(?m)#.*$", "", text)
    return len(re.findall(r"\w+|[^\w\s]", text))


def check(found, ceilings, slack):
    wrong = {
        name: (number, ceilings[name])
        for name, number in found.items()
        if not (1 - slack) * ceilings[name] <= number <= ceilings[name]
    }
    assert wrong == {}, "found, and the ceiling"


def test_sizes():
    python = paths(".py")
    tokens = sum(map(tokens_of, python))
    compiled = sum(map(compiled_tokens_of, paths(".pyx", ".pxd", ".h")))
    check(
        {
            "tokens": tokens,
            "tokens with the compiled core": tokens + compiled,
            "modules": len(python),
        },
        SIZES,
        0.02,
    )


def test_doors():
    """What modules of other rooms import from inside a room, not from its ``__init__``."""
    modules = {}
    for path in paths(".py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    rooms = {name for name, path in modules.items() if path.name == "__init__.py"}
    rooms -= {"torch_tfrecord", "torch_tfrecord.native"}

    def room_of(name):
        parts = name.split(".")
        return next((room for n in (2, 1) if (room := ".".join(parts[:n])) in rooms), None)

    names, past = defaultdict(set), Counter()
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            room = room_of(node.module)
            if room is None or room == room_of(module):
                continue
            for alias in node.names:
                is_module = f"{node.module}.{alias.name}" in modules
                past[room] += is_module or node.module != room
                if not is_module:
                    names[room].add(alias.name)
    check({"names": sum(map(len, names.values())), "imports": past.total()}, PAST_DOORS, 0.05)


PATTERNS = {
    "holds": r"\b(hold|holds|held)\b",
    "tells": r"\b(tell|tells|told)\b",
    "lies": r"\blies?\b",
    "stands": r"\bstands?\b",
    "behind": r"\bbehind\b",
    "whoever": r"\bwhoever\b",
    "shall": r"\bshall\b",
    "anew": r"\banew\b",
    "Of at the start": r"(?:^|[.:] )Of\b",
    "What at the start": r"^What\b",
}


@pytest.mark.slow
def test_words():
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    for path in paths(".py"):
        text = path.read_text(encoding="utf-8")
        texts += [node.value for node in docstrings(ast.parse(text))]
        texts += [
            token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        ]
    num_words = sum(len(text.split()) for text in texts)
    found = {
        name: round(
            1e4
            * sum(len(re.findall(pattern, text, re.IGNORECASE | re.MULTILINE)) for text in texts)
            / num_words,
            1,
        )
        for name, pattern in PATTERNS.items()
    }
    check(found, WORDS, 1)  # a few words make much of a figure near 0
