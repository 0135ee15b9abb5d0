"""The worst batch at any size of batch, and the largest size that fits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import lru_cache

from espnet_sampled_rnnt.commands.memory.batches import (
    BINNED_TYPES,
    Batch,
    Shapes,
    make_batches,
)
from espnet_sampled_rnnt.commands.memory.model import Model
from espnet_sampled_rnnt.commands.memory.prediction import Worst, worst

__all__ = ["Search"]

# A suggestion is within this factor of the largest that fits.
_PRECISION = 1.03
# Sizes to draw, as multiples of the configuration's.
_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)


class Search:
    """Batches and their worst, made once for each size.

    A size is ``batch_bins`` or ``batch_size``, whichever the batch type goes by.
    """

    def __init__(
        self,
        shapes: Shapes,
        options: argparse.Namespace,
        model: Model,
        num_gpus: int,
        device_type: str,
    ) -> None:
        self.shapes = shapes
        self.options = options
        self.model = model
        self.num_gpus = num_gpus
        self.device_type = device_type
        binned = options.batch_type in BINNED_TYPES
        self.size_option = "batch_bins" if binned else "batch_size"
        size = getattr(options, self.size_option)
        if isinstance(size, bool) or not isinstance(size, int):
            raise ValueError(f"{self.size_option} is {size!r}, no whole number")
        self.configured = size
        # A folded sampler divides by it, and one of bins needs one.
        self.smallest = max(1, num_gpus)
        # The worst of a size does not change; making the batches takes the time.
        self.batches = lru_cache(maxsize=None)(self._batches)
        self.worst = lru_cache(maxsize=None)(self._worst)

    def _batches(self, size: int) -> list[Batch]:
        return make_batches(self.shapes, self.options, self.num_gpus, size)

    def _worst(self, loss: str, size: int) -> Worst:
        return worst(loss, self.model, self.batches(size), self.device_type)

    def largest(self, loss: str, budget: int) -> int | None:
        """The largest size whose worst batch fits; None where none does.

        Args:
            loss: one of the losses.
            budget: bytes, for the loss and what the rest keeps.
        """
        if not self._fits(loss, self.smallest, budget):
            return None
        fits, fails = self.smallest, self.configured
        while self._fits(loss, fails, budget):
            fits = fails
            if len(self.batches(fails)) <= self.num_gpus:
                return fits  # all utterances are one batch already
            fails *= 2
        while fails > max(fits + 1, int(fits * _PRECISION)):
            middle = (fits + fails) // 2
            if self._fits(loss, middle, budget):
                fits = middle
            else:
                fails = middle
        return _round_down(fits)

    def _fits(self, loss: str, size: int, budget: int) -> bool:
        return self.worst(loss, size).total_bytes <= budget

    def around(self, losses: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """(size, total bytes) of each loss near the configuration's size."""
        sizes = sorted({max(self.smallest, int(x * self.configured)) for x in _AROUND})
        return {
            loss: [(size, self.worst(loss, size).total_bytes) for size in sizes]
            for loss in losses
        }


def _round_down(number: int) -> int:
    """To two digits, as one would write it."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit
