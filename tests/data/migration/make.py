"""The samples of docs/migration, in each package's format and as each package reads them.

    OLD_PROTOBUF=FOLDER PYTHONPATH=. python tests/data/migration/make.py

runs with Python 3.11, torch 2.14.1 and tfrecord 1.14.6, tfrecord-lite 0.0.8, torchdata 0.9.0 (the last
that has `load_from_tfrecord`), webdataset 1.0.2, mosaicml-streaming 0.13.0, ffcv 1.0.2 and
nvidia-dali-cuda120 2.4.0. It writes the samples by the packages' own writers, and `expected.npz` from
what the code for them on the pages gives. FOLDER is what `pip install --target FOLDER protobuf==3.20.3`
made: torchdata works with no newer one.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image

HERE = Path(__file__).parent
PAGES = HERE.parents[2] / "docs"


def samples():
    """Eight drawn pictures with a label, two numbers and a name."""
    rows, columns = np.mgrid[:8, :12]
    for number in range(8):
        picture = np.stack([rows * 30, columns * 20, (rows + columns + number) * 9], -1)
        yield {
            "image": PIL.Image.fromarray(picture.astype(np.uint8)),
            "label": number % 3,
            "score": [number / 4, -number / 2],
            "name": f"drawn {number}",
        }


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def write():
    import tfrecord
    import webdataset
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from streaming import MDSWriter
    from tfrecord.tools.tfrecord2idx import create_index

    writer = tfrecord.TFRecordWriter("samples.tfrecord")
    for sample in samples():
        writer.write(
            {
                "image": (png(sample["image"]), "byte"),
                "label": (sample["label"], "int"),
                "score": (sample["score"], "float"),
                "name": (sample["name"].encode(), "byte"),
            }
        )
    writer.close()
    create_index("samples.tfrecord", "samples.tfrecord.idx")
    with webdataset.TarWriter("samples.tar", mtime=0) as tar:
        for number, sample in enumerate(samples()):
            tar.write(
                {
                    "__key__": f"{number:06d}",
                    "png": png(sample["image"]),
                    "cls": sample["label"],
                    "json": {"name": sample["name"], "score": sample["score"]},
                }
            )
    shutil.rmtree("mds", ignore_errors=True)
    columns = {"image": "png", "label": "int", "score": "ndarray:float32:2", "name": "str"}
    with MDSWriter(out="mds", columns=columns, size_limit=1 << 12) as out:
        for sample in samples():
            out.write(sample | {"score": np.array(sample["score"], np.float32)})

    class Pictures:
        def __len__(self):
            return 8

        def __getitem__(self, number):
            sample = [*samples()][number]
            return sample["image"], sample["label"]

    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter("samples.beton", fields, num_workers=1).from_indexed_dataset(Pictures())


def theirs(page, marker):
    """The names after a block of a page: the code for the original."""
    blocks = re.findall(r"^```py\n(.*?)^```$", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if marker in block]
    names = {"__name__": "theirs"}
    exec(compile(block, page, "exec"), names)
    return names


ORIGINALS = {
    "tfrecord": ("migration.md", "from tfrecord.torch"),
    "lite": ("migration.md", "tfrecord_lite"),
    "torchdata": ("migration.md", "load_from_tfrecord"),
    "dali": ("migration.md", "nvidia.dali"),
    "webdataset": ("migration/webdataset.md", "wds."),
    "mds": ("migration/mds.md", "pil_to_tensor"),
    "ffcv": ("migration/ffcv.md", "OrderOption.SEQUENTIAL,\n    pipelines={"),
    "from_mds": ("migration/mds.md", "from_mds"),
    "from_beton": ("migration/ffcv.md", "from_beton"),
}


def run(name):
    """Run one original's code, and keep what it gives; a process each, as protobuf files collide."""
    names = theirs(*ORIGINALS[name])
    if not name.startswith("from_"):
        keys = [key for key in ("image", "label", "score", "name") if key in names]
        found = {f"{name}/{key}": np.stack([np.asarray(v) for v in names[key]]) for key in keys}
        print({key: value.shape for key, value in found.items()})
        np.savez(f"{name}.npz", **found)


if __name__ == "__main__":
    if sys.argv[1:]:
        run(sys.argv[1])
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write()
        for name in ORIGINALS:
            paths = [os.environ["OLD_PROTOBUF"]] if name == "torchdata" else []
            paths.append(str(PAGES.parent))
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            command = [sys.executable, __file__, name]
            subprocess.run(command, check=True, env=environment)
        parts = [np.load(path) for path in sorted(Path().glob("*.npz"))]
        found = {key: part[key] for part in parts for key in part}
        np.savez_compressed("expected.npz", **found)
        for kept in [*Path().glob("from_*"), *Path().glob("samples.t*"), Path("expected.npz")]:
            shutil.copy(kept, HERE)  # the beton has 4 MB, and only ffcv reads it
