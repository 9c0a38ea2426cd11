"""The compiled core, where there is a compiler; all else is in pyproject.toml.

`optional`: where compiling fails the package installs without it and uses the Python fallbacks.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# For instance "-fsanitize=address,undefined -g -O1": tests/native/sanitize.sh.
FLAGS = os.environ.get("TORCH_TFRECORD_CFLAGS", "-O3 -g0").split()


def extension(name: str, *headers: str, libraries: tuple[str, ...] = ()) -> Extension:
    """One compiled module of torch_tfrecord/native."""
    return Extension(
        f"torch_tfrecord.native.{name}",
        [f"torch_tfrecord/native/{name}.pyx"],
        depends=[f"torch_tfrecord/native/{header}" for header in headers],
        libraries=list(libraries),
        # Draws must not depend on whether a processor multiplies and adds in one step.
        extra_compile_args=[*FLAGS, "-ffp-contract=off"],
        extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
    )


EXTENSIONS = cythonize(
    [
        extension("jobs", "jobs.pxd"),
        extension("frames", "crc32c.h", "jobs.pxd"),
        extension("columns", "varints.h", "jobs.pxd"),
        extension("examples", "crc32c.h"),
        extension("memory", "blocks.h"),
        extension("shared", "pieces.h"),
        # Seek points within gzip members and zlib streams, where the headers of zlib are installed:
        # apt install zlib1g-dev.
        extension("inflate", libraries=("z",)),
        # Regions of JPEG images, where the headers of libjpeg-turbo are installed: apt install
        # libjpeg-turbo*-dev.
        extension("jpeg", "jpeg_region.h", "crops.h", "jobs.pxd", libraries=("jpeg",)),
    ],
    language_level=3,
    compiler_directives={"freethreading_compatible": True},
)
for module in EXTENSIONS:
    module.optional = True  # here, since cythonize does not keep it

setup(
    ext_modules=EXTENSIONS,
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    exclude_package_data={"torch_tfrecord.native": ["*.c"]},
)
