from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.native.jobs import Job

class CropJob(Job):
    done: int
    problem: str
    sizes: npt.NDArray[np.int32]
    left: npt.NDArray[np.int64]
    def __init__(
        self,
        buffer: Any,
        images: Any,
        out: Any,
        sizes: tuple[int, ...],
        *,
        table: Any = None,
        keys: Any = None,
        plans: Any = None,
        drawn: tuple[Any, ...] | None = None,
        centred: tuple[int, int] | None = None,
        bicubic: bool = False,
        resizes: bool = False,
        max_pixels: int,
        ignores_exif: bool = True,
        rows: Any = None,
        num_left: int = 0,
    ) -> None: ...
    def plan(self, height: int, width: int, key: int) -> dict[str, int] | None: ...

def plain_sizes(images: Iterable[Any], sizes: npt.NDArray[np.int64], max_pixels: int) -> None: ...
