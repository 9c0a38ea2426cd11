"""Small RLDS directories that the tests write, and the values that must come back."""

import numpy as np
import torch

from torch_tfrecord import encode_image, tfds

f = tfds.features
FEATURES = {
    "steps": f.Dataset(
        {
            "observation": {
                "image": f.Image((32, 40, 3), encoding_format="png"),
                "wrist_image": f.Image((16, 16, 3), encoding_format="png"),
                "state": f.Tensor((2,), "float32"),
            },
            "action": f.Tensor((3,), "float32"),
            "reward": f.Scalar("float32"),
            "is_first": f.Scalar("bool"),
            "is_last": f.Scalar("bool"),
            "language_instruction": f.Text(),
        }
    ),
    "episode_metadata": {"name": f.Text(), "success": f.Scalar("bool")},
}
LENGTHS = (5, 1, 40, 3)


def pixels(episode, step, height=32, width=40):
    """uint8 [3, height, width], of its episode and step alone; noise, so that lists of frames
    become large.
    """
    random = np.random.default_rng([episode, step, height])
    return torch.from_numpy(random.integers(0, 256, (3, height, width), dtype=np.uint8))


def action(episode, step):
    return torch.tensor([episode, step, 0.5])


def state(episode, step):
    return torch.tensor([episode * 100.0 + step, -1.0])


def make_episode(number, length):
    return {
        "steps": [
            {
                "observation": {
                    "image": encode_image(pixels(number, step), "png"),
                    "wrist_image": encode_image(pixels(number, step, 16, 16), "png"),
                    "state": state(number, step),
                },
                "action": action(number, step),
                "reward": float(step),
                "is_first": step == 0,
                "is_last": step == length - 1,
                "language_instruction": f"task {number} ü",
            }
            for step in range(length)
        ],
        "episode_metadata": {"name": f"episode {number}", "success": number % 2 == 0},
    }


def write_episodes(
    directory, lengths=LENGTHS, *, name="drawn", num_shards=2, features=None, change=None
):
    episodes = [make_episode(number, length) for number, length in enumerate(lengths)]
    if change is not None:
        episodes = [change(episode) for episode in episodes]
    tfds.write(
        directory, {"train": episodes}, features or FEATURES, name=name, num_shards=num_shards
    )
    return directory
