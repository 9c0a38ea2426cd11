"""What readers of feature lists share.

The column of a feature list is an Example column whose records are the steps, plus the row splits
of the steps. So the readers of Examples can read the steps of all records at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.columns.reading import Column, Ints, Reader, Want, at_step
from torch_tfrecord.errors import LimitExceededError, TFRecordError

__all__ = [
    "ReadContext",
    "StepColumn",
    "StepReader",
    "check_steps",
    "part_of",
    "read_record",
    "read_records",
]


class StepColumn(NamedTuple):
    """The values in the feature lists of N records for one `Want` with any number of values.

    Attributes:
        steps: The values of all steps: a Column of any count, whose records are the steps.
        borders: int64 [N + 1]: the row splits of the steps.
        missing: uint8 [N]: 1 if a record lacks the feature list.
    """

    steps: Column
    borders: Ints
    missing: npt.NDArray[np.uint8]


ReadContext: TypeAlias = Callable[[], Sequence[Column]]
"""Reads the context columns that a StepReader wants; called only if they are needed."""


class StepReader:
    """Reads one feature list like a `Reader`, from columns with any number of values.

    Args:
        step_wants: What each step must provide; the first is the values.

    Attributes:
        wants: The same for the feature lists, with any number of values.
        context_wants: What to read from the context, for steps without their own.
        is_required: Whether a record without the first list is an error.
    """

    context_wants: tuple[Want, ...] = ()
    is_required = False

    def __init__(self, *step_wants: Want) -> None:
        self.step_wants = step_wants
        self.wants = tuple(map(_of_any_number, step_wants))

    def read(self, lists: Sequence[StepColumn], context: ReadContext) -> Any:
        """The batch's column of N records; ragged numbers become a `Nested`."""
        raise NotImplementedError


def _of_any_number(want: Want) -> Want:
    found = copy.copy(want)
    found.num_values, found.is_required = None, False
    return found


def check_steps(want: Want, column: StepColumn, *, is_required: bool) -> None:
    """Check that a required list is in every record, and that each step has the wanted number of
    values.
    """
    if is_required and np.count_nonzero(column.missing):
        raise want.error(f"Feature list {want.key!r} is required but could not be found")
    if want.num_values is None:
        return
    offsets = column.steps.offsets
    counts = offsets[1:] - offsets[:-1]
    wrong = counts != want.num_values
    if np.count_nonzero(wrong):  # faster than any(), which matters for a single record
        step = int(wrong.argmax())
        record = int(np.searchsorted(column.borders, step, side="right")) - 1
        raise at_step(want.wrong_count(int(counts[step])), step - int(column.borders[record]))


def read_records(reader: Reader, columns: Sequence[Column], borders: Ints) -> Any:
    """Read the steps of several records as records of a batch; a LimitExceededError names the
    record and step.
    """
    try:
        return reader.read(columns)
    except LimitExceededError as error:
        if error.position is None:
            raise
        record = int(np.searchsorted(borders, error.position, side="right")) - 1
        raise at_step(error, error.position - int(borders[record])).locate(
            position=record
        ) from error.__cause__


def read_record(reader: Reader, columns: Sequence[Column]) -> Any:
    """Read the steps of one record as records of a batch; errors name the step."""
    num_steps = len(columns[0].offsets) - 1 if len(columns[0].offsets) else len(columns[0].values)
    try:
        return read_records(reader, columns, np.array([0, num_steps]))
    except LimitExceededError as error:
        error.position = None  # the caller knows the record's own number
        raise
    except TFRecordError:
        for number in range(num_steps):
            try:
                reader.read([part_of(column, number, number + 1) for column in columns])
            except TFRecordError as error:
                raise at_step(error, number) from error.__cause__
        raise


def part_of(column: Column, begin: int, end: int) -> Column:
    """A range of steps of a column."""
    if not len(column.offsets):
        return column._replace(values=column.values[begin:end])
    offsets = column.offsets[begin : end + 1]
    return column._replace(
        values=column.values[offsets[0] : offsets[-1]], offsets=offsets - offsets[0]
    )
