"""What the core gets from extensions."""

import pytest

from torch_tfrecord import Image
from torch_tfrecord.extensions import attached


def test_an_attached_object():
    assert attached("media", "Image") is Image


def test_an_extension_that_is_not_there():
    with pytest.raises(
        ImportError, match=r"expected the extension torch_tfrecord\.nothing, which is not installed"
    ):
        attached("nothing", "Image")
