"""Make the files of the recipe waymo_motion, and what Waymo's own programs read from them.

    python make.py CLONE

CLONE is a clone of github.com/waymo-research/waymo-open-dataset at commit
99a4cb3ff07e2fe06c2ce73da001f850f628e45a (Apache License 2.0). Needs TensorFlow and grpcio-tools.

* ``training.tfrecord.gz``: two Scenarios, made with the classes that protoc generates from
  ``src/waymo_open_dataset/protos/scenario.proto``; ``scenario.pb.gz`` has the descriptors.
* ``training_tfexample.tfrecord.gz``: the Examples of these Scenarios. Waymo's converter is C++ that
  only Bazel builds, so `example_of` follows it function by function:
  ``src/waymo_open_dataset/data_conversion/scenario_conversion.cc``, with the defaults of
  ``protos/conversion_config.proto``. The map has lanes of two points only, where its interpolation
  is a straight line.
* ``expected.npz``: what ``tf.io.parse_single_example`` gives with the features that the cell of
  ``tutorial/tutorial_motion.ipynb`` defines, which this program runs as it stands; and fields of
  the Scenarios, as the generated classes read them.
"""

import gzip
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE, CLONE = Path(__file__).parent, Path(sys.argv[1])
PAST, FUTURE, AGENTS, POINTS, LIGHTS = 11, 80, 128, 30000, 16
INVALID = -1.0


def compiled():
    """The generated modules, and the descriptors."""
    out = tempfile.mkdtemp()
    names = ["scenario", "map", "compressed_lidar", "camera_tokens", "keypoint", "vector"]
    protos = [f"waymo_open_dataset/protos/{name}.proto" for name in names]
    protos += [f"waymo_open_dataset/{name}.proto" for name in ("dataset", "label")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{CLONE / 'src'}", f"--python_out={out}",
         f"--descriptor_set_out={out}/all.pb", *protos],
        check=True,
    )  # fmt: skip
    sys.path.insert(0, out)
    return Path(out, "all.pb").read_bytes()


def pack(name, data):
    (HERE / f"{name}.gz").write_bytes(gzip.compress(data, 9, mtime=0))


def scenario_of(number, scenario_pb2, map_pb2):
    """A Scenario of a few objects that drive along curves; all numbers are exact in float32."""
    random = np.random.default_rng(number)
    scenario = scenario_pb2.Scenario(
        scenario_id=f"{number:016x}", current_time_index=10, sdc_track_index=1,
        objects_of_interest=[40 + number],
    )  # fmt: skip
    scenario.timestamps_seconds.extend(step / 8 for step in range(PAST + FUTURE))
    for place in range(3 + number):
        track = scenario.tracks.add(id=40 + place, object_type=1 + place % 4)
        x, y = random.integers(-400, 400, 2) / 4
        for step in range(PAST + FUTURE):
            if place and (step < 4 * place or step > 90 - place):
                track.states.add(valid=False)
                continue
            track.states.add(
                center_x=x + step * (1 + place) / 8, center_y=y - step * place / 16, center_z=0.5 * place,
                length=4.5, width=2 - place / 8, height=1.5, heading=place / 4,
                velocity_x=1 + place, velocity_y=-place / 2, valid=True,
            )  # fmt: skip
    scenario.tracks_to_predict.add(track_index=2, difficulty=1)
    scenario.tracks_to_predict.add(track_index=0, difficulty=2)
    for step in range(PAST):
        state = scenario.dynamic_map_states.add()
        for lane in range(number + 1):
            state.lane_states.add(lane=7 + lane, state=4 + step % 3).stop_point.x = 2.5 * lane
    kinds = map_pb2.LaneCenter, map_pb2.RoadLine, map_pb2.RoadEdge
    for place, kind in enumerate(("lane", "road_line", "road_edge", "lane")):
        feature = scenario.map_features.add(id=100 + place)
        line = getattr(feature, kind)
        line.type = 1 + place % 2
        assert isinstance(line, kinds)
        for end in range(2):
            line.polyline.add(x=place + 0.5 * end, y=2.0 * place, z=0.25)
    stop = scenario.map_features.add(id=110).stop_sign
    stop.position.x, stop.position.y, stop.position.z = 1.5, -2, 0.125
    return scenario


