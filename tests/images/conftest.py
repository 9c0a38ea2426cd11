"""What every test of images gets."""

import pytest
from torchvision.transforms.v2.functional import _geometry


@pytest.fixture(autouse=True, scope="session")
def _the_kernel_for_uint8():
    """Before 0.24 torchvision took torch's kernel for uint8 on processors with AVX2, but not on those with AVX-512: there
    it resizes as float32, and rounds some pixels to the number beside.
    """
    with pytest.MonkeyPatch.context() as patch:
        real = _geometry._do_native_uint8_resize_on_cpu
        patch.setattr(
            _geometry,
            "_do_native_uint8_resize_on_cpu",
            lambda kind: kind.value in ("bilinear", "bicubic") or real(kind),
        )
        yield
