"""Slow and plain ways to the loss, which share no code with the package.

Symbols as in ``docs/``: B utterances, T frames, U labels, V vocabulary, J joint
width, K tokens of a softmax.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def all_zero_loss(frames: int, labels: int, vocab_size: int) -> float:
    """Loss of an utterance whose logits are all equal, in nats.

    Every alignment has T + U steps of probability 1 / V, and there are
    C(T + U - 1, U) of them, for the last step is the final blank.
    """
    return (frames + labels) * math.log(vocab_size) - math.log(
        math.comb(frames + labels - 1, labels)
    )


def log_probabilities(
    logits: Tensor, token_ids: Tensor | None = None, offset: Tensor | None = None
) -> Tensor:
    """(..., V) logits -> (..., V) log probabilities over the tokens given.

    Args:
        logits: (..., V).
        token_ids: (K,) the tokens of the normaliser; None for all.
        offset: (K,) added to their logits in the normaliser alone.
    """
    rivals = logits if token_ids is None else logits[..., token_ids]
    if offset is not None:
        rivals = rivals + offset
    return logits - rivals.logsumexp(dim=-1, keepdim=True)


def enumerate_loss(log_probs: Tensor, targets: list[int], blank: int) -> Tensor:
    """Minus the log of the summed probability of all alignments, one by one.

    Args:
        log_probs: (T, U + 1, V).
        targets: the U labels.
        blank: token id of blank.
    """
    frames, labels = log_probs.size(0), len(targets)
    paths = []
    # An alignment is the set of steps, among the first T + U - 1, that emit a label.
    for emitting in itertools.combinations(range(frames + labels - 1), labels):
        t = u = 0
        total = log_probs.new_zeros(())
        for step in range(frames + labels):
            if step in emitting:
                total = total + log_probs[t, u, targets[u]]
                u += 1
            else:
                total = total + log_probs[t, u, blank]
                t += 1
        if (t, u) != (frames, labels):
            raise RuntimeError("an alignment must end behind the last frame and label")
        paths.append(total)
    return -torch.stack(paths).logsumexp(dim=0)


def lattice_loss(arcs: Tensor) -> Tensor:
    """Forward recursion in the log domain over one utterance; differentiable.

    Args:
        arcs: (T, U + 1, 2): log p(blank) and log p(next label) at each node; the
            label column at u = U and the blanks out of the last frame but the final
            one are not read.
    """
    frames, positions, _ = arcs.shape
    blank, label = arcs.unbind(-1)
    row = [arcs.new_zeros(())]
    for u in range(1, positions):
        row.append(row[-1] + label[0, u - 1])
    for t in range(1, frames):
        above = torch.stack(row) + blank[t - 1]
        row = [above[0]]
        for u in range(1, positions):
            row.append(torch.logaddexp(above[u], row[-1] + label[t, u - 1]))
    return -(row[-1] + blank[-1, -1])


def reference_losses(
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    enc_lengths: Tensor,
    target_lengths: Tensor,
    vocabulary=None,
    correction: float = 0.0,
    activation=torch.tanh,
    blank: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """(B,) losses by the formulas, all logits at once; differentiable.

    Everything is computed in ``dtype``; a narrow one gives the naive error.
    """
    enc, dec, weight = (x.to(dtype) for x in (enc, dec, weight))
    losses = []
    for b in range(enc.size(0)):
        frames, labels = int(enc_lengths[b]), int(target_lengths[b])
        hidden = activation(enc[b, :frames, None] + dec[b, None, : labels + 1])
        logits = hidden @ weight.t()
        if bias is not None:
            logits = logits + bias.to(dtype)
        token_ids = offset = None
        if vocabulary is not None:
            mask = vocabulary.mask[b]
            token_ids = vocabulary.token_ids[b][mask]
            offset = -correction * vocabulary.log_inclusion[b][mask].to(dtype)
        log_probs = log_probabilities(logits, token_ids, offset)
        next_label = targets[b, :labels].long()
        by_label = log_probs[:, torch.arange(labels), next_label]
        by_label = torch.nn.functional.pad(by_label, (0, 1))
        losses.append(
            lattice_loss(torch.stack([log_probs[..., blank], by_label], dim=-1))
        )
    return torch.stack(losses)


def lattice_occupancies(arcs: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of one utterance and (T, U + 1, 2) minus its derivative by ``arcs``."""
    leaf = arcs.detach().clone().requires_grad_()
    loss = lattice_loss(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), -gradient


def textbook_occupancies(arcs: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`lattice_occupancies`, by alpha and beta in the type of ``arcs``.

    A. Graves, arXiv 1211.3711, section 2.4: what every library does, and so the
    naive error.
    """
    frames, positions, _ = arcs.shape
    inf = arcs.new_full((frames + 1, positions + 1), -math.inf)
    alpha, beta = inf.clone(), inf.clone()
    alpha[0, 0] = 0.0
    for t in range(frames):
        for u in range(positions):
            if t > 0:
                alpha[t, u] = alpha[t - 1, u] + arcs[t - 1, u, 0]
            if u > 0:
                by_label = alpha[t, u - 1] + arcs[t, u - 1, 1]
                alpha[t, u] = torch.logaddexp(alpha[t, u], by_label)
    beta[frames, positions - 1] = 0.0
    for t in reversed(range(frames)):
        for u in reversed(range(positions)):
            beta[t, u] = arcs[t, u, 0] + beta[t + 1, u]
            if u < positions - 1:
                by_label = arcs[t, u, 1] + beta[t, u + 1]
                beta[t, u] = torch.logaddexp(beta[t, u], by_label)
    here = alpha[:frames, :positions] - beta[0, 0]
    by_blank = torch.exp(here + arcs[..., 0] + beta[1:, :positions])
    by_label = torch.exp(here + arcs[..., 1] + beta[:frames, 1:])
    return -beta[0, 0], torch.stack([by_blank, by_label], dim=-1)