class Features(dict):
    """The helpers AddFloatFeature, AddInt64Feature and AddBytesFeature."""

    def floats(self, key, *values):
        self.setdefault(key, tf.train.Feature()).float_list.value.extend(values)

    def int64(self, key, value):
        self.setdefault(key, tf.train.Feature()).int64_list.value.append(int(value))


def example_of(scenario):
    """ScenarioToExample and AddTfFeatures."""
    features = Features()
    features["scenario/id"] = tf.train.Feature(
        bytes_list=tf.train.BytesList(value=[scenario.scenario_id.encode()])
    )
    add_road_graph_samples(scenario, features)
    for step in range(PAST + FUTURE):
        add_lights(scenario, step, features)
    # AddSdcAndAgentsStateFeatures: those to predict by id, the others by their distance from the
    # SDC, then padding.
    now = PAST - 1
    sdc = scenario.tracks[scenario.sdc_track_index]
    wanted = {each.track_index: each.difficulty for each in scenario.tracks_to_predict}
    modeled = sorted(
        (place for place in wanted if scenario.tracks[place].states[now].valid),
        key=lambda place: scenario.tracks[place].id,
    )

    def rank(place):
        track, here = scenario.tracks[place], sdc.states[now]
        state = track.states[now]
        if state.valid:
            return 0, math.hypot(state.center_x - here.center_x, state.center_y - here.center_y)
        return 1, -sum(each.valid for each in track.states)

    context = sorted((p for p in range(len(scenario.tracks)) if p not in modeled), key=rank)
    order = [*modeled, *context]
    for place in order + [None] * (AGENTS - len(order)):
        track = None if place is None else scenario.tracks[place]
        flags = {
            "objects_of_interest": track and track.id in scenario.objects_of_interest,
            "is_sdc": track and track is sdc,
            "is_context": track and place not in modeled,
            "tracks_to_predict": track and place in modeled,
            "difficulty_level": track and wanted.get(place, 0),
        }
        features.floats("state/id", INVALID if track is None else track.id)
        features.floats("state/type", INVALID if track is None else track.object_type)
        for key, value in flags.items():
            features.int64(f"state/{key}", INVALID if track is None else value)
        for step in range(PAST + FUTURE):
            add_state(scenario, track, step, features)
    return tf.train.Example(features=tf.train.Features(feature=features))


def frame(step):
    return "past" if step < PAST - 1 else "current" if step == PAST - 1 else "future"


def add_state(scenario, track, step, features):
    """The loop over time of AddStateFeatures."""
    prefix = f"state/{frame(step)}/"
    state = None
    if track is not None and track.object_type and track.states[step].valid:
        state = track.states[step]
    micros = np.float32(scenario.timestamps_seconds[step]) * 1e6
    features.int64(f"{prefix}timestamp_micros", INVALID if state is None else micros)
    features.int64(f"{prefix}valid", 0 if state is None else state.valid)
    values = {"x": "center_x", "y": "center_y", "z": "center_z", "bbox_yaw": "heading"}
    values |= {name: name for name in ("width", "length", "height", "velocity_x", "velocity_y")}
    for key, field in values.items():
        features.floats(prefix + key, INVALID if state is None else getattr(state, field))
    speed = yaw = INVALID
    if state is not None:
        speed = math.hypot(state.velocity_x, state.velocity_y)
        yaw = math.atan2(state.velocity_y, state.velocity_x)
    features.floats(f"{prefix}speed", speed)
    features.floats(f"{prefix}vel_yaw", yaw)


def add_lights(scenario, step, features):
    """AddTrafficLightStateFeatures."""
    prefix = f"traffic_light_state/{frame(step)}/"
    known = step < len(scenario.dynamic_map_states)
    lanes = list(scenario.dynamic_map_states[step].lane_states) if known else []
    micros = np.float32(scenario.timestamps_seconds[step]) * 1e6
    features.int64(f"{prefix}timestamp_micros", micros if known else INVALID)
    for lane in lanes + [None] * (LIGHTS - len(lanes)):
        for axis in "xyz":
            point = INVALID if lane is None else getattr(lane.stop_point, axis)
            features.floats(prefix + axis, point)
        features.int64(f"{prefix}state", INVALID if lane is None else lane.state)
        features.int64(f"{prefix}id", INVALID if lane is None else lane.lane)
        features.int64(f"{prefix}valid", lane is not None)


