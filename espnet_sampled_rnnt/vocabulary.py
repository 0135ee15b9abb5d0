"""The sampled vocabulary: which tokens enter the softmax of an utterance.

Symbols as in ``docs/method.md``: B utterances, U labels, V vocabulary, S sampled
negatives, K the largest vocabulary of an utterance, P_b the positives (blank and
the labels of utterance b), N_b the drawn negatives, V_b = P_b + N_b.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from espnet_sampled_rnnt.checks import (
    check_integer_tensor,
    check_lengths,
    check_same_device,
    check_targets,
)

SCOPES = ("example", "batch")


@dataclass(frozen=True, eq=False)
class SampledVocabulary:
    """The tokens that enter the softmax of each utterance.

    Any vocabulary may be built by hand, as long as it holds blank and the labels of
    its utterance; :func:`transducer_loss` checks that.

    Attributes:
        token_ids: (B, K) int64, the tokens of V_b, without repetition where ``mask``
            is true. Batch scope: rows may be one row expanded.
        mask: (B, K) bool, false on padding.
        log_inclusion: (B, K) floating, log of the probability that the entry had of
            being included: 0 for positives, in (-inf, 0] for negatives.
        targets: (B, U) int64, the targets as indices into ``token_ids``; what
            stands behind an utterance's labels is not read.

    Raises:
        ValueError: a field that is no tensor, of a wrong type or shape, or on
            another device.
    """

    token_ids: Tensor
    mask: Tensor
    log_inclusion: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, Tensor):
                raise ValueError(f"{field.name} must be a tensor, but is {type(value)}")
            if value.dim() != 2:
                raise ValueError(
                    f"{field.name} must have 2 axes, but has shape {tuple(value.shape)}"
                )
        if self.token_ids.dtype != torch.int64:
            raise ValueError(f"token_ids must be int64, but is {self.token_ids.dtype}")
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, but is {self.mask.dtype}")
        if not self.log_inclusion.is_floating_point():
            raise ValueError(
                f"log_inclusion must be floating point, "
                f"but is {self.log_inclusion.dtype}"
            )
        check_integer_tensor("targets", self.targets)
        for name in ("mask", "log_inclusion"):
            if getattr(self, name).shape != self.token_ids.shape:
                raise ValueError(
                    f"{name} must have the shape of token_ids, "
                    f"{tuple(self.token_ids.shape)}, "
                    f"but has {tuple(getattr(self, name).shape)}"
                )
        if self.targets.size(0) != self.token_ids.size(0):
            raise ValueError(
                f"targets has {self.targets.size(0)} utterances, "
                f"but token_ids has {self.token_ids.size(0)}"
            )
        check_same_device(
            token_ids=self.token_ids,
            mask=self.mask,
            log_inclusion=self.log_inclusion,
            targets=self.targets,
        )

    @property
    def sizes(self) -> Tensor:
        """(B,) int64: the number of tokens |V_b| of each utterance."""
        return self.mask.sum(dim=1)

    def to(self, device: torch.device | str) -> SampledVocabulary:
        """The same vocabulary on ``device``."""
        return SampledVocabulary(
            *(getattr(self, field.name).to(device) for field in fields(self))
        )


def sample_vocabulary(
    targets: Tensor,
    target_lengths: Tensor,
    vocab_size: int,
    num_samples: int,
    scope: str = "example",
    probs: Tensor | None = None,
    blank: int = 0,
    generator: torch.Generator | None = None,
) -> SampledVocabulary:
    """Draw the vocabulary of the softmax of each utterance.

    The positives, blank and every label, are always in. The S negatives are drawn
    without replacement from the other tokens, uniformly or by ``probs``: the
    weighted draw is the Gumbel top-k (Kool et al. 2019, arXiv 1903.06059), the
    inclusion probabilities those of priority sampling (Duffield et al. 2007): with
    kappa the (S+1)-th largest perturbed log weight,
    pi_j = 1 - exp(-exp(log q_j - kappa)). Where fewer than S tokens are left, all
    are taken with pi = 1. A token of weight zero is never drawn before that.

    Args:
        targets: (B, U) int, the labels; what stands behind ``target_lengths`` is
            not read.
        target_lengths: (B,) int, 0 to U.
        vocab_size: V, blank included.
        num_samples: S >= 1, the negatives to draw.
        scope: "example": a vocabulary for each utterance; "batch": one for all,
            with the labels of all as positives.
        probs: weights to draw by: None for uniform, or (V,) or (B, V) floating,
            >= 0, finite, not normalised. In batch scope the normalised rows are
            averaged.
        blank: token id of blank, 0 to V - 1.
        generator: of the random numbers; None for torch's default.

    Returns:
        A :class:`SampledVocabulary` on the device of ``targets``; in each row blank
        stands first, then the labels in rising order, then the negatives.

    Raises:
        ValueError: naming the argument, the utterance and both values: a target
            outside [0, V) or equal to blank, a length outside [0, U], num_samples
            below 1, an unknown scope, weights that are negative, not finite or sum
            to zero, shapes or devices that disagree.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int):
        raise ValueError(f"vocab_size must be an int, but is {vocab_size!r}")
    if not 1 <= vocab_size < 2**31:
        raise ValueError(f"vocab_size must be in [1, 2**31), but is {vocab_size}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(
            f"generator must be None or a torch.Generator, "
            f"but is {type(generator).__name__}"
        )
    if isinstance(num_samples, bool) or not isinstance(num_samples, int):
        raise ValueError(f"num_samples must be an int, but is {num_samples!r}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, but is {num_samples}")
    if scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(SCOPES)}, but is {scope!r}")
    check_integer_tensor("targets", targets, axes=2)
    check_integer_tensor("target_lengths", target_lengths, axes=1)
    if targets.size(0) == 0:
        raise ValueError("targets has 0 utterances, but a batch needs at least 1")
    # Lengths may stay in host memory, where they are needed.
    if target_lengths.device.type != "cpu":
        check_same_device(targets=targets, target_lengths=target_lengths)
    lengths = check_lengths(
        "target_lengths", target_lengths, targets.size(0), targets.size(1), least=0
    )
    host_targets = check_targets(targets, lengths, vocab_size, blank)
    weights = _checked_weights(probs, targets, vocab_size)

    labels = [row[:length] for row, length in zip(host_targets, lengths, strict=True)]
    if scope == "batch":
        labels = [np.concatenate(labels)]
        if weights is not None:
            # By the largest first: the sum of large weights may overflow.
            weights = weights / weights.amax(dim=1, keepdim=True)
            weights = (weights / weights.sum(dim=1, keepdim=True)).mean(0, keepdim=True)
    positives = [_blank_first(row, blank) for row in labels]

    if weights is None:
        negatives, log_pi = _draw_uniform(positives, vocab_size, num_samples, generator)
    else:
        negatives, log_pi = _draw_weighted(positives, weights, num_samples, generator)
    return _assemble(positives, negatives, log_pi, host_targets, lengths, targets)


