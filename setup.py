"""The compiled core, where there is a compiler; all else is in pyproject.toml.

`optional`: where compiling fails the package installs without it and uses the Python twins.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# For instance "-fsanitize=address,undefined -g -O1": tests/sanitize.sh.
FLAGS = os.environ.get("TORCH_TFRECORD_CFLAGS", "-O3").split()

EXTENSIONS = [
    Extension(
        f"torch_tfrecord.native.{name}",
        [f"torch_tfrecord/native/{name}.pyx"],
        depends=["torch_tfrecord/native/crc32c.h"],
        extra_compile_args=FLAGS,
        extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
        optional=True,
    )
    for name in ("frames", "columns")
]

setup(ext_modules=cythonize(EXTENSIONS, language_level=3, compiler_directives={"freethreading_compatible": True}))
