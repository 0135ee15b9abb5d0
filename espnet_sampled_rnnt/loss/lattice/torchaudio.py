"""The lattice by torchaudio's rnnt_loss, which has a CUDA kernel."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.library import LibraryBackend
from espnet_sampled_rnnt.loss.lattice.reference import ReferenceBackend


class TorchaudioBackend(LibraryBackend):
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
            # torchaudio takes no target axis longer than the longest target; and
            # there is one path a lattice.
            return ReferenceBackend().run(arcs, frames, labels, occupancies)
        return super().run(arcs, frames, labels, occupancies)

    def losses(
        self, log_probs: Tensor, targets: Tensor, frames: Tensor, labels: Tensor
    ) -> Tensor:
        """See :meth:`LibraryBackend.losses`."""
        return _rnnt_loss()(
            log_probs,
            targets,
            frames,
            labels,
            blank=0,
            clamp=-1,
            reduction="none",
            fused_log_softmax=False,
        )


def _rnnt_loss():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its announcements of removal
        import torchaudio.functional

        return torchaudio.functional.rnnt_loss