def _blank_first(labels: np.ndarray, blank: int) -> np.ndarray:
    """The positives of an utterance: blank, then its labels in rising order."""
    return np.concatenate(([blank], np.unique(labels))).astype(np.int64)


def _checked_weights(
    probs: Tensor | None, targets: Tensor, vocab_size: int
) -> Tensor | None:
    """``probs`` as (B, V) float32 or float64, or None."""
    if probs is None:
        return None
    if not isinstance(probs, Tensor) or not probs.is_floating_point():
        raise ValueError("probs must be None or a floating point tensor")
    rows = targets.size(0)
    if tuple(probs.shape) not in ((vocab_size,), (rows, vocab_size)):
        raise ValueError(
            f"probs must have shape ({vocab_size},) or ({rows}, {vocab_size}), "
            f"but has {tuple(probs.shape)}"
        )
    check_same_device(targets=targets, probs=probs)
    weights = probs.detach()
    if weights.dtype not in (torch.float32, torch.float64):
        weights = weights.float()
    weights = weights.expand(rows, vocab_size)
    bad = ~(torch.isfinite(weights) & (weights >= 0)).all(dim=1)
    empty = weights.sum(dim=1) == 0
    if bool((bad | empty).any()):
        utterance = int((bad | empty).nonzero()[0])
        row = weights[utterance]
        wrong = ~(torch.isfinite(row) & (row >= 0))
        if bool(wrong.any()):
            token = int(wrong.nonzero()[0])
            raise ValueError(
                f"probs must be finite and >= 0, but utterance {utterance} has "
                f"{float(row[token])} for token {token}"
            )
        raise ValueError(f"probs must not sum to 0, but utterance {utterance} does")
    return weights


