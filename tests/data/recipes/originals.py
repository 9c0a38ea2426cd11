"""For the programs make.py: running the code of other projects, and keeping what it wrote and read.

A project's code is read from a clone of its repository, at the commit that make.py names, and is
not kept here. It was written for TensorFlow 1: `tensorflow1` is what TensorFlow 2 still has of it.
"""

import io
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow

tensorflow1 = tensorflow.compat.v1


def load(clone, commit, path, name, **names):
    """A file of a repository as a module, which others can import; `names` stand in for what it
    imports, by name; None for an empty module.
    """
    source = subprocess.run(
        ["git", "-C", clone, "show", f"{commit}:{path}"], check=True, capture_output=True
    ).stdout
    module = types.ModuleType(name)
    with mock.patch.dict(sys.modules):
        for other, stand_in in names.items():
            sys.modules[other] = stand_in or types.ModuleType(other)
        exec(compile(source, path, "exec"), module.__dict__)
    sys.modules[name] = module
    return module


def example(**values):
    """A tf.train.Example with features of one kind each, named as tf.train.Feature names it."""
    made = tensorflow.train.Example()
    for name, (kind, value) in values.items():
        getattr(made.features.feature[name], kind).value.extend(value)
    return made


def write(path, messages, options=None):
    with tensorflow.io.TFRecordWriter(str(path), options) as writer:
        for message in messages:
            writer.write(message.SerializeToString(deterministic=True))


def keep(folder, files, expected):
    """Write data.zip: the files that the recipe reads, and expected.npz, what the original read."""
    arrays_file = io.BytesIO()
    np.savez(arrays_file, **expected)
    contents = {name: Path(path).read_bytes() for name, path in files.items()}
    contents["expected.npz"] = arrays_file.getvalue()
    with zipfile.ZipFile(Path(folder, "data.zip"), "w") as out:
        for name, content in sorted(contents.items()):
            out.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)


def arrays(number, values):
    """The tensors of a record under names such as "0/label"."""
    return {f"{number}/{name}": _array(value) for name, value in values.items()}


def _array(value):
    found = np.asarray(value)
    if found.dtype == object:  # strings; NumPy's own ones lose zeros at their end
        assert not any(string.endswith(b"\0") for string in found.ravel())
        found = found.astype("S")
    return found
