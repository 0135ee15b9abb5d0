"""``warprnnt_pytorch`` without a compile step, for ESPnet's own transducer.

ESPnet's stock transducers import their loss from a package of that name, which no
registry serves and which has to be compiled. :mod:`espnet_sampled_rnnt.registration`
puts this module in its place where it is asked to, see ``docs/warprnnt.md``.

It does what warp-transducer's PyTorch binding does (in the fork that ESPnet's
installer takes: names, order of arguments, defaults, shapes, what is refused), and
costs what that costs: the logits of all nodes and their gradient, both whole. Our own
:func:`~espnet_sampled_rnnt.transducer_loss` is the one that does without.

B utterances, T frames, U labels, V vocabulary, n nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from espnet_sampled_rnnt.checks import (
    check_holds_numbers,
    check_is_plain_tensor,
    check_lengths,
    check_same_size,
    check_targets,
)
from espnet_sampled_rnnt.loss.lattice import Backend, resolve
from espnet_sampled_rnnt.loss.options import REDUCTIONS
from espnet_sampled_rnnt.loss.output import make_arc_columns

__all__ = ["RNNTLoss", "rnnt_loss"]

# Logits that are worked on at a time, in the computing type: beside the gradient
# nothing of the logits' size is made. Each chunk is a few kernels, which on an
# accelerator are better few and large.
_CHUNK_ELEMENTS = 2**20
_ACCELERATOR_FACTOR = 16


def rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    fastemit_lambda: float = 0.001,
) -> Tensor:
    """RNN-Transducer loss (A. Graves, arXiv 1211.3711) of whole logits.

    Args:
        acts: (B, T, U + 1, V) logits, before any softmax; float32 or float64, and
            unlike the original's also float16 and bfloat16, computed in float32.
        labels: (B, U) int32, padding of any value.
        act_lens: (B,) int32, frames of each utterance; the longest has T.
        label_lens: (B,) int32, labels of each utterance; the longest has U.
        blank: token id of blank.
        reduction: "none", "sum", or "mean" over the utterances.
        fastemit_lambda: FastEmit weight (arXiv 2010.11148): the gradient of label
            arcs is scaled by 1 + lambda, the loss itself is unchanged. 0.001 unless
            given, as in the fork.

    Returns:
        (B,) for "none", else (1,), in nats; float32, or float64 for float64.

    Raises:
        TypeError: labels or lengths that are not int32, acts that are no floats.
        ValueError: shapes that disagree, an axis longer than the longest utterance,
            a length below 1 frame or 0 labels, a label that is blank or not in the
            vocabulary, an unknown reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}"
        )
    _check_inputs(acts, labels, act_lens, label_lens)
    frames = check_lengths("act_lens", act_lens, acts.size(0), acts.size(1), 1)
    counts = check_lengths("label_lens", label_lens, acts.size(0), labels.size(1), 0)
    check_same_size("acts.size(1)", acts.size(1), "max(act_lens)", int(frames.max()))
    check_same_size(
        "acts.size(2)", acts.size(2), "max(label_lens) + 1", int(counts.max()) + 1
    )
    targets = check_targets(labels, counts, acts.size(3), blank)
    lattice = _Lattice.of(acts, targets, frames, counts, blank)
    return _Loss.apply(
        acts, lattice, reduction, fastemit_lambda, torch.is_grad_enabled()
    )


