"""What the reference shows otherwise than the source has it.

In docstrings, Griffe's Google style says what ours write as `Example:`, `::` before a block, and
Sphinx's roles. In signatures, a type of ours that is only a name for others is shown as those, and
a default as its value, so that no private name is left.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from typing import Any, cast

import griffe

__all__ = ["Docstrings"]

_PACKAGES = ("torch_tfrecord.", "index_tools.")
# Explained in reference/types.md, to which signatures link: too long to stand in each of them.
_EXPLAINED = ("Paths", "RecordFeatures", "Split", "SupervisedKeys")


class Docstrings(griffe.Extension):
    """Puts docstrings in Griffe's words, and signatures in those of users."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring before it is parsed."""
        if obj.docstring:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            text = re.sub(r":(?:class|func|meth|mod):(?=`)", "", text)
            text = re.sub(r"\n *\.\.\. # doctest: \+SKIP$", "", text, flags=re.MULTILINE)
            obj.docstring.value = text.replace("::\n\n", ":\n\n")

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the signatures of a package when all of its names are known."""
        if f"{pkg.name}." in _PACKAGES:
            _change(pkg)


def _change(parent: griffe.Module | griffe.Class) -> None:
    for member in parent.members.values():
        if member.is_alias:
            continue
        if isinstance(member, griffe.Attribute):
            _drop_argument(parent, member)
            member.annotation = _shown(member.annotation)
            if isinstance(parent, griffe.Class):  # a field, whose value is an argument's default
                member.value = _shown(member.value)
        elif isinstance(member, griffe.Function):
            for function in (member, *(member.overloads or ())):
                function.returns = _shown(function.returns)
                for parameter in function.parameters:
                    parameter.annotation = _shown(parameter.annotation)
                    parameter.default = _shown(parameter.default)
        elif isinstance(member, (griffe.Module, griffe.Class)):
            _change(member)


def _drop_argument(parent: griffe.Module | griffe.Class, attribute: griffe.Attribute) -> None:
    """Take a field of a dataclass that is no argument, but one of its base's, from the arguments."""
    init = parent.members.get("__init__")
    is_no_argument = "init=False" in str(attribute.value)
    if isinstance(init, griffe.Function) and is_no_argument and attribute.name in init.parameters:
        del init.parameters[attribute.name]


def _shown(expression: Any) -> Any:
    """An expression without names that only stand for another expression."""
    if isinstance(expression, griffe.ExprName):
        return _meaning(expression)
    if isinstance(expression, list):
        return [_shown(one) for one in expression]
    if isinstance(expression, griffe.Expr) and not isinstance(expression, griffe.ExprAttribute):
        for field in fields(expression):
            if field.name != "parent":
                setattr(expression, field.name, _shown(getattr(expression, field.name)))
    return expression


def _meaning(name: griffe.ExprName) -> Any:
    named: Any
    try:
        named = name.resolved
        if named.is_alias:
            named = named.final_target
    except (griffe.GriffeError, KeyError, AttributeError):
        return name
    if not isinstance(named, griffe.Attribute) or not named.path.startswith(_PACKAGES):
        return name
    if named.name in _EXPLAINED or named.value is None:
        return name
    text = str(named.value)
    if text.startswith("TypeVar("):
        return "Self"
    if text[0] in "'\"" and "TypeAlias" in str(named.annotation):
        return _shown(
            griffe.get_expression(
                ast.parse(ast.literal_eval(text), mode="eval").body,
                parent=cast("griffe.Module", named.parent),
            )
        )
    return _shown(named.value)
