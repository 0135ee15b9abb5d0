"""What a lattice backend offers; the contract is in the package's docstring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

# Stands for log 0 in libraries whose gradient makes NaN of -inf: below any sum of
# real log probabilities, far above the end of float32.
LOG_ZERO = -1e30


class Backend(ABC):
    """One way to run the lattice.

    Attributes:
        name: as given to ``backend=``.
    """

    name: str

    @abstractmethod
    def unavailable(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> str | None:
        """None where it can run, else the reason and what to install or choose."""

    @abstractmethod
    def run(
        self,
        arcs: Tensor,
        frames: Sequence[int],
        labels: Sequence[int],
        occupancies: bool,
    ) -> Tensor:
        """Losses of the utterances; ``arcs`` become occupancies where asked.

        Args:
            arcs: (n, 2) float32 or float64, contiguous, overwritten.
            frames: T_b of each utterance.
            labels: U_b of each utterance.
            occupancies: whether ``arcs`` shall hold the occupancies afterwards.

        Returns:
            (G,) losses in nats, in the type of ``arcs``.
        """


def normalize_occupancies(occupancies: Tensor) -> Tensor:
    """Make occupancies that float32 has blurred probabilities again, in place.

    A library that works in float32 gets an occupancy as exp(alpha + arc + beta -
    total): where the loss is large its rounding is no longer small, and the exp of it
    can be anything. But of each frame exactly one blank arc is taken, and of each
    label position exactly one label arc.

    Args:
        occupancies: (G, T, U + 1, 2), 0 on padding.
    """
    occupancies.clamp_(0.0, 1.0)
    blank, label = occupancies.unbind(-1)
    for arcs, axis in ((blank, 2), (label, 1)):
        total = arcs.sum(dim=axis, keepdim=True)
        arcs.div_(torch.where(total > 0, total, 1.0))
    return occupancies


class Padding:
    """Moves arcs between (n, 2), without padding, and (G, T, U + 1, 2)."""

    def __init__(
        self, frames: Sequence[int], labels: Sequence[int], device: torch.device
    ) -> None:
        widths = [u + 1 for u in labels]
        counts = [t * w for t, w in zip(frames, widths, strict=True)]
        self._shape = (len(counts), max(frames), max(widths))
        width, count = torch.tensor([widths, counts]).to(device)
        self._last_label = width - 1
        # The size is given, for else repeat_interleave would wait for the device.
        self._member = torch.repeat_interleave(count, output_size=sum(counts))
        first = count.cumsum(0) - count
        local = torch.arange(sum(counts), device=device) - first[self._member]
        self._frame = local // width[self._member]
        self._label = local % width[self._member]

    def pad(self, arcs: Tensor, fill: float) -> Tensor:
        """``arcs`` (n, 2) as a padded (G, T, U + 1, 2).

        ``fill`` stands on padding and in the label column at u = U_b, whose content
        a library may read though no path goes there.
        """
        padded = arcs.new_full((*self._shape, 2), fill)
        padded[self._member, self._frame, self._label] = arcs
        utterance = torch.arange(self._shape[0], device=arcs.device)
        padded[utterance, :, self._last_label, 1] = fill
        return padded

    def unpad_into(self, padded: Tensor, arcs: Tensor) -> None:
        """Write the valid part of ``padded`` (G, T, U + 1, 2) into ``arcs``."""
        arcs.copy_(padded[self._member, self._frame, self._label])
