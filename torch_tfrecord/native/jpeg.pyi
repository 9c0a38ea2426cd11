from typing import Any

import numpy as np
import numpy.typing as npt

def find_plain(images: list[bytes], height: int, width: int) -> npt.NDArray[np.bool_]: ...
def read_images(images: list[bytes], rows: Any, out: Any) -> npt.NDArray[np.bool_]: ...
def read_region(
    data: Any, image_height: int, image_width: int, top: int, left: int, out: Any
) -> bool: ...