class RNNTLoss(torch.nn.Module):
    """:func:`rnnt_loss` as a module; the options are its arguments."""

    def __init__(
        self, blank: int = 0, fastemit_lambda: float = 0.001, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.blank = blank
        self.fastemit_lambda = fastemit_lambda
        self.reduction = reduction

    def forward(
        self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor
    ) -> Tensor:
        """See :func:`rnnt_loss`."""
        return rnnt_loss(
            acts,
            labels,
            act_lens,
            label_lens,
            self.blank,
            self.reduction,
            self.fastemit_lambda,
        )


def _check_inputs(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor
) -> None:
    expected = (
        ("acts", acts, 4),
        ("labels", labels, 2),
        ("act_lens", act_lens, 1),
        ("label_lens", label_lens, 1),
    )
    for name, tensor, _ in expected:
        check_is_plain_tensor(name, tensor)
        check_holds_numbers(name, tensor)
    if not acts.is_floating_point():
        raise TypeError(f"acts must be of a float type, but is {acts.dtype}")
    for name, tensor, axes in expected:
        # As the original, so that what runs here runs there.
        if tensor is not acts and tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be torch.int32, but is {tensor.dtype}")
        if tensor.dim() != axes:
            raise ValueError(
                f"{name} must have {axes} axes, but has shape {tuple(tensor.shape)}"
            )
    check_same_size("labels.size(0)", labels.size(0), "acts.size(0)", acts.size(0))
    if acts.size(0) == 0:
        raise ValueError("acts has 0 utterances, but a batch needs at least 1")


@dataclass(frozen=True)
class _Lattice:
    """Where the nodes of a batch are, and the two logits of each that matter.

    Attributes:
        frames: T_b of each utterance.
        labels: U_b of each utterance.
        columns: (B, U + 1, 2) int64, the tokens of blank and of the next label;
            blank where there is none.
        backend: what runs it.
        dtype: that it is computed in.
    """

    frames: tuple[int, ...]
    labels: tuple[int, ...]
    columns: Tensor
    backend: Backend
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        acts: Tensor,
        targets: np.ndarray,
        frames: np.ndarray,
        labels: np.ndarray,
        blank: int,
    ) -> _Lattice:
        # Behind the longest utterance `targets` may be padded further.
        columns = make_arc_columns(
            targets[:, : acts.size(2) - 1], labels, np.full(len(frames), blank)
        )
        dtype = torch.float64 if acts.dtype == torch.float64 else torch.float32
        return cls(
            frames=tuple(frames.tolist()),
            labels=tuple(labels.tolist()),
            columns=columns.to(acts.device),
            backend=resolve("auto", acts.device, dtype),
            dtype=dtype,
        )

    def chunks(self, acts: Tensor) -> Iterator[tuple[int, slice, Tensor, slice]]:
        """Some frames of one utterance at a time.

        Yields:
            The utterance; its nodes among all n; (t, u, 2) columns of its arcs; and
            the frames of ``acts``.
        """
        start = 0
        limit = _CHUNK_ELEMENTS
        if acts.device.type != "cpu":
            limit *= _ACCELERATOR_FACTOR
        for b, (frames, labels) in enumerate(
            zip(self.frames, self.labels, strict=True)
        ):
            width = labels + 1
            step = max(1, limit // (width * acts.size(3)))
            for first in range(0, frames, step):
                last = min(first + step, frames)
                stop = start + (last - first) * width
                columns = self.columns[b, :width].expand(last - first, -1, -1)
                yield b, slice(start, stop), columns, slice(first, last)
                start = stop


class _Loss(torch.autograd.Function):
    """The loss and its gradient by the logits.

    The gradient is made in backward, from the logits: there the upstream gradient is
    known, which keeps gradients of half-precision logits from underflowing where a
    GradScaler asks for larger ones.
    """

    @staticmethod
    def forward(ctx, acts, lattice, reduction, fastemit_lambda, grad_enabled):
        want = grad_enabled and acts.requires_grad
        num_nodes = sum(
            t * (u + 1) for t, u in zip(lattice.frames, lattice.labels, strict=True)
        )
        arcs = acts.new_empty((num_nodes, 2), dtype=lattice.dtype)
        normaliser = acts.new_empty((num_nodes,), dtype=lattice.dtype)
        with torch.autocast(acts.device.type, enabled=False):
            for b, nodes, columns, frames in lattice.chunks(acts):
                logits = acts[b, frames, : columns.size(1)].to(lattice.dtype)
                total = logits.logsumexp(dim=-1)
                normaliser[nodes] = total.flatten()
                chosen = logits.gather(-1, columns).sub_(total[..., None])
                arcs[nodes] = chosen.view(-1, 2)
            # A log probability above 0 is rounding.
            arcs.clamp_(max=0.0)
            losses = lattice.backend.run(arcs, lattice.frames, lattice.labels, want)
        if want:
            # The arcs hold occupancies now.
            arcs[:, 1] *= 1.0 + fastemit_lambda
            ctx.save_for_backward(acts, arcs, normaliser)
            ctx.lattice, ctx.reduction = lattice, reduction
        losses = losses.to(lattice.dtype)
        if reduction == "none":
            return losses
        total = losses.sum().unsqueeze(-1)
        return total / len(losses) if reduction == "mean" else total

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        acts, occupancies, normaliser = ctx.saved_tensors
        lattice = ctx.lattice
        scale = upstream.to(lattice.dtype).expand(acts.size(0))
        if ctx.reduction == "mean":
            scale = scale / acts.size(0)
        gradient = torch.zeros_like(acts)
        with torch.autocast(acts.device.type, enabled=False):
            for b, nodes, columns, frames in lattice.chunks(acts):
                shape = columns.shape[:2]
                part = acts[b, frames, : shape[1]].to(lattice.dtype)
                part = (part - normaliser[nodes].view(*shape, 1)).exp_()
                # d loss / d logit_k = (occ_blank + occ_label) p_k - occ_k
                occupancy = occupancies[nodes].view(*shape, 2) * scale[b]
                part.mul_(occupancy.sum(dim=-1, keepdim=True))
                part.scatter_add_(-1, columns, occupancy.neg_())
                gradient[b, frames, : shape[1]] = part
        return gradient, None, None, None, None
