"""A stand-in for the package warp-rnnt, which needs nvcc and a GPU."""

from __future__ import annotations

import importlib.machinery
import types

import torch

from support.reference import lattice_loss


class FakeWarpRnnt(types.ModuleType):
    """What warp-rnnt documents, computed by the slow recursion.

    ``rnnt_loss(log_probs (N, T, U, V) float, labels (N, U - 1) int32,
    frames_lengths (N,) int32, labels_lengths (N,) int32, average_frames, reduction,
    blank, gather, fastemit_lambda)``, where U is one more than the labels.
    """

    def __init__(self) -> None:
        super().__init__("warp_rnnt")
        self.__spec__ = importlib.machinery.ModuleSpec("warp_rnnt", None)
        self.calls = 0

    def rnnt_loss(
        self,
        log_probs,
        labels,
        frames_lengths,
        labels_lengths,
        average_frames=False,
        reduction=None,
        blank=0,
        gather=False,
        fastemit_lambda=0.0,
    ):
        self.calls += 1
        batch, _, positions, _ = log_probs.shape
        assert log_probs.dtype == torch.float32
        assert log_probs.is_contiguous()
        for value in (labels, frames_lengths, labels_lengths):
            assert value.dtype == torch.int32
            assert value.is_contiguous()
        assert labels.shape == (batch, positions - 1)
        assert labels.size(1) >= 1
        assert not average_frames
        assert reduction in (None, "none", "mean", "sum")
        losses = []
        for b in range(batch):
            t, u = int(frames_lengths[b]), int(labels_lengths[b])
            part = log_probs[b, :t, : u + 1]
            by_label = part[:, torch.arange(u), labels[b, :u].long()]
            by_label = torch.nn.functional.pad(by_label, (0, 1))
            losses.append(lattice_loss(torch.stack([part[..., blank], by_label], -1)))
        return torch.stack(losses)
