"""What our docstrings write otherwise than Griffe's Google style: `Example:`, `::` before a block,
Sphinx's roles.
"""

import re
from typing import Any

import griffe

__all__ = ["Docstrings"]


class Docstrings(griffe.Extension):
    """Puts them in Griffe's words."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring before it is parsed."""
        if obj.docstring:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            text = re.sub(r":(?:class|func|meth|mod):(?=`)", "", text)
            obj.docstring.value = text.replace("::\n\n", ":\n\n")
