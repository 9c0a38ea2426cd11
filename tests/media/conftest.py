"""What every test of images gets."""

import pytest
from torchvision.transforms.v2.functional import _geometry


@pytest.fixture(autouse=True, scope="session")
def _the_kernel_for_uint8():
    """Older torchvisions leave torch's uint8 kernel out where the processor has AVX-512: they
    resize as float32, and round some pixels to the number beside.
    """
    real = _geometry._do_native_uint8_resize_on_cpu
    with pytest.MonkeyPatch.context() as patch:
        name = "_do_native_uint8_resize_on_cpu"
        patch.setattr(
            _geometry, name, lambda kind: kind.value in ("bilinear", "bicubic") or real(kind)
        )
        yield
