"""Which tests know only public names: the contract suite, ``pytest -m contract``.

A test belongs to it when nothing that it uses, fixtures and helpers of this folder included, comes
from a private module, is a private attribute, or is patched by the name of a private module. Such
tests stay as they are while the house behind the public names is redrawn.
"""

import ast
import functools
import re
from pathlib import Path

import torch_tfrecord

TESTS = Path(__file__).parents[1]
PUBLIC_MODULES = {"torch_tfrecord", "torch_tfrecord.tfds", "index_tools.main"}
OURS = ("torch_tfrecord", "index_tools")
_PRIVATE_TEXT = re.compile(r"^(torch_tfrecord|index_tools)\.\w+(\.\w+)*$")


@functools.cache
def contract_tests(path: Path) -> frozenset[str]:
    """The names of the tests of a file that know only public names."""
    names = _names(path)
    always = [name for name, uses in names.items() if "autouse" in uses or name == "pytestmark"]
    return frozenset(
        name
        for name in names
        if name.startswith("test") and not any(_is_private(path, part) for part in (name, *always))
    )


def _is_private(path: Path, name: str) -> bool:
    seen, waiting = set(), [(path, name)]
    while waiting:
        file, used = waiting.pop()
        if (file, used) in seen:
            continue
        seen.add((file, used))
        if used == "private!":
            return True
        if other := _imports(file).get(used):
            if other == ("private!", ""):
                return True
            waiting.append(other)
        waiting += [(file, deeper) for deeper in _names(file).get(used, ())]
    return False


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _names(path: Path) -> dict[str, frozenset[str]]:
    """What each name of a module's outermost level uses: names, and ``private!``."""
    found: dict[str, frozenset[str]] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                part.id for target in targets for part in ast.walk(target) if hasattr(part, "id")
            ]
        else:
            continue
        uses = frozenset(_uses(node))
        for name in names:
            found[name] = found.get(name, frozenset()) | uses
    return found


def _uses(node: ast.AST) -> list[str]:
    used = []
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            used.append(part.id)
        elif isinstance(part, ast.arg):
            used.append(part.arg)  # perhaps a fixture
        elif isinstance(part, ast.keyword):
            used.append(part.arg or "")
        elif isinstance(part, ast.Attribute):
            used += ["private!"] * bool(re.match(r"_[a-z]", part.attr))
        elif isinstance(part, ast.ImportFrom | ast.Import):
            used += ["private!"] * bool(_private_names(part))
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            text = part.value
            if _PRIVATE_TEXT.match(text) and not _is_public(text) and " " not in text:
                used.append("private!")
            elif re.fullmatch(r"[a-z_][a-z0-9_]*", text):
                used.append(text)  # of usefixtures, getfixturevalue
    return used


def _is_public(text: str) -> bool:
    module, _, name = text.rpartition(".")
    return text in PUBLIC_MODULES or (module == "torch_tfrecord" and name in torch_tfrecord.__all__)


def _private_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """What an import takes from a private module, by the names that it gives."""
    if isinstance(node, ast.Import):
        return [
            alias.asname or alias.name
            for alias in node.names
            if alias.name.split(".")[0] in OURS and alias.name not in {*PUBLIC_MODULES, *OURS}
        ]
    module = node.module or ""
    if module.split(".")[0] not in OURS:
        return []
    if module == "torch_tfrecord":
        public = {*torch_tfrecord.__all__, "__version__", "tfds"}
    elif module == "torch_tfrecord.tfds":
        public = {*torch_tfrecord.tfds.__all__}
    else:
        public = {"main"} if module in ("index_tools", "index_tools.main") else set()
    return [alias.asname or alias.name for alias in node.names if alias.name not in public]


@functools.cache
def _imports(path: Path) -> dict[str, tuple[Path | str, str]]:
    """Where names of a module come from: another file of the tests, or a private module."""
    found: dict[str, tuple[Path | str, str]] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= dict.fromkeys(_private_names(node), ("private!", ""))
        if isinstance(node, ast.ImportFrom):
            for folder in (path.parent, TESTS, TESTS / "support"):
                other = folder / f"{node.module}.py"
                if other.is_file():
                    found |= {
                        alias.asname or alias.name: (other, alias.name) for alias in node.names
                    }
                    break
    return found
