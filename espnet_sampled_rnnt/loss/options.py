"""The options of the loss, checked once, carried as one frozen object."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from espnet_sampled_rnnt.loss.activation import Activation, resolve_activation

REDUCTIONS = ("none", "sum", "mean")

# Workspace of the loss by device type. On a CPU the chunk should stay in the
# outer cache and still feed the matrix product enough rows; on an accelerator it
# must be large enough that kernel launches do not dominate.
DEFAULT_CHUNK_BYTES = {"cpu": 12 * 2**20, "cuda": 512 * 2**20}


@dataclass(frozen=True)
class LossOptions:
    """Options of :func:`espnet_sampled_rnnt.transducer_loss`.

    Attributes:
        correction: strength a of the Horvitz-Thompson correction, 0 to 1.
        activation: activation of the joint network.
        blank: token id of blank.
        reduction: "none", "sum" or "mean" over utterances.
        fastemit_lambda: FastEmit weight, >= 0 (arXiv 2010.11148).
        backend: name of a lattice backend, or "auto".
        chunk_bytes: size of the workspace in bytes, or None for the device's default.
    """

    correction: float
    activation: Activation
    blank: int
    reduction: str
    fastemit_lambda: float
    backend: str
    chunk_bytes: int | None

    @classmethod
    def checked(
        cls,
        correction: float,
        activation: str | Callable[[torch.Tensor], torch.Tensor],
        blank: int,
        reduction: str,
        fastemit_lambda: float,
        backend: str,
        chunk_bytes: int | None,
    ) -> LossOptions:
        """Check each option by itself.

        Raises:
            ValueError: naming the option, its value and what is allowed.
        """
        correction = _number("correction", correction)
        if not 0.0 <= correction <= 1.0:
            raise ValueError(f"correction must be in [0, 1], but is {correction}")
        fastemit_lambda = _number("fastemit_lambda", fastemit_lambda)
        if fastemit_lambda < 0.0:
            raise ValueError(f"fastemit_lambda must be >= 0, but is {fastemit_lambda}")
        if reduction not in REDUCTIONS:
            raise ValueError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, "
                f"but is {reduction!r}"
            )
        if chunk_bytes is not None and (
            isinstance(chunk_bytes, bool)
            or not isinstance(chunk_bytes, int)
            or chunk_bytes < 1
        ):
            raise ValueError(
                f"chunk_bytes must be None or a positive int, but is {chunk_bytes!r}"
            )
        if isinstance(blank, bool) or not isinstance(blank, int):
            raise ValueError(f"blank must be an int, but is {blank!r}")
        if not isinstance(backend, str):
            raise ValueError(f"backend must be a name, but is {backend!r}")
        return cls(
            correction=correction,
            activation=resolve_activation(activation),
            blank=blank,
            reduction=reduction,
            fastemit_lambda=fastemit_lambda,
            backend=backend,
            chunk_bytes=chunk_bytes,
        )


def default_chunk_bytes(device: torch.device) -> int:
    """Workspace of the loss in bytes on ``device`` where none was asked for."""
    return DEFAULT_CHUNK_BYTES.get(device.type, DEFAULT_CHUNK_BYTES["cuda"])


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, but is {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, but is {value}")
    return float(value)
