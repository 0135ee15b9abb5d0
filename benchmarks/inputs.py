"""The tensors of a workload, the same for every contender."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.workloads import Workload
from espnet_sampled_rnnt import SampledVocabulary, sample_vocabulary


@dataclass(frozen=True)
class Inputs:
    """Inputs of a loss, float32 on one device; the first four want gradients.

    Attributes:
        enc: (B, T, J).
        dec: (B, U + 1, J).
        weight: (V, J).
        bias: (V,).
        targets: (B, U) int64, in [1, V); blank is 0.
        enc_lengths: (B,) int64.
        target_lengths: (B,) int64.
    """

    enc: Tensor
    dec: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    enc_lengths: Tensor
    target_lengths: Tensor

    @property
    def wanted(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tensors whose gradients a step makes."""
        return self.enc, self.dec, self.weight, self.bias


def make_inputs(workload: Workload, device: torch.device, seed: int) -> Inputs:
    """Random inputs; made on the CPU, so that every device gets the same."""
    generator = torch.Generator().manual_seed(seed)
    frames, labels = max(workload.frames), max(workload.labels)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=generator).mul_(scale)
        return values.to(device).requires_grad_()

    # First, so that the labels do not depend on the joint width.
    targets = torch.randint(
        1, workload.vocab_size, (workload.batch, labels), generator=generator
    )
    return Inputs(
        enc=normal(workload.batch, frames, workload.joint_size),
        dec=normal(workload.batch, labels + 1, workload.joint_size),
        weight=normal(workload.vocab_size, workload.joint_size, scale=0.1),
        bias=normal(workload.vocab_size),
        targets=targets.to(device),
        enc_lengths=torch.tensor(workload.frames, device=device),
        target_lengths=torch.tensor(workload.labels, device=device),
    )


def draw_vocabulary(
    workload: Workload, inputs: Inputs, scope: str, seed: int
) -> SampledVocabulary:
    """A uniform draw; with one seed the same for every contender."""
    return sample_vocabulary(
        inputs.targets,
        inputs.target_lengths,
        vocab_size=workload.vocab_size,
        num_samples=workload.num_samples,
        scope=scope,
        generator=torch.Generator().manual_seed(seed),
    )
