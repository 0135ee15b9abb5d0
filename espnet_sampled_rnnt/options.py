"""The options of the sampled loss: entered once, checked once, then frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from espnet_sampled_rnnt.loss.lattice import BACKENDS
from espnet_sampled_rnnt.vocabulary import SCOPES

# What the negatives can be drawn from. One line more for each that is added.
SAMPLING_DISTRIBUTIONS = ("uniform",)


@dataclass(frozen=True)
class SampledSoftmaxOptions:
    """What ``model_conf`` says about the loss.

    Attributes:
        num_samples: S, the negatives drawn for each vocabulary; 0 or None: none are
            drawn and the loss is the exact full softmax.
        sampling_scope: "example": one vocabulary for each utterance; "batch": one
            for the whole minibatch.
        sampling_distribution: What the negatives are drawn from.
        logit_correction: The strength a of the inclusion-probability correction, 0
            (none) to 1 (the sampled sum is unbiased for the full one).
        loss_backend: The lattice implementation, or "auto".
        loss_chunk_bytes: The size of the loss's workspace, None for its default.
        fastemit_lambda: FastEmit's strength, >= 0; 0 turns it off.

    Raises:
        ValueError: A value is out of range; the message names the option as it
            stands in the YAML, the value, and what is allowed.
    """

    num_samples: int | None
    sampling_scope: str
    sampling_distribution: str
    logit_correction: float
    loss_backend: str
    loss_chunk_bytes: int | None
    fastemit_lambda: float

    def __post_init__(self) -> None:
        # bool is an int to Python and to typeguard; `num_samples: true` is a slip.
        if isinstance(self.num_samples, bool) or (
            self.num_samples is not None and self.num_samples < 0
        ):
            raise _refusal(
                "num_samples",
                self.num_samples,
                "a whole number >= 1, or 0 or null for the full softmax",
            )
        _check_choice("sampling_scope", self.sampling_scope, SCOPES)
        _check_choice(
            "sampling_distribution", self.sampling_distribution, SAMPLING_DISTRIBUTIONS
        )
        # Written so that NaN fails too.
        if not 0.0 <= self.logit_correction <= 1.0:
            raise _refusal(
                "logit_correction", self.logit_correction, "a number from 0 to 1"
            )
        # Whether it can run is for the device to say, which is not known yet.
        _check_choice("loss_backend", self.loss_backend, ("auto", *BACKENDS))
        if self.loss_chunk_bytes is not None and (
            isinstance(self.loss_chunk_bytes, bool) or self.loss_chunk_bytes < 1
        ):
            raise _refusal(
                "loss_chunk_bytes",
                self.loss_chunk_bytes,
                "a positive number of bytes, or null for the default",
            )
        if not (self.fastemit_lambda >= 0.0 and math.isfinite(self.fastemit_lambda)):
            raise _refusal("fastemit_lambda", self.fastemit_lambda, "a number >= 0")

    @property
    def samples(self) -> bool:
        """Whether training draws negatives at all."""
        return bool(self.num_samples)


def _refusal(option: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"model_conf.{option} is {value!r}; allowed: {allowed}")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refusal(option, value, ", ".join(allowed))
