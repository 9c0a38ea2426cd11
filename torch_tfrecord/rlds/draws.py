"""Draws for each sample of steps: which of several features it has, and whether a feature is there at all."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tfrecord.arguments import integer
from torch_tfrecord.batch_memory import Keys, as_array
from torch_tfrecord.random_stream import record_keys
from torch_tfrecord.rlds.episode_columns import EpisodeColumn, ValueColumn, each_leaf
from torch_tfrecord.shown import shown_value

__all__ = ["Draw", "Drawn", "DrawnColumn", "Mask", "MaskedColumn", "OneOf", "declared"]


@dataclass(frozen=True)
class OneOf:
    """One of several features of a step, drawn for each sample: a camera, or an instruction.

    It takes the place of a name in `features` of `RLDSDataset`: the sample has the drawn feature under
    its key, or in a list under the first of `names`, and none of the others. Only the drawn one is
    read and decoded. All steps of a sample, its goal too, have the same one. A draw is a pure function
    of the seed, the epoch, the step and the key: see `RLDSDataset.set_epoch`.

    Args:
        names: Features beside the key, or their paths below the mapping that it is in.
        seed: Decides the draws; an integer of any size.

    Raises:
        TypeError: The names are no list of str, or `seed` is no integer.
        ValueError: There are no names.

    Example:
        >>> camera = OneOf(["exterior_image_1_left", "exterior_image_2_left"])
        >>> features = {"steps": {"observation": {"image": camera}, "action": True}}
        >>> RLDSDataset("droid/1.0.1", features=features)[0]["observation"]["image"].shape  # doctest: +SKIP
        torch.Size([1, 3, 180, 320])
    """

    names: Sequence[str]
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        integer("seed", self.seed)
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            raise TypeError(f"OneOf takes a list of names, got {shown_value(self.names)}")
        if not self.names:
            raise ValueError("OneOf needs at least one name")


@dataclass(frozen=True)
class Mask:
    """A feature of a step that some samples lack, as recipes mask cameras, states and instructions.

    It takes the place of True, or of a `OneOf`, in a nested mapping of `features`. Where it is
    masked, the sample has zeros in place of numbers and pictures, and "" in place of a text. A mapping
    `pad_mask_dict` beside the feature is False there, as in Octo: bool [window_size] in an observation,
    else one bool. Goals are not masked. See `OneOf` for what decides the draws.

    Args:
        probability: How many of the samples lack it, from 0 to 1.
        of: What is there otherwise; None for the feature of that name.
        seed: Decides the draws; an integer of any size.

    Raises:
        TypeError: An argument is of another type.
        ValueError: `probability` is not from 0 to 1.

    Example:
        >>> observation = {"image": True, "wrist_image": Mask(0.1)}
        >>> RLDSDataset("bridge/0.1.0", features={"steps": {"observation": observation}})  # doctest: +SKIP
    """

    probability: float
    of: OneOf | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        integer("seed", self.seed)
        if not isinstance(self.of, (OneOf, type(None))):
            raise TypeError(f"of must be a OneOf or None, got {shown_value(self.of)}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be from 0 to 1, got {self.probability}")


class Draw(NamedTuple):
    """A declared draw.

    Attributes:
        path: Where the sample has what is drawn.
        options: The paths of the features that it is one of.
        seeds: Decide the draws.
        mask: How many of the samples lack it; None if it is not a `Mask`.
    """

    path: str
    options: list[str]
    seeds: tuple[int, ...]
    mask: float | None

    def drawn(self, keys: Keys) -> tuple[list[int], list[bool]]:
        """For each key the number of an option, and whether it is masked."""
        own = (*self.seeds, zlib.crc32(self.path.encode()))
        bits = (record_keys(keys.view(np.int64), which, *own) for which in range(2))
        # From 0 to below 1.
        chance, other = ((each >> np.uint64(11)) * 2.0**-53 for each in bits)
        options = (chance * len(self.options)).astype(np.int64)
        return options.tolist(), (other < (self.mask or 0)).tolist()


def declared(chosen: Any) -> tuple[Any, list[Draw]]:
    """Split the `features` of a dataset of steps: names alone, and the draws.

    Example:
        >>> names, draws = declared({"steps": {"a": True, "image": OneOf(["left", "right"])}})
        >>> names, draws[0].path, draws[0].options
        ({'steps': {'a': True, 'image': []}}, 'steps/image', ['steps/left', 'steps/right'])
    """
    draws: list[Draw] = []

    def names_of(item: Any, names: tuple[str, ...], is_named: bool) -> Any:
        if isinstance(item, (OneOf, Mask)):
            one = item if isinstance(item, OneOf) else item.of
            if one is None and not is_named:
                raise TypeError("Mask takes the place of True: {'image': Mask(0.1)}")
            beside = names[:-1] if is_named else names
            wanted = names[-1:] if one is None else one.names
            options = ["/".join((*beside, name)) for name in wanted]
            path = "/".join(names) if is_named else options[0]
            seeds = (item.seed, 0 if one is None else one.seed)
            draws.append(Draw(path, options, seeds, getattr(item, "probability", None)))
            return []
        if type(item) is dict:
            return {name: names_of(inner, (*names, name), True) for name, inner in item.items()}
        if isinstance(item, (list, tuple, set, frozenset)):
            return [names_of(inner, names, False) for inner in item]
        return item

    return names_of(chosen, (), False), draws


class DrawnColumn(EpisodeColumn):
    """The columns of the options of a draw; an `episode_transform` may move it, not read it."""

    __slots__ = ("draw", "is_sized", "options")

    def __init__(self, draw: Draw, options: Sequence[EpisodeColumn]) -> None:
        self.draw, self.options = draw, options
        # Whether zeros can take the place of pictures that nobody has looked at.
        plan, *others = {(getattr(column, "decoding", None) or ())[2:] for column in options}
        image, shape = plan or (None, ())
        self.is_sized = image and not others and (image.crop or None not in shape)
        self.num_bytes = sum(column.num_bytes for column in options)

    def __len__(self) -> int:
        return len(self.options[0])


class MaskedColumn(ValueColumn):
    """Pictures of a known size that a sample lacks; its goal may have them."""


class Drawn:
    """The draws of the samples of a batch, by their keys."""

    def __init__(self, draws: Sequence[Draw], keys: Keys) -> None:
        self._by_path = {draw.path: draw.drawn(keys) for draw in draws}

    def steps(self, tree: object, number: int) -> Any:
        """The columns of the steps of the episode of a sample, with the drawn ones."""

        def take(column: object) -> object:
            if not isinstance(column, DrawnColumn):
                return column
            options, masked = self._by_path[column.draw.path]
            found = column.options[options[number]]
            if not masked[number] or not isinstance(found, ValueColumn):
                return found
            # Where all of a batch are masked, nothing else says what zeros to make.
            if column.is_sized and not all(masked):
                return MaskedColumn(found.values, found.decoding, found._record)
            # The instruction of a sample is looked for in its columns.
            if found.is_list and len(found) and isinstance(found.at(0), str):
                return ValueColumn([""] * len(found), is_list=True)
            return found

        return each_leaf(tree, take)

    def mask(self, trees: Sequence[Mapping[str, object]], columns: dict[str, Any]) -> None:
        """Mask the columns of the batch that were made of the samples' trees of steps."""
        for name in trees[0]:
            found: list[Any] = [tree[name] for tree in trees]
            # An `episode_transform` may have moved another draw here in another episode.
            draws = [getattr(column, "draw", None) for column in found]
            if isinstance(found[0], Mapping):
                self.mask(found, columns[name])
            elif any(draw and draw.mask is not None for draw in draws):
                masked = [
                    draw is not None and self._by_path[draw.path][1][number]
                    for number, draw in enumerate(draws)
                ]
                values = columns[name]
                if isinstance(values, torch.Tensor):
                    # torch takes longer for a mask of pictures than for decoding them.
                    as_array(values)[masked] = 0
                else:
                    pairs = zip(values, masked, strict=True)
                    columns[name] = [_nothing(value) if gone else value for value, gone in pairs]
                columns.setdefault("pad_mask_dict", {})[name] = ~torch.tensor(masked, device="cpu")


def _nothing(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return [*map(_nothing, value)] if isinstance(value, list) else type(value)()