LINE_TYPES = {"lane": 0, "road_line": 5, "road_edge": 14}  # GetMapFeatureType, of the types used


def add_road_graph_samples(scenario, features):
    """AddRoadGraphSamples, by GetFeaturePriorityList."""
    count = 0
    for kind in ("lane", "road_line", "stop_sign", "crosswalk", "speed_bump", "road_edge"):
        for feature in scenario.map_features:
            if feature.WhichOneof("feature_data") != kind:
                continue
            if kind == "stop_sign":
                number, points = 17, [feature.stop_sign.position]
            else:
                line = getattr(feature, kind)
                number, points = LINE_TYPES[kind] + line.type, line.polyline
            count += add_points(feature.id, number, points, features)
    for _ in range(POINTS - count):
        for key, value in (("id", INVALID), ("type", INVALID), ("valid", 0)):
            features.int64(f"roadgraph_samples/{key}", value)
        features.floats("roadgraph_samples/xyz", INVALID, INVALID, INVALID)
        features.floats("roadgraph_samples/dir", INVALID, INVALID, INVALID)


def add_points(number, kind, points, features):
    """AddInterpolatedRoadGraphSamples and AddRoadgraphData, of at most two points."""
    places = np.array([[point.x, point.y, point.z] for point in points])
    steps = np.diff(places, axis=0)
    directions = np.zeros_like(places)  # ComputeDirectionVectors: the last is zero
    directions[:-1] = steps / np.linalg.norm(steps, axis=1, keepdims=True)
    for place, direction in zip(places, directions, strict=True):
        for key, value in (("id", number), ("type", kind), ("valid", 1)):
            features.int64(f"roadgraph_samples/{key}", value)
        features.floats("roadgraph_samples/xyz", *place)
        features.floats("roadgraph_samples/dir", *direction)
    return len(places)


def tutorial_features():
    """`features_description` of the notebook's cell, run as it stands."""
    notebook = json.loads((CLONE / "tutorial/tutorial_motion.ipynb").read_text(encoding="utf-8"))
    (cell,) = (
        "".join(cell["source"])
        for cell in notebook["cells"]
        if "features_description = {}" in "".join(cell["source"])
    )
    names = {"tf": tf}
    exec("num_map_samples" + cell.partition("num_map_samples")[2], names)
    return names["features_description"]


def fields_of(scenario):
    """What the recipe takes of a Scenario."""
    names = ("center_x", "center_y", "center_z", "heading", "velocity_x", "velocity_y")
    tracks = [[[getattr(s, n) for n in names] for s in t.states] for t in scenario.tracks]
    return {
        "id": scenario.scenario_id,
        "states": np.float64(tracks),
        "valid": np.array([[state.valid for state in track.states] for track in scenario.tracks]),
        "type": np.int64([track.object_type for track in scenario.tracks]),
        "to_predict": np.int64([each.track_index for each in scenario.tracks_to_predict]),
    }


def main():
    descriptors = compiled()
    from waymo_open_dataset.protos import map_pb2, scenario_pb2

    pack("scenario.pb", descriptors)
    scenarios = [scenario_of(number, scenario_pb2, map_pb2) for number in (1, 2)]
    examples = [example_of(each) for each in scenarios]
    expected = {}
    for name, messages in (
        ("training.tfrecord", scenarios),
        ("training_tfexample.tfrecord", examples),
    ):
        path = f"{tempfile.mkdtemp()}/{name}"
        with tf.io.TFRecordWriter(path) as writer:
            for message in messages:
                writer.write(message.SerializeToString(deterministic=True))
        pack(name, Path(path).read_bytes())
        for number, data in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator()):
            if messages is scenarios:
                found = fields_of(scenario_pb2.Scenario.FromString(data))
            else:
                found = tf.io.parse_single_example(data, tutorial_features())
            expected |= {f"{name}:{number}:{key}": np.array(value) for key, value in found.items()}
    np.savez_compressed(HERE / "expected.npz", **expected)


main()
