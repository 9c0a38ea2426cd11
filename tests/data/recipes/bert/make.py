"""Writes data.zip: `python make.py CLONE`, with TensorFlow 2.21.

CLONE is https://github.com/google-research/bert (Apache License 2.0), commit eedf571: main() of
create_pretraining_data.py writes the records, from the text here, and the input_fn of
run_pretraining.py reads them.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, keep, load, tensorflow1

COMMIT = "eedf5716ce1268e56f0a50264a88cafad334ac61"
TEXT = """The harbour wakes before the town.
Nets are mended on the long grey wall, and gulls argue over what falls from them.
By noon the boats are out of sight.

A clock that stands still is right twice a day.
The one in the station is right more often, since somebody winds it.
Nobody knows who that is.

Snow came in the night and nobody heard it.
In the morning all roads were the same road.
The dog found ours.
"""


def main(clone):
    flags = tensorflow1.flags.FLAGS
    # map_and_batch has moved since TensorFlow 1.
    tensorflow1.contrib = SimpleNamespace(data=tf.compat.v1.data.experimental)
    tokenization = load(clone, COMMIT, "tokenization.py", "tokenization", tensorflow=tensorflow1)
    names = {"tensorflow": tensorflow1, "tokenization": tokenization}
    writer = load(clone, COMMIT, "create_pretraining_data.py", "create", **names)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text(TEXT)
        words = sorted({*TEXT.lower().replace(",", " ,").replace(".", " .").split()})
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        (folder / "vocab").write_text("\n".join(special + words[:-3]))  # the others are [UNK]
        file = folder / "pretrain.tfrecord"
        options = ["--input_file=text", "--vocab_file=vocab", f"--output_file={file}"]
        options = [option.replace("=text", f"={folder}/text") for option in options]
        options = [option.replace("=vocab", f"={folder}/vocab") for option in options]
        flags(["create", *options, "--dupe_factor=2"])
        writer.main(None)
        for flag in [*flags]:  # the other program has flags of the same names
            delattr(flags, flag)
        names |= dict.fromkeys(("modeling", "optimization"))
        reader = load(clone, COMMIT, "run_pretraining.py", "run_pretraining", **names)
        number = sum(1 for _ in tf.data.TFRecordDataset(str(file)))
        read = reader.input_fn_builder([str(file)], 128, 20, is_training=False)
        batch = next(iter(read({"batch_size": number})))
        keep(Path(__file__).parent, {file.name: file}, arrays("batch", batch))
        print(number, "records")


main(sys.argv[1])
