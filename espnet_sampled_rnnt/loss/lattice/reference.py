"""The lattice in plain torch: textbook alpha and beta over anti-diagonals.

Any device, float32 or float64. It is the yardstick of the other backends and what
"auto" falls back on; it takes a few kernels for each of T + U anti-diagonals.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.base import Backend, Padding


class ReferenceBackend(Backend):
    """Any device, float32 and float64."""

    name = "reference"

    def unavailable(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> str | None:
        """See :meth:`Backend.unavailable`."""
        return None

    def run(
        self,
        arcs: Tensor,
        frames: Sequence[int],
        labels: Sequence[int],
        occupancies: bool,
    ) -> Tensor:
        """See :meth:`Backend.run`."""
        padding = Padding(frames, labels, arcs.device)
        # In float64: alpha + beta - total would lose the digits that an occupancy is
        # made of where the loss is large.
        padded = padding.pad(arcs.double(), -torch.inf)
        blank, label, final = _allowed_arcs(padded, frames, labels)
        beta = _beta(blank, label, final)
        losses = -beta[:, 0, 0]
        if occupancies:
            alpha = _alpha(blank, label)
            total = beta[:, :1, :1]
            after_blank = torch.cat([beta[:, 1:], _inf_like(beta[:, :1])], dim=1)
            after_label = torch.cat([beta[:, :, 1:], _inf_like(beta[..., :1])], dim=2)
            by_blank = torch.exp(alpha + blank + after_blank - total)
            by_blank = by_blank + torch.exp(alpha + final - total)
            by_label = torch.exp(alpha + label + after_label - total)
            result = torch.stack([by_blank, by_label], dim=-1)
            bad = ~torch.isfinite(losses)
            result.masked_fill_(bad[:, None, None, None], 0.0)
            padding.unpad_into(result, arcs)
        return losses.to(arcs.dtype)


def _allowed_arcs(
    padded: Tensor, frames: Sequence[int], labels: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Blank arcs to a next frame, label arcs, and the final blank, -inf elsewhere."""
    device = padded.device
    last_frame = torch.tensor(frames, device=device)[:, None, None] - 1
    last_label = torch.tensor(labels, device=device)[:, None, None]
    t = torch.arange(padded.size(1), device=device)[None, :, None]
    u = torch.arange(padded.size(2), device=device)[None, None, :]
    minus_inf = padded.new_tensor(-torch.inf)
    blank, label = padded.unbind(-1)
    return (
        torch.where((t < last_frame) & (u <= last_label), blank, minus_inf),
        torch.where((t <= last_frame) & (u < last_label), label, minus_inf),
        torch.where((t == last_frame) & (u == last_label), blank, minus_inf),
    )


def _inf_like(values: Tensor) -> Tensor:
    return torch.full_like(values, -torch.inf)


def _diagonal(d: int, frames: int, positions: int, device: torch.device) -> Tensor:
    """The label positions u of the nodes (d - u, u) of anti-diagonal ``d``."""
    first, last = max(0, d - frames + 1), min(d, positions - 1)
    return torch.arange(first, last + 1, device=device)


def _beta(blank: Tensor, label: Tensor, final: Tensor) -> Tensor:
    """(G, T + 1 rows less the last, U + 1): log probability of all that follows."""
    group, frames, positions = blank.shape
    beta = blank.new_full((group, frames + 1, positions + 1), -torch.inf)
    for d in range(frames + positions - 2, -1, -1):
        u = _diagonal(d, frames, positions, blank.device)
        t = d - u
        onward = torch.logaddexp(
            blank[:, t, u] + beta[:, t + 1, u], label[:, t, u] + beta[:, t, u + 1]
        )
        beta[:, t, u] = torch.logaddexp(onward, final[:, t, u])
    return beta[:, :frames, :positions]


def _alpha(blank: Tensor, label: Tensor) -> Tensor:
    """(G, T, U + 1): log probability of all that leads to a node."""
    group, frames, positions = blank.shape
    alpha = blank.new_full((group, frames + 1, positions + 1), -torch.inf)
    # Shifted by one, so that row 0 and column 0 stand for "outside".
    alpha[:, 1, 1] = 0.0
    for d in range(1, frames + positions - 1):
        u = _diagonal(d, frames, positions, blank.device)
        t = d - u
        before_t, before_u = (t - 1).clamp(min=0), (u - 1).clamp(min=0)
        alpha[:, t + 1, u + 1] = torch.logaddexp(
            alpha[:, t, u + 1] + blank[:, before_t, u],
            alpha[:, t + 1, u] + label[:, t, before_u],
        )
    return alpha[:, 1:, 1:]
