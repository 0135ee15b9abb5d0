"""The lattice by warp-rnnt (optional, CUDA, github.com/1ytic/warp-rnnt)."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.library import LibraryBackend


class WarpRnntBackend(LibraryBackend):
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

    def losses(
        self, log_probs: Tensor, targets: Tensor, frames: Tensor, labels: Tensor
    ) -> Tensor:
        """See :meth:`LibraryBackend.losses`."""
        import warp_rnnt

        return warp_rnnt.rnnt_loss(
            log_probs, targets, frames, labels, reduction="none", blank=0
        )
