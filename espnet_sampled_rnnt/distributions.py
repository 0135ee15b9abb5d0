"""What negatives are drawn from: weights by token, for each utterance or for all.

Symbols: B utterances, T frames, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Distribution:
    """A kind of weights and what they are made from.

    Attributes:
        name: as in ``sampling_distribution``.
        source: None for no weights at all (uniform), "counts" of the training
            labels, the "final" CTC posterior, or the "intermediate" ones.
    """

    name: str
    source: str | None


DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (
        Distribution("uniform", None),
        Distribution("unigram", "counts"),
        Distribution("ctc", "final"),
        Distribution("interctc", "intermediate"),
    )
}

# Frames of the posterior that are exponentiated at once: never a second (B, T, V).
_FRAMES_AT_ONCE = 16


@torch.no_grad()
def mean_posterior(log_probs: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the valid frames of each utterance's posterior.

    Args:
        log_probs: (T, B, V) log posteriors, as a CTC loss takes them.
        lengths: (B,) int, T_b >= 0; frames from T_b on are not read.

    Returns:
        (B, V) float32, without gradient; each row sums to 1, or to 0 where an
        utterance has no frame.
    """
    frames, batch, vocab_size = log_probs.shape
    lengths = lengths.to(log_probs.device)
    total = torch.zeros(batch, vocab_size, device=log_probs.device)
    for start in range(0, frames, _FRAMES_AT_ONCE):
        part = log_probs[start : start + _FRAMES_AT_ONCE].detach().float().exp()
        time = torch.arange(start, start + part.size(0), device=part.device)
        padding = time[:, None] >= lengths[None, :]
        total += part.masked_fill_(padding[..., None], 0.0).sum(dim=0)
    return total / lengths.clamp(min=1)[:, None]


@torch.no_grad()
def mix_with_uniform(weights: Tensor, mix: float) -> Tensor:
    """``weights`` normalised, with a share ``mix`` of uniform mass.

    The uniform share gives every token a floor: no inclusion probability is so
    small that its correction has a wild variance. Rows that are not usable as
    weights (all zero, or not finite as after a diverged step) become uniform.

    Args:
        weights: (V,) or (B, V) >= 0.
        mix: share of uniform mass in [0, 1].

    Returns:
        The shape of ``weights``, float32, rows sum to 1.
    """
    weights = weights.float()
    total = weights.sum(dim=-1, keepdim=True)
    usable = torch.isfinite(total) & (total > 0)
    share = torch.where(usable, weights / total, 1.0 / weights.size(-1))
    return share.mul_(1.0 - mix).add_(mix / weights.size(-1))


def average(posteriors: Sequence[Tensor]) -> Tensor:
    """The mean of several (B, V)."""
    return torch.stack(list(posteriors)).mean(dim=0)


def add_counts(counts: Tensor, targets: Tensor, lengths: Tensor) -> None:
    """Add the labels of a batch to ``counts`` (V,), in place.

    Args:
        counts: (V,) float64.
        targets: (B, U) int labels.
        lengths: (B,) int, U_b.
    """
    valid = torch.arange(targets.size(1), device=targets.device) < lengths[:, None]
    ids = targets.long().masked_fill(~valid, 0).flatten()
    counts.index_add_(0, ids, valid.flatten().to(counts.dtype))


def read_counts(path: str | Path, token_list: Sequence[str]) -> Tensor:
    """Token counts from a text file of ``token count`` lines, (V,) float64.

    Raises:
        ValueError: naming the file and line: no such file, not two fields, an
            unknown token, a count that is no number >= 0; or all counts are 0.
    """
    index = {token: i for i, token in enumerate(token_list)}
    counts = torch.zeros(len(token_list), dtype=torch.float64)
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"counts file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"counts file {path}: not UTF-8 ({error.reason})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.rsplit(maxsplit=1)
        if len(fields) != 2:
            raise ValueError(
                f"counts file {path}, line {number}: {line!r} is no token and count"
            )
        token, count = fields[0].strip(), fields[1]
        if token not in index:
            raise ValueError(
                f"counts file {path}, line {number}: {token!r} is not in the token list"
            )
        try:
            value = float(count)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < float("inf"):
            raise ValueError(
                f"counts file {path}, line {number}: {count!r} is no count >= 0"
            )
        counts[index[token]] += value
    if not counts.any():
        raise ValueError(f"counts file {path}: no token has a count above 0")
    return counts
