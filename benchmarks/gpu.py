"""How well a GPU is fed: rates of batches on the host, pinned and on the device; a ResNet-50, and a step of many small
kernels, with one batch again and again and then fed by a loader.

    python benchmarks/gpu.py                          # some five minutes; draws its own JPEGs
    python benchmarks/gpu.py --parts rates            # two minutes: how much of the host's rate a device gets
    taskset -c 0,1 python benchmarks/gpu.py --parts resnet
    python benchmarks/gpu.py --photos ~/photos
    python benchmarks/gpu.py --device cpu --seconds 0.2 --batch 4 --fraction 0.01    # whether it runs

Medians of rounds, in which all sides of a table take turns: a CPU launches kernels at one rate now and at another a
minute later. Without a GPU it measures what needs none, and says what it left out. "waits" is the share of its time in
which the device has nothing to do: what is missing from the rate with one constant batch.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from corpus import Corpora
from lock import CACHE, loader_of
from report import grid
from workloads import CROP, MEAN, STD

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    TFRecordDataset,
    make_dataloader,
)

__all__: list[str] = []

# Batches before the clock starts: cudnn's choice of kernels, and what a loader has made ahead.
_LEAD_IN = 8
_SETTLING_SECONDS = 2
_DECODE_ON = ("cpu", "device", "auto")
_PARTS = ("rates", "threads", "decoding", "resnet", "kernels")
_NUM_KERNELS = 2_000
# As many as a CPU of 16 cores decodes in half of such a step.
_FEW_IMAGES = 64


class _Bench:
    """The devices, times and files that all measurements share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seconds, self.batch = arguments.seconds, arguments.batch
        self.rounds = arguments.rounds
        self.device = None if arguments.device is None else torch.device(arguments.device)
        self.share = arguments.fraction
        self.corpora = Corpora(CACHE, arguments.photos, arguments.fraction)

    def images(self, size: int | None = None, decode_on: Any = "cpu", **options: Any) -> Any:
        """Random crops with a flip, uint8, and labels."""
        crop = Image(crop=RandomResizedCrop(CROP, horizontal_flip=0.5), decode_on=decode_on)
        label = FixedLenFeature((), torch.int64)
        path, features = self.corpora.path("images"), {"image": crop, "label": label}
        size = min(size or self.batch, self.corpora.count("images"))
        return make_dataloader(path, size, features, num_epochs=None, drop_last=True, **options)

    def per_second(self, step: Callable[[Any], object], **sides: Iterator[Any]) -> list[float]:
        """Steps a second with the batches of each side, until the device has done them all."""
        return [rate for rate, _ in self.measured(step, **sides)]

    def measured(
        self, step: Callable[[Any], object], lead_in: int = _LEAD_IN, **sides: Iterator[Any]
    ) -> list[tuple[float, float]]:
        """The same, and the CPU's seconds a step."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(self.rounds):
            for name, batches in sides.items():
                for batch in itertools.islice(batches, lead_in):
                    step(batch)
                self.synchronize()
                done, begin, used = 0, time.perf_counter(), time.process_time()
                while done < 2 or time.perf_counter() < begin + self.seconds:
                    step(next(batches))
                    done += 1
                self.synchronize()
                seconds, used = time.perf_counter() - begin, time.process_time() - used
                found[name].append((done / seconds, used / done))
        return [
            (statistics.median(rates), statistics.median(used))
            for rates, used in (zip(*rounds, strict=True) for rounds in found.values())
        ]

    def synchronize(self) -> None:
        if self.device is not None and self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def rates(self, *loaders: Any) -> list[float]:
        """Batches a second that nobody looks at."""
        sides = {str(number): iter(loader) for number, loader in enumerate(loaders)}
        return self.per_second(lambda batch: None, **sides)


def _show(titles: tuple[str, ...], *rows: tuple[object, ...]) -> None:
    print(f"\n{grid(titles, rows)}", flush=True)


def _rates(bench: _Bench) -> None:
    options: list[dict[str, Any]] = [{}]
    if bench.device is not None:
        is_cpu = bench.device.type == "cpu"
        options += [{} if is_cpu else {"pin_memory": True}, {"device": bench.device}]
    rows = []
    for work in ("tokens", "embeddings", "40 scalars", "40 scalars, few rows", "crops"):
        loaders = [loader_of(work, bench.share, **each) for each in options]
        size = loaders[0][1]
        sides = {str(number): iter(loader) for number, (loader, _) in enumerate(loaders)}
        found = bench.measured(lambda batch: None, **sides)
        shown = [
            cell for rate, cpu in found for cell in (f"{size * rate:,.0f}", f"{1000 * cpu:.3f}")
        ]
        shown += [f"{rate / found[0][0]:.2f}" for rate, _ in found[1:]]
        rows.append((f"{work}, batch {size:,}", *shown, *["left out"] * (8 - len(shown))))
    titles = [
        title for side in ("host", "pinned", "on the device") for title in (side, "CPU ms a batch")
    ]
    _show(("samples a second", *titles, "pinned/host", "device/host"), *rows)


def _threads(bench: _Bench) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = sorted({1, 2, 4, 8, cores - 1, cores} & {*range(1, cores + 1)})
    rates = (bench.batch * bench.rates(bench.images(num_threads=count))[0] for count in counts)
    row = ("RandomResizedCrop 224, uint8", *(f"{rate:,.0f}" for rate in rates))
    _show(("images a second, on the host", *(f"{count} threads" for count in counts)), row)


def _decoding(bench: _Bench, device: torch.device) -> None:
    from torchcodec.decoders import decode_jpeg

    stored = TFRecordDataset(
        bench.corpora.path("images"), {"image": FixedLenFeature((), bytes)}, index="memory"
    )
    encoded = [
        torch.frombuffer(bytearray(sample["image"]), dtype=torch.uint8)
        for sample in stored[: bench.batch]
    ]
    allowed = sorted(os.sched_getaffinity(0))
    rows = []
    for count in sorted({1, 4, 16, len(allowed)} & {*range(1, len(allowed) + 1)}):
        os.sched_setaffinity(0, allowed[:count])  # and all threads from here on
        sides = {side: iter(bench.images(decode_on=side, device=device)) for side in _DECODE_ON}
        sides["nvJPEG"] = (decode_jpeg(encoded, device=device) for _ in itertools.count())
        for side in _DECODE_ON:  # shares settle
            end = time.perf_counter() + _SETTLING_SECONDS
            collections.deque(
                itertools.takewhile(lambda _, end=end: time.perf_counter() < end, sides[side]), 0
            )
        found = bench.measured(lambda batch: None, 2, **sides)
        per_image = [(bench.batch * rate, 1000 * cpu / bench.batch) for rate, cpu in found]
        rows.append((count, *(f"{rate:,.0f} | {cpu:.3f}" for rate, cpu in per_image)))
    sides = ("cpu", "device", "auto", "nvJPEG alone")
    _show(("cores", *(title for side in sides for title in (side, "CPU ms"))), *rows)
    os.sched_setaffinity(0, allowed)


class _ResNet:
    """A step of training in bfloat16, channels last."""

    def __init__(self, device: torch.device) -> None:
        self._model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.1, momentum=0.9)
        self._mean, self._std = (
            torch.tensor([255 * value for value in values], device=device).view(3, 1, 1)
            for values in (MEAN, STD)
        )
        self._type = device.type

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        with torch.autocast(self._type, torch.bfloat16):
            images = (batch["image"] - self._mean) / self._std
            images = images.to(memory_format=torch.channels_last)
            loss = torch.nn.functional.cross_entropy(self._model(images), batch["label"])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class _SmallKernels:
    """As many launches as a model of many small layers has."""

    def __init__(self, device: torch.device) -> None:
        self._x = torch.zeros(64, device=device)

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        for _ in range(_NUM_KERNELS):
            self._x.add_(1)
        column = next(iter(batch.values()))
        self._x.add_(column[(0,) * column.dim()])


def _constant(loader: Any) -> Iterator[Any]:
    return itertools.repeat(next(iter(loader)))


def _resnet(bench: _Bench, device: torch.device) -> None:
    sides = {
        "one batch again and again": _constant(bench.images(device=device)),
        'make_dataloader(device="cuda")': iter(bench.images(device=device)),
        'decode_on="device"': iter(bench.images(device=device, decode_on="device")),
        'decode_on="auto"': iter(bench.images(device=device, decode_on="auto")),
        "make_dataloader, batch.to(device)": (
            {name: column.to(device) for name, column in batch.items()} for batch in bench.images()
        ),
    }
    rates = bench.per_second(_ResNet(device), **sides)
    shares = [rate / rates[0] for rate in rates]
    _show(
        (f"ResNet-50, batch {bench.batch}", "images/s", "of the constant batch", "waits"),
        *(
            (name, f"{bench.batch * rate:,.0f}", f"{share:.2f}", f"{max(1 - share, 0):.0%}")
            for name, rate, share in zip(sides, rates, shares, strict=True)
        ),
    )


def _kernels(bench: _Bench, device: torch.device) -> None:
    images = bench.images(size=_FEW_IMAGES, device=device)
    sides = {
        "one batch again and again": _constant(loader_of("tokens", bench.share, device=device)[0]),
        "beside tokens": iter(loader_of("tokens", bench.share, device=device)[0]),
        f"beside images, batch {_FEW_IMAGES}": iter(images),
    }
    rates = bench.per_second(_SmallKernels(device), **sides)
    _show(
        (f"a step of {_NUM_KERNELS:,} small kernels", "ms", "times the constant batch"),
        *(
            (name, f"{1000 / rate:.1f}", f"{rates[0] / rate:.2f}")
            for name, rate in zip(sides, rates, strict=True)
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else None)
    parser.add_argument("--photos", type=Path, help="a folder of .jpg files; drawn ones otherwise")
    parser.add_argument("--batch", type=int, default=256, help="pictures in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="at least, for a measurement")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--fraction", type=float, default=1.0, help="how much data to write")
    arguments = parser.parse_args()
    bench = _Bench(arguments)
    where = "no GPU" if bench.device is None else str(bench.device)
    if bench.device is not None and bench.device.type == "cuda":
        where = torch.cuda.get_device_name(bench.device)
    print(f"torch {torch.__version__}, {os.cpu_count()} processors, {where}", flush=True)
    bench.batch = min(bench.batch, bench.corpora.count("images"))
    parts: dict[str, Callable[..., None]] = {"rates": _rates, "threads": _threads}
    on_device = {"decoding": _decoding, "resnet": _resnet, "kernels": _kernels}
    for part in arguments.parts:
        if part in parts:
            parts[part](bench)
        elif bench.device is not None:
            on_device[part](bench, bench.device)
    if bench.device is None:
        print("\nleft out without a GPU: pinned, on the device, " + ", ".join(on_device))


if __name__ == "__main__":
    main()
