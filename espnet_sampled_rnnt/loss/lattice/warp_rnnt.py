"""The lattice by warp-rnnt (optional, CUDA, github.com/1ytic/warp-rnnt)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.base import (
    LOG_ZERO,
    Backend,
    Padding,
    normalize_occupancies,
)


class WarpRnntBackend(Backend):
    """CUDA, float32; needs the package warp-rnnt, which compiles itself."""

    name = "warp_rnnt"

    def unavailable(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> str | None:
        """See :meth:`Backend.unavailable`."""
        if dtype != torch.float32:
            return f"it computes in float32, not in {dtype}; choose reference"
        if device.type != "cuda":
            return f"it runs on CUDA, not on {device.type}; choose auto"
        if importlib.util.find_spec("warp_rnnt") is None:
            return "warp_rnnt is not installed; pip install warp-rnnt (needs nvcc)"
        try:
            import warp_rnnt  # noqa: F401
        except (ImportError, OSError) as error:
            return f"warp_rnnt does not load: {error}"
        return None

    def run(
        self,
        arcs: Tensor,
        frames: Sequence[int],
        labels: Sequence[int],
        occupancies: bool,
    ) -> Tensor:
        """See :meth:`Backend.run`."""
        import warp_rnnt

        device = arcs.device
        padding = Padding(frames, labels, device)
        padded = padding.pad(arcs, 0.0).clamp_(min=LOG_ZERO)
        lengths = [
            torch.tensor(list(x), dtype=torch.int32, device=device)
            for x in (frames, labels)
        ]
        # At least one column: the kernel indexes the labels.
        width = max(1, max(labels))
        if width > max(labels):
            padded = torch.cat([padded, torch.zeros_like(padded)], dim=2)
        targets = torch.ones(len(labels), width, dtype=torch.int32, device=device)
        with torch.enable_grad():
            leaf = padded.contiguous().requires_grad_()
            losses = warp_rnnt.rnnt_loss(
                leaf, targets, *lengths, reduction="none", blank=0
            )
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
