"""What our docstrings write otherwise than Griffe's Google style: `Example:` for one, `::` before a block."""

from typing import Any

import griffe

__all__ = ["Docstrings"]


class Docstrings(griffe.Extension):
    """Reads them as sections and as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring before it is parsed."""
        if obj.docstring:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            obj.docstring.value = text.replace("::\n\n", ":\n\n")
