"""The output layer, restricted to the columns that a group of nodes uses.

The exact full softmax is the case where every utterance uses all columns: the same
code, without the gathering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class GatheredColumns:
    """Rows of the output layer for G utterances.

    Attributes:
        rows: (G, K) int64, where their gradient goes, see :class:`OutputColumns`; or
            None for all tokens in order.
        weight: (G, K, J); G = 1 where all nodes of a chunk use the same.
        bias: (G, K), or None: of the layer, the correction, -inf on padding.
    """

    rows: Tensor | None
    weight: Tensor
    bias: Tensor | None

    @property
    def size(self) -> int:
        """K."""
        return self.weight.size(1)

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """(G, n, J) -> (G, n, K), written to ``out``."""
        # For one utterance the plain product: batched ones of one are slower.
        if hidden.size(0) == 1:
            if self.bias is None:
                torch.mm(hidden[0], self.weight[0].t(), out=out[0])
            else:
                torch.addmm(self.bias[0], hidden[0], self.weight[0].t(), out=out[0])
        elif self.bias is None:
            torch.bmm(hidden, self.weight.transpose(1, 2), out=out)
        else:
            torch.baddbmm(
                self.bias[:, None], hidden, self.weight.transpose(1, 2), out=out
            )
        return out

    def hidden_gradient(self, error: Tensor, out: Tensor) -> Tensor:
        """(G, n, K) -> (G, n, J), written to ``out``."""
        if error.size(0) == 1:
            torch.mm(error[0], self.weight[0], out=out[0])
        else:
            torch.bmm(error, self.weight, out=out)
        return out


@dataclass(frozen=True)
class OutputColumns:
    """Which tokens the softmax of each utterance sums over.

    Attributes:
        size: K, the largest number of them.
        shared: whether all utterances use the same.
        token_ids: (B, K) int64, (1, K) where shared, None for all V in order.
        rows: as ``token_ids``: the row of the gradient's accumulator that belongs to
            each; None for all in order.
        row_ids: (R,) int64, the token of each row of the accumulator; None where the
            accumulator has a row for each of the V tokens.
        offset: (B, K) or (1, K) added to the logits, -inf on padding; or None.
        sizes: how many leading columns each utterance needs, in host memory.
    """

    size: int
    shared: bool
    token_ids: Tensor | None = None
    rows: Tensor | None = None
    row_ids: Tensor | None = None
    offset: Tensor | None = None
    sizes: tuple[int, ...] = ()

    def gather(
        self,
        utterances: Sequence[int],
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> GatheredColumns:
        """The rows of weight (V, J) and bias (V,) that ``utterances`` need."""
        if self.token_ids is None:
            return GatheredColumns(
                None,
                weight.to(dtype)[None],
                None if bias is None else bias.to(dtype)[None],
            )
        if self.shared:
            members, size = slice(0, 1), self.size
        elif len(utterances) == 1:
            members = slice(utterances[0], utterances[0] + 1)
            size = self.sizes[utterances[0]]
        else:
            members = torch.tensor(utterances, device=weight.device)
            size = max(self.sizes[b] for b in utterances)
        token_ids = self.token_ids[members, :size]
        offset = None if self.offset is None else self.offset[members, :size].to(dtype)
        if bias is not None:
            gathered = bias[token_ids].to(dtype)
            offset = gathered if offset is None else gathered.add_(offset)
        rows = None if self.rows is None else self.rows[members, :size]
        return GatheredColumns(rows, weight[token_ids].to(dtype), offset)


class OutputGradient:
    """Sums of the gradients of weight and bias, over the rows that occur.

    The dense gradients of weight (V, J) and bias (V,) are made at the very end, in
    the type of the parameter, so that with a sampled vocabulary neither time nor
    memory before that depends on V.

    Attributes:
        weight: (R, J) or None where not wanted.
        bias: (R,) or None where not wanted.
    """

    def __init__(
        self,
        columns: OutputColumns,
        weight: Tensor,
        bias: Tensor | None,
        wanted: tuple[bool, bool],
        dtype: torch.dtype,
    ) -> None:
        self._row_ids = columns.row_ids
        rows = weight.size(0) if self._row_ids is None else len(self._row_ids)
        zeros = partial(torch.zeros, dtype=dtype, device=weight.device)
        self.weight = zeros(rows, weight.size(1)) if wanted[0] else None
        self.bias = zeros(rows) if wanted[1] and bias is not None else None

    def add(self, columns: GatheredColumns, error: Tensor, hidden: Tensor) -> None:
        """Add what ``error`` (G, n, K) and ``hidden`` (G, n, J) make."""
        if columns.rows is None:
            if self.weight is not None:
                self.weight.addmm_(error[0].t(), hidden[0])
            if self.bias is not None:
                self.bias.add_(error[0].sum(dim=0))
            return
        rows = columns.rows.flatten()
        if self.weight is not None:
            if error.size(0) == 1:
                part = torch.mm(error[0].t(), hidden[0])
            else:
                part = torch.bmm(error.transpose(1, 2), hidden).flatten(0, 1)
            self.weight.index_add_(0, rows, part)
        if self.bias is not None:
            self.bias.index_add_(0, rows, error.sum(dim=1).flatten())

    def dense(self, total: Tensor | None, like: Tensor | None) -> Tensor | None:
        """``total``, one of the two sums, as the gradient of ``like``."""
        if total is None:
            return None
        if self._row_ids is None:
            return total.to(like.dtype)
        # Added, not copied: padding names a token that may stand elsewhere too.
        return torch.zeros_like(like, memory_format=torch.contiguous_format).index_add_(
            0, self._row_ids, total.to(like.dtype)
        )


def make_arc_columns(
    targets: np.ndarray, labels: np.ndarray, blank_columns: np.ndarray
) -> Tensor:
    """The columns of the two arcs of each node: of blank and of the next label.

    Args:
        targets: (B, U) columns of the labels, padded.
        labels: (B,) U_b.
        blank_columns: (B,) blank's column.

    Returns:
        (B, U + 1, 2) int64 on the host; blank's where there is no next label.
    """
    axis = targets.shape[1]
    arcs = np.repeat(blank_columns[:, None, None], axis + 1, axis=1).repeat(2, axis=2)
    valid = np.arange(axis)[None, :] < labels[:, None]
    arcs[:, :axis, 1] = np.where(valid, targets, arcs[:, :axis, 1])
    return torch.from_numpy(arcs.astype(np.int64))
