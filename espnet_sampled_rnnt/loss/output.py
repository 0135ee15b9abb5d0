"""The output layer, restricted to the columns that a group of nodes uses.

The exact full softmax is the case where every utterance uses all columns: the same
code, without the gathering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GatheredColumns:
    """Rows of the output layer for G utterances.

    Attributes:
        token_ids: (G, K) int64, or None for all tokens in order.
        weight: (G, K, J); G = 1 where all nodes of a chunk use the same.
        bias: (G, K), or None: of the layer, the correction, -inf on padding.
    """

    token_ids: Tensor | None
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
        offset: (B, K) or (1, K) added to the logits, -inf on padding; or None.
        sizes: how many leading columns each utterance needs, in host memory.
    """

    size: int
    shared: bool
    token_ids: Tensor | None = None
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
            rows, size = slice(0, 1), self.size
        elif len(utterances) == 1:
            rows = slice(utterances[0], utterances[0] + 1)
            size = self.sizes[utterances[0]]
        else:
            rows = torch.tensor(utterances, device=weight.device)
            size = max(self.sizes[b] for b in utterances)
        token_ids = self.token_ids[rows, :size]
        offset = None if self.offset is None else self.offset[rows, :size].to(dtype)
        if bias is not None:
            gathered = bias[token_ids].to(dtype)
            offset = gathered if offset is None else gathered.add_(offset)
        return GatheredColumns(token_ids, weight[token_ids].to(dtype), offset)


class OutputGradient:
    """Gradients of weight (V, J) and bias (V,), None where not wanted."""

    def __init__(
        self, columns: OutputColumns, weight: Tensor | None, bias: Tensor | None
    ) -> None:
        self.weight = weight
        self.bias = bias
        # Where all utterances share a part of the columns, sums over it are kept
        # apart and scattered once.
        self._shared_ids = (
            columns.token_ids[0]
            if (columns.shared and columns.token_ids is not None)
            else None
        )
        self._weight_part = self._bias_part = None
        if self._shared_ids is not None:
            if weight is not None:
                self._weight_part = weight.new_zeros(columns.size, weight.size(1))
            if bias is not None:
                self._bias_part = bias.new_zeros(columns.size)

    def add(self, columns: GatheredColumns, error: Tensor, hidden: Tensor) -> None:
        """Add what ``error`` (G, n, K) and ``hidden`` (G, n, J) make."""
        whole = columns.token_ids is None or self._shared_ids is not None
        if whole:
            shared = self._shared_ids is not None
            weight = self._weight_part if shared else self.weight
            bias = self._bias_part if shared else self.bias
            if weight is not None:
                weight.addmm_(error[0].t(), hidden[0])
            if bias is not None:
                bias.add_(error[0].sum(dim=0))
            return
        ids = columns.token_ids.flatten()
        if self.weight is not None:
            if error.size(0) == 1:
                part = torch.mm(error[0].t(), hidden[0])
            else:
                part = torch.bmm(error.transpose(1, 2), hidden).flatten(0, 1)
            self.weight.index_add_(0, ids, part)
        if self.bias is not None:
            self.bias.index_add_(0, ids, error.sum(dim=1).flatten())

    def finish(self) -> None:
        """Scatter what was kept apart."""
        if self._weight_part is not None:
            self.weight.index_add_(0, self._shared_ids, self._weight_part)
        if self._bias_part is not None:
            self.bias.index_add_(0, self._shared_ids, self._bias_part)
        self._weight_part = self._bias_part = None
