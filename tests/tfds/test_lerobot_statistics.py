"""Statistics of LeRobot datasets, against plain NumPy over all values."""

import numpy as np
import pytest

from index_tools.lerobot_features import PixelStatistics, merge_statistics, number_statistics

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def pixels(num_frames, height, width):
    random = np.random.default_rng(height)
    levels = np.array([40, 90, 200]) + random.integers(-40, 41, (num_frames, height, width, 3))
    return levels.astype(np.uint8)


@pytest.mark.parametrize(
    ("num_frames", "height", "width", "step"), [(3, 20, 30, 1), (2, 300, 400, 2), (1, 640, 310, 4)]
)
def test_pixels(num_frames, height, width, step):
    frames = pixels(num_frames, height, width)
    statistics = PixelStatistics(num_frames)
    assert statistics.numbers == set(range(num_frames))
    for frame in frames:
        statistics.add(frame)
    found = {name: np.array(value) for name, value in statistics.result().items()}
    # of large frames, every few rows and columns
    counted = frames[:, ::step, ::step].reshape(-1, 3) / 255
    assert found["count"].tolist() == [num_frames]
    for name in ("min", "max", "mean", "std"):
        assert found[name].shape == (3, 1, 1)
        np.testing.assert_allclose(found[name][:, 0, 0], getattr(counted, name)(axis=0), rtol=1e-6)
    for name, share in QUANTILES.items():
        wanted = np.quantile(counted, share, axis=0)
        np.testing.assert_allclose(found[name][:, 0, 0], wanted, atol=1.01 / 255)  # within a level


def test_the_frames_that_count_in_long_episodes():
    assert len(PixelStatistics(100).numbers) == 100
    assert len(PixelStatistics(1000).numbers) == 177  # 1000 ** 0.75
    assert {0, 999} <= PixelStatistics(1000).numbers
    assert len(PixelStatistics(10**6).numbers) == 10_000


@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 2, 3)])
def test_numbers(shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = number_statistics(values)
    rows = values.reshape(-1, shape[-1] if len(shape) > 1 else 1)
    assert found["count"] == [50]
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(found[name], getattr(rows, name)(axis=0), rtol=1e-4, atol=1e-6)
    for name, share in QUANTILES.items():
        below = (rows <= found[name]).mean(axis=0)
        np.testing.assert_allclose(below, share, atol=1.01 / len(rows))


def test_one_row_and_values_that_are_not_finite():
    names = ("min", "max", "mean", *QUANTILES)
    wanted = {name: [2.0, 3.0] for name in names} | {"std": [0.0, 0.0], "count": [1]}
    assert number_statistics(np.array([[2.0, 3.0]], np.float32)) == wanted
    found = number_statistics(np.array([[1.0, 0.0], [np.nan, 1.0], [np.inf, 2.0]], np.float32))
    assert np.isnan(found["mean"][0])
    assert found["mean"][1] == 1.0


def test_all_episodes_together():
    parts = [
        np.random.default_rng(number).standard_normal((length, 2))
        for number, length in enumerate((5, 40, 7))
    ]
    each = [number_statistics(part) for part in parts]
    found = merge_statistics({name: [part[name] for part in each] for name in each[0]})
    rows = np.concatenate(parts)
    assert found["count"] == [52]
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(found[name], getattr(rows, name)(axis=0), rtol=1e-9)
    medians = [part["q50"] for part in each]  # the mean of the episodes' medians, as LeRobot has it
    np.testing.assert_allclose(found["q50"], np.average(medians, axis=0, weights=[5, 40, 7]))
