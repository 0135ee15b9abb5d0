"""The lattice by torchaudio's rnnt_loss, which has a CUDA kernel.

Two columns a node are a transducer of a vocabulary of two: blank 0, all labels 1.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.base import (
    LOG_ZERO,
    Backend,
    Padding,
    normalize_occupancies,
)
from espnet_sampled_rnnt.loss.lattice.reference import ReferenceBackend


class TorchaudioBackend(Backend):
    """CPU and CUDA, float32."""

    name = "torchaudio"

    def unavailable(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> str | None:
        """See :meth:`Backend.unavailable`."""
        if dtype != torch.float32:
            return f"it computes in float32, not in {dtype}; choose reference"
        if device.type not in ("cpu", "cuda"):
            return f"it runs on CPU and CUDA, not on {device.type}; choose reference"
        if importlib.util.find_spec("torchaudio") is None:
            return "torchaudio is not installed; pip install torchaudio"
        try:
            _rnnt_loss()
        except (ImportError, OSError, AttributeError) as error:
            return (
                f"torchaudio does not load beside torch {torch.__version__} ({error}); "
                f"install the torchaudio that goes with this torch"
            )
        return None

    def run(
        self,
        arcs: Tensor,
        frames: Sequence[int],
        labels: Sequence[int],
        occupancies: bool,
    ) -> Tensor:
        """See :meth:`Backend.run`."""
        if max(labels) == 0:
            # torchaudio takes no empty target axis; there is one path a lattice.
            return ReferenceBackend().run(arcs, frames, labels, occupancies)
        device = arcs.device
        padding = Padding(frames, labels, device)
        padded = padding.pad(arcs, 0.0).clamp_(min=LOG_ZERO)
        lengths = [
            torch.tensor(list(x), dtype=torch.int32, device=device)
            for x in (frames, labels)
        ]
        targets = torch.ones(len(labels), max(labels), dtype=torch.int32, device=device)
        # The gradient is asked for even where it is not needed: torchaudio makes it
        # on the way.
        with torch.enable_grad():
            leaf = padded.requires_grad_()
            losses = _rnnt_loss()(
                leaf,
                targets,
                *lengths,
                blank=0,
                clamp=-1,
                reduction="none",
                fused_log_softmax=False,
            )
            if occupancies:
                (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        losses = losses.detach()
        losses = torch.where(losses >= -LOG_ZERO, torch.inf, losses)
        if occupancies:
            result = normalize_occupancies(gradient.neg_())
            bad = ~torch.isfinite(losses)
            result.masked_fill_(bad[:, None, None, None], 0.0)
            padding.unpad_into(result, arcs)
        return losses


def _rnnt_loss():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its announcements of removal
        import torchaudio.functional

        return torchaudio.functional.rnnt_loss
