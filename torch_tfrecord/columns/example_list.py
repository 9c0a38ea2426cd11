"""What to read from a record that holds a context and a list of Examples, as TF-Ranking's do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch_tfrecord.arguments import at_least, one_of, true_or_false
from torch_tfrecord.columns.feature import Feature, copy_mappings

__all__ = ["ExampleListFeatures"]


@dataclass(frozen=True)
class ExampleListFeatures:
    """What to read from an ExampleListWithContext (TF-Ranking's ELWC); pass it to a dataset as
    ``features``.

    Each sample is ``(context, examples)``, two dicts of values. A feature of the examples has one
    more dimension than its spec says, the list's: [n, ...], in a batch [B, *, ...], jagged. Give
    ``list_size`` for lists of one length: [list_size, ...], in a batch [B, list_size, ...]. Padding
    is what an empty Example gives: ``default_value``, or no values. The values are those of
    ``tfr.data.parse_from_example_list``.

    Args:
        context_features: Output name -> spec, for the context; a record without a context has an
            empty one.
        example_features: Output name -> spec, for each Example of the list: any spec but
            SparseFeature.
        list_size: Number of Examples of every list: longer ones are cut, shorter ones padded. None
            keeps all.
        size_feature_name: Name, among the examples' features, of the number of Examples in the
            record: int64, also if the list was cut.
        mask_feature_name: Name, among the examples' features, of a mask: bool, True for Examples of
            the record, False for padding.
        shuffle_examples: Shuffle each list before it is cut, in another order in each epoch;
            ``parse_example`` always gives the same order.
        format: ``"elwc"``, or ``"eie"`` for Examples whose features ``serialized_context`` and
            ``serialized_examples`` hold serialized Examples.

    Raises:
        TypeError: A mapping or an option has another type.
        ValueError: ``example_features`` is empty, an option is out of range, or a name is there
            twice.

    Example:
        >>> from torch_tfrecord.columns.lists import FixedLenFeature
        >>> spec = ExampleListFeatures({}, {"label": FixedLenFeature((), torch.float32, -1.0)}, list_size=10)
    """

    context_features: Mapping[str, Feature] | None
    example_features: Mapping[str, Feature]
    list_size: int | None = field(default=None, kw_only=True)
    size_feature_name: str | None = field(default=None, kw_only=True)
    mask_feature_name: str | None = field(default=None, kw_only=True)
    shuffle_examples: bool = field(default=False, kw_only=True)
    format: Literal["elwc", "eie"] = field(default="elwc", kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields, and copy the mappings."""
        copy_mappings(self, "context_features", "example_features")
        if not self.example_features:
            raise ValueError("example_features must name at least one feature")
        if self.list_size is not None:
            at_least(1, "list_size", self.list_size)
        true_or_false("shuffle_examples", self.shuffle_examples)
        one_of("format", self.format, "elwc", "eie")
        self._check_names()

    def _check_names(self) -> None:
        taken: set[str | None] = set(self.example_features)
        for argument in ("size_feature_name", "mask_feature_name"):
            name = getattr(self, argument)
            if name is not None and not isinstance(name, str):
                raise TypeError(f"{argument} must be str or None, got {type(name).__name__}")
            if name is not None and name in taken:
                raise ValueError(
                    f"{argument} must be a name of its own, got {name!r}, which is there already"
                )
            taken.add(name)

    __hash__ = None  # type: ignore[assignment]
