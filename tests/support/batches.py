"""Random batches, ragged by default, with garbage where nothing may be read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from espnet_sampled_rnnt import sample_vocabulary, transducer_loss

FLOATS = ("enc", "dec", "weight", "bias")


@dataclass(frozen=True)
class Batch:
    """The positional arguments of ``transducer_loss``."""

    enc: Tensor
    dec: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    enc_lengths: Tensor
    target_lengths: Tensor

    @property
    def arguments(self) -> tuple:
        """In the order of the signature."""
        return (*self.floats, self.targets, self.enc_lengths, self.target_lengths)

    @property
    def floats(self) -> tuple[Tensor | None, ...]:
        """What gradients may flow to; the bias may be None."""
        return self.enc, self.dec, self.weight, self.bias

    @property
    def leaves(self) -> list[Tensor]:
        """The floats that are there and require a gradient."""
        return [x for x in self.floats if x is not None and x.requires_grad]

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.weight.size(0)

    def copy(self, requires_grad: bool = True, dtype=None) -> Batch:
        """The same values in new leaves, in ``dtype`` where given."""
        return replace(
            self,
            **{
                name: value
                if value is None
                else value.detach()
                .to(dtype or value.dtype, copy=True)
                .requires_grad_(requires_grad)
                for name, value in zip(FLOATS, self.floats, strict=True)
            },
        )

    def of(self, utterances: list[int]) -> Batch:
        """Some of the utterances."""
        return replace(
            self,
            **{
                name: getattr(self, name)[utterances].detach()
                for name in ("enc", "dec", "targets", "enc_lengths", "target_lengths")
            },
        )

    def loss(self, **options) -> Tensor:
        """``transducer_loss`` of the batch."""
        return transducer_loss(*self.arguments, **options)


def make_batch(
    frames=(7, 4, 5, 1),
    labels=(3, 5, 0, 2),
    *,
    vocab_size: int = 9,
    joint_size: int = 6,
    extra_frames: int = 0,
    extra_labels: int = 0,
    with_bias: bool = True,
    dtype: torch.dtype = torch.float32,
    blank: int = 0,
    scale: float = 1.0,
    garbage: bool = True,
    seed: int = 0,
    requires_grad: bool = True,
) -> Batch:
    """A random batch.

    Args:
        frames, labels: T_b and U_b.
        extra_frames, extra_labels: padding beyond the longest.
        scale: of the output layer.
        garbage: NaN in the padding of enc and dec, impossible ids in that of targets.
    """
    random = torch.Generator().manual_seed(seed)
    batch = len(frames)
    axis_t, axis_u = max(frames) + extra_frames, max(labels) + extra_labels

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    enc, dec = normal(batch, axis_t, joint_size), normal(batch, axis_u + 1, joint_size)
    targets = torch.randint(1, vocab_size, (batch, axis_u), generator=random)
    targets = torch.where(targets == blank, 0, targets)
    enc_lengths, target_lengths = torch.tensor(frames), torch.tensor(labels)
    if garbage:
        enc[torch.arange(axis_t) >= enc_lengths[:, None]] = torch.nan
        dec[torch.arange(axis_u + 1) > target_lengths[:, None]] = torch.nan
        behind = torch.arange(axis_u) >= target_lengths[:, None]
        nonsense = torch.tensor([-1, vocab_size, blank, 10**9])
        targets[behind] = nonsense[torch.arange(int(behind.sum())) % 4]
    result = Batch(
        enc.to(dtype),
        dec.to(dtype),
        (scale * normal(vocab_size, joint_size)).to(dtype),
        normal(vocab_size).to(dtype) if with_bias else None,
        targets,
        enc_lengths,
        target_lengths,
    )
    return result.copy(requires_grad)


def options_of(batch: Batch, mode: str, num_samples: int = 5) -> dict:
    """Options of the loss: "full", or a scope with a vocabulary of ``batch``."""
    if mode == "full":
        return {}
    vocabulary = sample_vocabulary(
        batch.targets,
        batch.target_lengths,
        batch.vocab_size,
        num_samples,
        scope=mode,
        generator=torch.Generator().manual_seed(2),
    )
    return {"vocabulary": vocabulary, "correction": 1.0}


def gradients(loss: Tensor, batch: Batch) -> list[Tensor]:
    """Of the leaves of ``batch``, for an upstream gradient unlike in each utterance."""
    if loss.dim() == 0:
        return list(torch.autograd.grad(loss, batch.leaves))
    upstream = torch.linspace(-1.0, 2.0, loss.numel(), dtype=loss.dtype)
    return list(torch.autograd.grad(loss, batch.leaves, upstream))


def relative_error(value: Tensor, truth: Tensor) -> float:
    """Largest difference, relative to the largest magnitude in ``truth``."""
    difference = (value.detach().double() - truth.detach().double()).abs().max()
    return float(difference / truth.detach().double().abs().max().clamp(min=1e-30))
