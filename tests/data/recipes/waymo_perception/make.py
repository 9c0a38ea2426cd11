"""Make the files of the recipe waymo_perception, and what Waymo's own program reads from them.

    python make.py CLONE

CLONE is a clone of github.com/waymo-research/waymo-open-dataset at commit
99a4cb3ff07e2fe06c2ce73da001f850f628e45a (Apache License 2.0). Needs TensorFlow and grpcio-tools.

* ``segment-0_with_camera_labels.tfrecord``: three Frames of small drawn pictures and made-up range
  images, written with the classes that protoc generates from ``src/waymo_open_dataset/dataset.proto``;
  ``frame.pb.gz`` has the descriptors.
* ``expected.npz``: what ``parse_range_image_and_camera_projection`` of
  ``src/waymo_open_dataset/utils/frame_utils.py`` gives, and the pictures
  (by the accurate DCT, which is not TensorFlow's default) and labels as ``tutorial/tutorial.ipynb``
  reads them.
"""

import gzip
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE, CLONE = Path(__file__).parent, Path(sys.argv[1])
ACCURATE = "INTEGER_ACCURATE"
HEIGHT, WIDTH = 4, 6  # of range images; 64 x 2650 for the TOP laser


def compiled():
    """The generated modules, and the descriptors."""
    out = tempfile.mkdtemp()
    protos = [
        f"waymo_open_dataset/{name}.proto"
        for name in ("dataset", "label", "protos/map", "protos/keypoint", "protos/vector")
    ]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{CLONE / 'src'}", f"--python_out={out}",
         f"--descriptor_set_out={out}/all.pb", *protos],
        check=True,
    )  # fmt: skip
    Path(out, "waymo_open_dataset", "__init__.py").touch()
    sys.path.insert(0, out)
    return Path(out, "all.pb").read_bytes()


def matrix(kind, values):
    """A compressed MatrixFloat or MatrixInt32, as the data set's records hold it."""
    message = kind(data=values.ravel().tolist())
    message.shape.dims.extend(values.shape)
    return zlib.compress(message.SerializeToString())


def frame_of(number, pb):
    random = np.random.default_rng(number)
    frame = pb.Frame(timestamp_micros=1_500_000_000_000_000 + 100_000 * number)
    frame.context.name = "segment-0"
    frame.pose.transform.extend(np.eye(4).ravel())
    # Not in the order of their numbers, as in the data set.
    for name in (pb.CameraName.FRONT, pb.CameraName.SIDE_LEFT, pb.CameraName.FRONT_LEFT):
        rows, columns = np.mgrid[: 16 if name < 4 else 12, :24]
        picture = np.stack([8 * rows, 8 * columns, 40 * number + 0 * rows], -1).astype(np.uint8)
        jpeg = tf.io.encode_jpeg(picture, quality=95).numpy()
        frame.images.add(name=name, image=jpeg)
        labels = frame.camera_labels.add(name=name)
        for place in range(number):
            label = labels.labels.add(id=f"c{place}", type=1 + place)
            label.box.center_x, label.box.center_y = 8.5 + place, 4.25
            label.box.length, label.box.width = 3, 2
    for place in range(number):
        label = frame.laser_labels.add(id=f"l{place}", type=1 + place % 4)
        for field, value in zip(
            ("center_x", "center_y", "center_z", "length", "width", "height", "heading"),
            random.integers(-64, 64, 7) / 8,
            strict=True,
        ):
            setattr(label.box, field, value)
    for name in (pb.LaserName.TOP, pb.LaserName.REAR):
        laser = frame.lasers.add(name=name)
        for back in (laser.ri_return1, laser.ri_return2)[: 2 if number != 1 else 1]:
            # range, intensity, elongation, whether in a zone without labels; -1 where nothing was.
            image = (random.integers(-8, 600, (HEIGHT, WIDTH, 4)) / 8).astype(np.float32)
            back.range_image_compressed = matrix(pb.MatrixFloat, image)
            projection = random.integers(0, 1920, (HEIGHT, WIDTH, 6))
            back.camera_projection_compressed = matrix(pb.MatrixInt32, projection)
        if name == pb.LaserName.TOP:
            pose = (random.integers(-8, 8, (HEIGHT, WIDTH, 6)) / 8).astype(np.float32)
            laser.ri_return1.range_image_pose_compressed = matrix(pb.MatrixFloat, pose)
    return frame


def parsed(frame, frame_utils):
    """What the original reads, as arrays."""
    images, projections, _, pose = frame_utils.parse_range_image_and_camera_projection(frame)
    for kind, lasers in (("range_image", images), ("camera_projection", projections)):
        for name, returns in lasers.items():
            for place, found in enumerate(returns):
                yield f"{kind}:{name}:{place}", np.reshape(found.data, found.shape.dims)
    yield "pose", np.reshape(pose.data, pose.shape.dims)
    for image in frame.images:
        yield f"image:{image.name}", tf.io.decode_jpeg(image.image, dct_method=ACCURATE).numpy()
    boxes = [label.box for label in frame.laser_labels]
    fields = ("center_x", "center_y", "center_z", "length", "width", "height", "heading")
    yield "boxes", np.float64([[getattr(box, f) for f in fields] for box in boxes]).reshape(-1, 7)
    yield "types", np.int64([label.type for label in frame.laser_labels])
    yield "timestamp_micros", np.int64(frame.timestamp_micros)


def main():
    descriptors = compiled()
    import waymo_open_dataset
    from waymo_open_dataset import dataset_pb2

    # The generated modules and the originals share the package's name.
    waymo_open_dataset.__path__.append(str(CLONE / "src/waymo_open_dataset"))
    from waymo_open_dataset.utils import frame_utils

    (HERE / "frame.pb.gz").write_bytes(gzip.compress(descriptors, 9, mtime=0))
    path = str(HERE / "segment-0_with_camera_labels.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(3):
            frame = frame_of(number, dataset_pb2)
            writer.write(frame.SerializeToString(deterministic=True))
    expected = {}
    for number, data in enumerate(tf.data.TFRecordDataset(path, compression_type="")):
        frame = dataset_pb2.Frame()
        frame.ParseFromString(bytearray(data.numpy()))
        for key, value in parsed(frame, frame_utils):
            expected[f"{number}:{key}"] = value
    np.savez_compressed(HERE / "expected.npz", **expected)


main()
