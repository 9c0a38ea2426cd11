from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.native.jobs import Job

__all__: list[str]

MOST_SOURCES: int
checksum_by: str

class ReadJob(Job):
    num_found: int
    def __init__(
        self,
        sources: list[tuple[Any, ...]],
        first_source: int,
        ranges: npt.NDArray[np.int64],
        first: int,
        last: int,
        buffer: Any,
        places: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        verify: bool,
        found: npt.NDArray[np.int64] | None = None,
    ) -> None: ...

def copy(source: Any, begin: int, ranges: npt.NDArray[np.int64], target: Any) -> bool: ...
def crc32c(data: Any, value: int = 0) -> int: ...
def find(
    positions: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    borders: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> bool: ...
def headers(buffer: Any) -> list[int]: ...
def integers(numbers: list[int], limit: int, out: npt.NDArray[np.int64]) -> bool: ...
def plan_reads(
    files: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    header: int,
    footer: int,
    max_gap: int,
    window: int,
    ranges: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> tuple[int, int, list[int]] | None: ...
def read_file(path: bytes, offset: int, target: Any) -> bool: ...
def read_record(fd: int, offset: int, length: int, verify: bool) -> bytes | None: ...
def slices(
    buffer: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> list[bytes]: ...
def walk(buffer: Any, found: npt.NDArray[np.int64], verify: bool) -> tuple[int, int]: ...
