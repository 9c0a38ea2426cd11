"""Options of the datasets that need more than a check: the features, inferred or given, and the
label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast

from torch_tfrecord.arguments import one_of
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import Access
from torch_tfrecord.loading.column_batch import BatchParser, ChainedTransforms, ColumnTransform
from torch_tfrecord.records import Paths
from torch_tfrecord.samples import Columns, Transform, Value

__all__ = ["dataset_parser", "with_label"]


def dataset_parser(
    features: RecordFeatures | Literal["auto"] | None,
    paths: Paths,
    access: Access,
    max_batch_bytes: int,
    label_key: str | None = None,
) -> BatchParser | None:
    """The parser of a dataset's features, which may have to be inferred; None for the records'
    bytes.
    """
    if isinstance(features, str):
        one_of("features", features, "auto", None)
        infer = attached("tables", "infer_through")
        features = cast("Callable[[Access, Paths], RecordFeatures]", infer)(access, paths)
    if label_key is not None and (not isinstance(features, Mapping) or label_key not in features):
        keys = list(features) if isinstance(features, Mapping) else None
        raise ValueError(
            f"The `label_key` provided ({label_key}) must be one of the `features` keys: {keys}"
        )
    return None if features is None else BatchParser(features, max_batch_bytes=max_batch_bytes)


def with_label(transform: Transform | None, label_key: str | None) -> Transform | None:
    """The transform, and then (features, label) of its sample."""
    if label_key is None:
        return transform
    split = _SplitLabel(label_key)
    return split if transform is None else ChainedTransforms(transform, split)


class _SplitLabel(ColumnTransform):
    """(features, label) of a sample, or of the columns of a batch."""

    def __init__(self, label_key: str) -> None:
        self._label_key = label_key

    def __call__(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(
                f"the dataset or the transform must return a mapping with the key label_key={self._label_key!r}"
            )
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]

    def columns(self, columns: Columns) -> tuple[dict[str, Columns], Columns]:
        """Take the label's column out."""
        return self(columns)
