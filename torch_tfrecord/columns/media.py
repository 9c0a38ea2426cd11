"""What the Audio and Video specs and their readers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tfrecord.arguments import at_least, integer, true_or_false
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.one_value import OneValueSpec
from torch_tfrecord.columns.reading import Column, Want, labelled, read_each
from torch_tfrecord.columns.stacking import mark_listed, stack
from torch_tfrecord.columns.steps import StepReader
from torch_tfrecord.order.random_stream import RandomStream

__all__ = ["MediaReader", "MediaSpec", "window_start"]


class MediaSpec(OneValueSpec):
    """A spec of one encoded sound or video, of which a window may be drawn at random.

    Attributes:
        random_start, seed: Whether to draw where the window begins, and what determines the draws.
    """

    decodes = True

    random_start: bool
    seed: int

    def reader(self, name: str, *, pads: bool = False) -> MediaReader:
        """Build the reader for Examples."""
        raise NotImplementedError

    def step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list; a random start and several parts are not
        supported.
        """
        reader = super().step_reader(name, pads=pads)
        if self.reader(name).returns_parts:
            raise ValueError(
                f"{name!r}: steps of a feature list hold no dicts; leave out return_rate or return_times"
            )
        return reader

    def decode(self, data: memoryview, key: int) -> dict[str, torch.Tensor]:
        """The parts of one sample, with its random key; the first is the one that counts."""
        raise NotImplementedError

    def _check_no_draw(self, name: str) -> None:
        if self.random_start:
            raise ValueError(
                f"random_start of {name!r}: features of a SequenceExample are not drawn at random"
            )

    def _check_common(self, **counts: int | None) -> None:
        for argument, count in counts.items():
            if count is not None:
                object.__setattr__(self, argument, at_least(1, argument, count))
        true_or_false("random_start", self.random_start)
        object.__setattr__(self, "seed", integer("seed", self.seed))


def window_start(spec: MediaSpec, key: int, total: int, length: int) -> int:
    """Where a window of a length begins in a total: at 0, or anywhere with ``random_start``."""
    if not spec.random_start or total <= length:
        return 0
    return RandomStream(spec.seed, key).below(total - length + 1)


class MediaReader:
    """Reads a spec of a sound or video. With a random start, it takes the records' random keys: see
    `Reader`.

    Args:
        name: Name of the output.
        spec: Its spec.
        has_length: Whether all samples have the same length.
        returns_parts: Whether a sample is a dict of all parts.
    """

    def __init__(self, name: str, spec: Any, *, has_length: bool, returns_parts: bool) -> None:
        self._spec, self._has_length, self.returns_parts = spec, has_length, returns_parts
        self.keyed: bool = spec.random_start
        self._want = Want(
            name, spec.key_of(name), BYTES_LIST, type(spec).__name__, num_values=1, is_required=True
        )
        self.wants = (self._want,)

    def read(self, columns: Sequence[Column], keys: Sequence[int] | None = None) -> Any:
        """The batch's column: a tensor [N, ...] for samples of one length, else a list; or a dict
        of such parts.
        """
        views = columns[0].views()
        return labelled(self._want, self._column, views, [0] * len(views) if keys is None else keys)

    def _column(self, values: Sequence[memoryview], keys: Sequence[int]) -> Any:
        rows = read_each(
            lambda found: self._spec.decode(found[0], int(found[1])), zip(values, keys, strict=True)
        )
        parts = {
            name: self._together([row[name] for row in rows]) for name in (rows[0] if rows else ())
        }
        return parts if self.returns_parts else next(iter(parts.values()), [])

    def _together(self, values: list[torch.Tensor]) -> Any:
        if self._has_length or not values[0].dim():
            return stack(values)
        return [*map(mark_listed, values)]