def _draw_uniform(
    positives: list[np.ndarray],
    vocab_size: int,
    num_samples: int,
    generator: torch.Generator | None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """S tokens outside the positives of each row, and their log inclusion."""
    # numpy's choice takes time and memory by S, not by V; it is seeded from torch's
    # generator, so that torch.manual_seed reproduces a run.
    device = "cpu" if generator is None else generator.device
    seed = torch.randint(2**63 - 1, (), generator=generator, device=device)
    random = np.random.default_rng(int(seed))
    negatives, log_pi = [], []
    for row in positives:
        taken = np.sort(row)
        left = vocab_size - len(taken)
        count = min(num_samples, left)
        if count == left:
            drawn = np.arange(left)
        else:
            drawn = np.sort(random.choice(left, count, replace=False, shuffle=False))
        # The r-th token that is not taken is r plus the number of taken tokens
        # at or below it.
        drawn += np.searchsorted(taken - np.arange(len(taken)), drawn, side="right")
        negatives.append(drawn)
        log_pi.append(np.full(count, np.log(count / left) if count else 0.0))
    return negatives, log_pi


def _draw_weighted(
    positives: list[np.ndarray],
    weights: Tensor,
    num_samples: int,
    generator: torch.Generator | None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Gumbel top-k by ``weights`` (rows, V) outside the positives of each row."""
    vocab_size = weights.size(1)
    device = weights.device if generator is None else generator.device
    noise = torch.empty(weights.shape, dtype=weights.dtype, device=device)
    # -log of an exponential variable is a Gumbel variable. An exponential draw of
    # exactly 0 would be a key of +inf.
    tiny = torch.finfo(weights.dtype).tiny
    noise.exponential_(generator=generator).clamp_(min=tiny)
    log_weights = weights.log()
    for index, row in enumerate(positives):
        log_weights[index, torch.from_numpy(row).to(weights.device)] = -torch.inf
    keys = noise.to(weights.device).log_().neg_().add_(log_weights)
    count = min(num_samples + 1, vocab_size)
    top_keys, top_ids = keys.topk(count, dim=1)
    top_log_weights = log_weights.gather(1, top_ids)
    host = [x.double().cpu().numpy() for x in (top_keys, top_log_weights)]
    host_ids = top_ids.cpu().numpy()

    negatives, log_pi = [], []
    for index, row in enumerate(positives):
        left = vocab_size - len(row)
        if num_samples >= left:
            # Everything is in, weight zero included: the softmax is exact.
            negatives.append(np.setdiff1d(np.arange(vocab_size), row))
            log_pi.append(np.zeros(left))
            continue
        key, log_weight = host[0][index], host[1][index]
        keep = np.isfinite(log_weight[:num_samples])
        negatives.append(host_ids[index, :num_samples][keep])
        kappa = key[num_samples]  # -inf where every token of weight > 0 is in
        with np.errstate(divide="ignore", over="ignore"):
            rate = np.exp(log_weight[:num_samples][keep] - kappa)
            log_pi.append(np.log(-np.expm1(-rate)))
    return negatives, log_pi


def _assemble(
    positives: list[np.ndarray],
    negatives: list[np.ndarray],
    log_pi: list[np.ndarray],
    host_targets: np.ndarray,
    lengths: np.ndarray,
    targets: Tensor,
) -> SampledVocabulary:
    rows = len(positives)
    sizes = [len(p) + len(n) for p, n in zip(positives, negatives, strict=True)]
    token_ids = np.zeros((rows, max(sizes)), dtype=np.int64)
    mask = np.zeros((rows, max(sizes)), dtype=bool)
    log_inclusion = np.zeros((rows, max(sizes)), dtype=np.float32)
    for row in range(rows):
        first = len(positives[row])
        token_ids[row, :first] = positives[row]
        token_ids[row, first : sizes[row]] = negatives[row]
        mask[row, : sizes[row]] = True
        log_inclusion[row, first : sizes[row]] = log_pi[row]
    local = np.zeros_like(host_targets)
    for utterance, length in enumerate(lengths):
        labels = positives[utterance if rows > 1 else 0][1:]
        found = np.searchsorted(labels, host_targets[utterance, :length])
        local[utterance, :length] = found + 1

    device = targets.device
    count = targets.size(0)
    shared = rows == 1 and count > 1
    move = lambda array: torch.from_numpy(array).to(device)  # noqa: E731
    fields_ = [move(token_ids), move(mask), move(log_inclusion)]
    if shared:
        fields_ = [x.expand(count, -1) for x in fields_]
    return SampledVocabulary(*fields_, targets=move(local))
