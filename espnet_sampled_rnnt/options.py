"""The options of the sampled loss: entered once, checked once, then frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from espnet_sampled_rnnt.distributions import DISTRIBUTIONS, Distribution
from espnet_sampled_rnnt.loss.lattice import BACKENDS
from espnet_sampled_rnnt.schedules import Schedule
from espnet_sampled_rnnt.vocabulary import SCOPES


@dataclass(frozen=True)
class SampledSoftmaxOptions:
    """What ``model_conf`` says about the loss.

    Attributes:
        num_samples: S, the negatives drawn for each vocabulary, or a schedule of it;
            0 or None: none are drawn and the loss is the exact full softmax.
        sampling_scope: "example": one vocabulary for each utterance; "batch": one
            for the whole minibatch.
        sampling_distribution: What the negatives are drawn from.
        sampling_uniform_mix: Share of uniform mass in the weights, 0 to 1; has no
            effect on the uniform distribution.
        sampling_counts: File of token counts for "unigram"; None: the labels of the
            training batches are counted as they come.
        logit_correction: The strength a of the inclusion-probability correction, 0
            (none) to 1 (the sampled sum is unbiased for the full one), or a
            schedule of it.
        loss_backend: The lattice implementation, or "auto".
        loss_chunk_bytes: The size of the loss's workspace, None for its default.
        fastemit_lambda: FastEmit's strength, >= 0; 0 turns it off.

    Raises:
        ValueError: A value is out of range; the message names the option as it
            stands in the YAML, the value, and what is allowed.
    """

    num_samples: int | Mapping[str, Any] | None
    sampling_scope: str
    sampling_distribution: str
    sampling_uniform_mix: float
    sampling_counts: str | None
    logit_correction: float | Mapping[str, Any]
    loss_backend: str
    loss_chunk_bytes: int | None
    fastemit_lambda: float

    def __post_init__(self) -> None:
        # bool is an int to Python and to typeguard; `num_samples: true` is a slip,
        # and `num_samples: 0.5` would be a silent full softmax.
        if isinstance(self.num_samples, bool) or any(
            not value >= 0 or value != int(value)
            for value in self.num_samples_schedule.values
        ):
            raise _refusal(
                "num_samples",
                self.num_samples,
                "a whole number >= 1, or 0 or null for the full softmax, or a "
                "schedule of those",
            )
        _check_choice("sampling_scope", self.sampling_scope, SCOPES)
        _check_choice(
            "sampling_distribution", self.sampling_distribution, tuple(DISTRIBUTIONS)
        )
        _check_share("sampling_uniform_mix", self.sampling_uniform_mix)
        if self.sampling_counts is not None and self.distribution.source != "counts":
            raise _refusal(
                "sampling_counts",
                self.sampling_counts,
                "null, or sampling_distribution: unigram",
            )
        for value in self.correction_schedule.values:
            _check_share("logit_correction", value)
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

    @cached_property
    def num_samples_schedule(self) -> Schedule:
        """``num_samples`` as a schedule."""
        return Schedule.parse("model_conf.num_samples", self.num_samples)

    @cached_property
    def correction_schedule(self) -> Schedule:
        """``logit_correction`` as a schedule."""
        return Schedule.parse("model_conf.logit_correction", self.logit_correction)

    @property
    def schedules(self) -> tuple[Schedule, Schedule]:
        """Both."""
        return self.num_samples_schedule, self.correction_schedule

    @property
    def distribution(self) -> Distribution:
        """What the negatives are drawn from."""
        return DISTRIBUTIONS[self.sampling_distribution]

    @property
    def samples(self) -> bool:
        """Whether training draws negatives at any time."""
        return any(self.num_samples_schedule.values)


def _refusal(option: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"model_conf.{option} is {value!r}; allowed: {allowed}")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refusal(option, value, ", ".join(allowed))


def _check_share(option: str, value: float) -> None:
    # Written so that NaN fails too.
    if not 0.0 <= value <= 1.0:
        raise _refusal(option, value, "a number from 0 to 1")
