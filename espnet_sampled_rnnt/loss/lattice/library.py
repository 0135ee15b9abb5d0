"""The lattice by a library's transducer loss.

Two columns a node are a transducer of a vocabulary of two: blank 0, all labels 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.base import (
    LOG_ZERO,
    Backend,
    Padding,
    normalize_occupancies,
)


class LibraryBackend(Backend):
    """Float32, on padded arcs, with the occupancies from the library's gradient."""

    @abstractmethod
    def losses(
        self, log_probs: Tensor, targets: Tensor, frames: Tensor, labels: Tensor
    ) -> Tensor:
        """The library's losses, (G,), differentiable by ``log_probs``.

        Args:
            log_probs: (G, T, U + 1, 2) float32, log p(blank) and log p(label).
            targets: (G, U) int32, all 1.
            frames: (G,) int32, T_b.
            labels: (G,) int32, U_b.
        """

    def run(
        self,
        arcs: Tensor,
        frames: Sequence[int],
        labels: Sequence[int],
        occupancies: bool,
    ) -> Tensor:
        """See :meth:`Backend.run`."""
        device = arcs.device
        padding = Padding(frames, labels, device)
        padded = padding.pad(arcs, 0.0).clamp_(min=LOG_ZERO)
        # At least one label column, even where no utterance has a label.
        width = max(1, max(labels))
        if width > max(labels):
            padded = torch.cat([padded, torch.zeros_like(padded)], dim=2)
        targets = torch.ones(len(labels), width, dtype=torch.int32, device=device)
        lengths = [
            torch.tensor(list(x), dtype=torch.int32, device=device)
            for x in (frames, labels)
        ]
        # The gradient is asked for even where it is not needed: these libraries make
        # it on the way.
        with torch.enable_grad():
            leaf = padded.contiguous().requires_grad_()
            losses = self.losses(leaf, targets, *lengths)
            if occupancies:
                (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        losses = losses.detach()
        losses = torch.where(losses >= -LOG_ZERO, torch.inf, losses)
        if occupancies:
            result = normalize_occupancies(gradient.neg())
            bad = ~torch.isfinite(losses)
            result.masked_fill_(bad[:, None, None, None], 0.0)
            padding.unpad_into(result, arcs)
        return losses
