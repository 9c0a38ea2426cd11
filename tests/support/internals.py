"""What modules use of other packages that these do not document, found in the source."""

import ast
import importlib
import inspect
import re

OURS = ("torch_tfrecord", "index_tools")
# Not documented, or only as what others use, though their names do not say so.
UNDOCUMENTED = (
    "inspect.currentframe",
    "inspect.stack",
    *(
        f"multiprocessing.{name}"
        for name in ("context", "forkserver", "popen_", "reduction", "resource_", "spawn")
    ),
    "multiprocessing.util",
    "torch.multiprocessing.reductions",
)
DOCUMENTED = {"os._exit", "_asdict", "_fields", "_make", "_replace"}  # the others are named tuples'
OF_CALLERS = {"f_builtins", "f_globals", "f_locals"}
LOOKS_UP = {"attrgetter", "delattr", "getattr", "hasattr", "setattr"}
# Looked up in what may be ours or not.
OUR_NAMES = {
    *(
        "_block",
        "_block_starts",
        "_check_state",
        "_draws_at_random",
        "_error_logs",
        "_inner_batches",
        "_iterate",
        "_load_samples",
        "_makes_objects",
    ),
    *("_needs_salt", "_record_files", "_record_lengths", "_record_places", "_row"),
}
OF_TENSORS = {"_indices", "_lengths", "_offsets", "_ragged_idx", "_values"}


def is_private(name):
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_set_by_force(call):
    function = call.func
    return (
        getattr(function, "attr", "") == "__setattr__"
        and getattr(function.value, "id", "") == "object"
    )


def names_defined(trees):
    """All names that some modules define."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def internals(name, tree, defined):
    """The internals of other packages that a module uses.

    A name of a module is given in full (``torch._C``); an attribute of an object without the object
    (``._workers``); what is looked up by a text that is put together, with ``*``.

    Args:
        name: The module's name; it is imported, for its classes' bases.
        tree: Its syntax tree.
        defined: All names that modules of ours define; others are not ours.
    """
    reader = _Reader(set(defined))
    reader.visit(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            reader.read_class(node, getattr(importlib.import_module(name), node.name))
    return reader.found


def internals_in_c(text):
    """Those of Python that compiled code uses."""
    return set(re.findall(r"\b_Py\w+", text))


class _Reader(ast.NodeVisitor):
    def __init__(self, defined):
        self.defined = defined
        self.found = set()
        self.origins = {}  # {name in the module: full name}, of what is imported from others
        self.texts = {}  # of the module's constants

    def visit_Import(self, node):
        for alias in node.names:
            self.bind(
                alias.name,
                alias.asname or alias.name.partition(".")[0],
                is_root=alias.asname is None,
            )

    def visit_ImportFrom(self, node):
        for alias in node.names:
            self.bind(f"{node.module}.{alias.name}", alias.asname or alias.name)

    def bind(self, origin, name, is_root=False):
        root = origin.partition(".")[0]
        if root not in (*OURS, "__future__"):
            self.origins[name] = root if is_root else origin
            self.note(origin)

    def note(self, full):
        """Note a full name if it, or the package that it is in, is private."""
        if full.startswith(UNDOCUMENTED) or (
            any(map(is_private, full.split("."))) and full not in DOCUMENTED
        ):
            self.found.add(full)

    def visit_Assign(self, node):
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
            self.texts[node.targets[0].id] = node.value.value
        self.generic_visit(node)

    def full_name(self, node):
        """``torch._C`` for that attribute of the module; None for one of an object."""
        if isinstance(node, ast.Attribute):
            before = self.full_name(node.value)
            return before and f"{before}.{node.attr}"
        return self.origins.get(node.id) if isinstance(node, ast.Name) else None

    def visit_Attribute(self, node):
        full = self.full_name(node)
        if full is not None:
            if is_private(node.attr) or full.startswith(UNDOCUMENTED):
                self.note(full)
        elif node.attr in OF_CALLERS:
            self.found.add(f".{node.attr}")
        elif is_private(node.attr) and node.attr not in DOCUMENTED:
            is_like_ours = node.attr in self.defined and (
                is_self(node.value) or node.attr not in OF_TENSORS
            )
            if not is_like_ours:
                self.found.add(f".{node.attr}")
        self.generic_visit(node)

    def visit_Call(self, node):
        function = getattr(node.func, "id", getattr(node.func, "attr", None))
        for argument in node.args if function in LOOKS_UP else ():
            text = self.text_of(argument)
            if is_private(text) and text not in DOCUMENTED | OUR_NAMES:
                of = self.full_name(node.args[0]) or ""
                self.found.add(f"{of}.{text}")
        if is_set_by_force(node) and not is_self(node.args[0]):
            name = getattr(node.args[1], "value", None)
            if name is not None and name not in self.defined:
                self.found.add(f"object.__setattr__({name!r})")
        self.generic_visit(node)

    def visit_keyword(self, node):
        if node.arg is not None and is_private(node.arg) and node.arg not in self.defined:
            self.found.add(f"{node.arg}=")
        self.generic_visit(node)

    def text_of(self, node):
        if isinstance(node, ast.JoinedStr):
            return "".join(
                part.value if isinstance(part, ast.Constant) else "*" for part in node.values
            )
        value = (
            self.texts.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        )
        return value if isinstance(value, str) else ""

    def read_class(self, node, kind):
        """What a class uses of its bases in torch, and sets in spite of them."""
        bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "torch"]
        if not bases:
            return
        source = "\n".join(map(inspect.getsource, bases))
        theirs = set(re.findall(r"(?:\bself\.|\bdef )(_\w+)", source))
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and is_self(part.value):
                used = part.attr
            else:
                used = getattr(part, "name", "") if part in node.body else ""
            if is_private(used) and used in theirs:
                self.found.add(f".{used}")
            if isinstance(part, ast.Call) and is_set_by_force(part):
                self.found.add(f"object.__setattr__({ast.unparse(part.args[1])})")
