"""Writes data.zip: `python make.py`, with TensorFlow 2.21, seqio 0.0.20 and apache-beam from PyPI.

seqio (https://github.com/google/seqio, Apache License 2.0) is T5's reader and writer:
run_pipeline() of seqio.scripts.cache_tasks_main caches a task whose ids are drawn here, and
Task.get_dataset() and the feature converters read it.
"""

import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, keep

LENGTHS = {"inputs": 512, "targets": 114}
SIZES = [(5, 60), (600, 40), (0, 1), (511, 113), (512, 30), (80, 50), (7, 200), (3, 3)]


def source(split, shuffle_files=False, seed=None):
    rng = np.random.default_rng(0)
    rows = [
        {
            name: rng.integers(2, 32_000, size, "int32")
            for name, size in zip(LENGTHS, sizes, strict=True)
        }
        for sizes in SIZES
    ]
    signature = {name: tf.TensorSpec([None], tf.int32) for name in LENGTHS}
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=signature)


def main():
    sys.modules["tensorflow_text"] = types.ModuleType("tensorflow_text")  # for tokenizers
    import apache_beam
    import seqio
    from apache_beam.options.pipeline_options import PipelineOptions
    from seqio.scripts import cache_tasks_main

    vocabulary = seqio.PassThroughVocabulary(size=32_000, eos_id=1)
    task = seqio.TaskRegistry.add(
        "made_up",
        source=seqio.FunctionDataSource(source, splits=["train"]),
        preprocessors=[
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={name: seqio.Feature(vocabulary, dtype=tf.int32) for name in LENGTHS},
    )
    with tempfile.TemporaryDirectory() as folder:
        cache_tasks_main.FLAGS(["cache_tasks_main", "--max_shards=3"])
        Path(folder, "made_up").mkdir()
        in_memory = PipelineOptions(["--direct_running_mode=in_memory"])
        with apache_beam.Pipeline(options=in_memory) as pipeline:
            cache_tasks_main.run_pipeline(pipeline, ["made_up"], folder)
        seqio.add_global_cache_dirs([folder])
        expected = {}
        for kind, converter, names in (
            ("padded", seqio.EncDecFeatureConverter(pack=False), [*LENGTHS]),
            ("packed", seqio.LMFeatureConverter(pack=True), ["targets"]),
        ):
            lengths = {name: LENGTHS[name] for name in names}
            dataset = task.get_dataset(LENGTHS, "train", use_cached=True, shuffle=False)
            rows = [*converter(dataset, lengths).as_numpy_iterator()]
            columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            expected |= arrays(kind, columns)
        print({name: value.shape for name, value in expected.items()})
        files = {
            path.name: path for path in Path(folder, "made_up").glob("*train*") if path.is_file()
        }
        print({name: path.stat().st_size for name, path in files.items()})
        keep(Path(__file__).parent, files, expected)


main()
