"""Writes data.zip: `python make.py`, with TensorFlow 2.21, tf-models-official 2.20.0, pycocotools
2.0.11, tensorflow-object-detection-api 0.1.1 and tf-slim 1.1.0 from PyPI.

The first package is https://github.com/tensorflow/models (Apache License 2.0), official/vision:
create_tf_example() of data/create_coco_tf_record.py writes the records, of pictures drawn here, and
the TfExampleDecoder of dataloaders/tf_example_decoder.py reads them. The other TfExampleDecoder,
research/object_detection/data_decoders/tf_example_decoder.py in a package of TensorFlow 1's time,
gives the same values.
"""

import sys
import sysconfig
import tempfile
import types
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, keep, tensorflow1, write

CLASSES = {1: "person", 17: "cat", 90: "toothbrush"}


def annotation(box, class_id, is_crowd=0, area=None):
    x, y, width, height = box
    outline = [[x, y, x + width, y, x + width, y + height, x, y + height * 0.75]]
    if is_crowd:  # run lengths, by columns
        outline = {"size": [24, 32], "counts": [100, 300, 368]}
    area = width * height * 0.875 if area is None else area
    return {
        "bbox": box,
        "category_id": class_id,
        "iscrowd": is_crowd,
        "area": area,
        "segmentation": outline,
    }


PICTURES = [
    # Size; objects; with masks.
    ((32, 24), [annotation((2, 3, 10, 8), 17), annotation((0, 0, 32, 24), 1, 1)], True),
    ((20, 30), [], True),
    ((17, 11), [annotation((1, 1, 5, 5), 90), annotation((3, 0, 9.5, 10.25), 1)], False),
]


def vision():
    """The modules of TF-Vision that write and read."""
    # What the packages' own __init__.py import is for models.
    sys.modules["tf_keras"] = types.ModuleType("tf_keras")
    for part in ("", ".vision", ".vision.data", ".vision.dataloaders"):
        package = sys.modules[f"official{part}"] = types.ModuleType(f"official{part}")
        folder = Path(sysconfig.get_path("purelib"), *package.__name__.split("."))
        package.__path__ = [str(folder)]
    from official.vision.data import create_coco_tf_record
    from official.vision.dataloaders import tf_example_decoder

    return create_coco_tf_record, tf_example_decoder


def other_decoder():
    """The decoder of TensorFlow 1, with what is left of that."""
    import tf_slim
    from tensorflow.python.ops import control_flow_ops

    control_flow_ops.case, control_flow_ops.cond = tensorflow1.case, tensorflow1.cond
    tensorflow1.contrib = types.SimpleNamespace(
        slim=types.SimpleNamespace(tfexample_decoder=tf_slim.tfexample_decoder)
    )
    label_maps = types.ModuleType("object_detection.utils.label_map_util")
    label_map_protos = types.ModuleType("object_detection.protos.input_reader_pb2")
    label_map_protos.NUMERICAL_MASKS, label_map_protos.PNG_MASKS, label_map_protos.DEFAULT = 1, 2, 0
    stand_ins = {module.__name__: module for module in (label_maps, label_map_protos)}
    import object_detection.protos
    import object_detection.utils

    object_detection.utils.label_map_util = label_maps
    object_detection.protos.input_reader_pb2 = label_map_protos
    with mock.patch.dict(sys.modules, {"tensorflow": tensorflow1} | stand_ins):
        from object_detection.data_decoders import tf_example_decoder as decoders

        return decoders.TfExampleDecoder(load_instance_masks=True, instance_mask_type=2)


def main():
    create_coco_tf_record, tf_example_decoder = vision()
    expected, examples = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for number, (size, objects, has_masks) in enumerate(PICTURES):
            picture = Image.new("RGB", size, (30 * number, 90, 200))
            for found in objects:
                x, y, width, height = found["bbox"]
                color = (250, found["category_id"], 20)
                ImageDraw.Draw(picture).ellipse((x, y, x + width - 1, y + height - 1), fill=color)
            picture.save(Path(folder, f"{number}.png"))
            image = {"width": size[0], "height": size[1], "id": 100 + number}
            image["file_name"] = f"{number}.png"
            made, skipped = create_coco_tf_record.create_tf_example(
                image,
                [folder],
                bbox_annotations=objects,
                id_to_name_map=CLASSES,
                include_masks=has_masks,
            )
            assert not skipped
            if number == 2:  # as older files are
                del made.features.feature["image/object/area"]
                del made.features.feature["image/object/is_crowd"]
            examples.append(made)
        file = Path(folder, "coco-00000-of-00001.tfrecord")
        write(file, examples)
        decoder = tf_example_decoder.TfExampleDecoder(include_mask=True)
        research = other_decoder()
        for number, record in enumerate(tf.data.TFRecordDataset(str(file))):
            found = decoder.decode(record)
            found.pop("groundtruth_instance_masks_png")
            again = {name: value.numpy() for name, value in research.decode(record).items()}
            for name in ("image", "groundtruth_boxes", "groundtruth_classes"):
                assert np.array_equal(again[name], found[name]), name
            if PICTURES[number][2]:
                name = "groundtruth_instance_masks"
                assert np.array_equal(again[name], found[name])
            expected |= arrays(number, found)
        keep(Path(__file__).parent, {file.name: file}, expected)


main()
