from typing import Any

import numpy as np
import numpy.typing as npt

__all__: list[str]

BAD_HEADER: int
BAD_PAYLOAD: int
DONE: int
INCOMPLETE: int
checksum_by: str

def crc32c(data: Any, value: int = 0) -> int: ...
def first_bad(buffer: Any, places: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], verify: bool) -> int: ...
def max_records(buffer: Any) -> int: ...
def read_ranges(
    fd: int, begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], buffer: Any, starts: npt.NDArray[np.int64]
) -> int: ...
def read_record(fd: int, offset: int, length: int, verify: bool) -> bytes | None: ...
def slices(buffer: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[bytes]: ...
def walk(
    buffer: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], verify: bool
) -> tuple[int, int, int, int]: ...
