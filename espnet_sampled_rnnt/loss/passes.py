"""One group of utterances through both passes, and what the passes share.

The computation is told in :mod:`espnet_sampled_rnnt.loss.two_pass`. Symbols: B
utterances, G of them in a group, n rows of a chunk, J joint width, K output columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice import Backend
from espnet_sampled_rnnt.loss.memory import row_bytes
from espnet_sampled_rnnt.loss.nodes import (
    Chunk,
    Group,
    NodeSet,
    block_chunks,
    gather_chunks,
    make_groups,
)
from espnet_sampled_rnnt.loss.options import LossOptions, default_chunk_bytes
from espnet_sampled_rnnt.loss.output import (
    GatheredColumns,
    OutputColumns,
    OutputGradient,
)


@dataclass(frozen=True)
class Problem:
    """What the passes need beside the tensors with gradients.

    Attributes:
        nodes: the nodes of the batch.
        columns: which output columns an utterance uses.
        arc_columns: (B, U + 1, 2) int64: the columns of blank and of the next label.
        options: the checked options.
        backend: of the lattice.
        dtype: float32 or float64, of everything computed here.
        gather: whether chunks work by index tensors (accelerators) or views (CPU).
    """

    nodes: NodeSet
    columns: OutputColumns
    arc_columns: Tensor
    options: LossOptions
    backend: Backend
    dtype: torch.dtype
    gather: bool


@dataclass
class Gradients:
    """Gradients in the computing type, None where not wanted.

    enc (B, T, J), dec (B, U + 1, J); output: of weight and bias, not yet dense.
    """

    enc: Tensor | None
    dec: Tensor | None
    output: OutputGradient

    @property
    def wants_nodes(self) -> bool:
        """Whether anything on the side of enc and dec is wanted."""
        return self.enc is not None or self.dec is not None

    def scale(self, factor: Tensor) -> None:
        """Multiply by a scalar, in place."""
        for total in (self.enc, self.dec, self.output.weight, self.output.bias):
            if total is not None:
                total.mul_(factor)

    def results(
        self, enc: Tensor, dec: Tensor, weight: Tensor, bias: Tensor | None
    ) -> list[Tensor | None]:
        """Gradients of the inputs, in their types and shapes; None where not wanted."""
        return [
            None if self.enc is None else self.enc.to(enc.dtype),
            None if self.dec is None else self.dec.to(dec.dtype),
            self.output.dense(self.output.weight, weight),
            self.output.dense(self.output.bias, bias),
        ]


class Workspace:
    """Buffers that all chunks share, sized once for the largest group."""

    def __init__(self, problem: Problem, joint_size: int, device: torch.device) -> None:
        self.problem = problem
        self.joint_size = joint_size
        limit = problem.options.chunk_bytes or default_chunk_bytes(device)
        # An activation that autograd differentiates holds three more of h's size.
        copies = 2 if problem.options.activation.from_output else 5
        size = row_bytes(
            problem.columns.size, joint_size, problem.dtype.itemsize, copies
        )
        self.capacity = max(1, limit // size)
        padded = problem.gather and not problem.columns.shared
        self.groups = make_groups(problem.nodes, self.capacity, padded)
        self.rows = max(
            min(group.num_rows(problem.nodes, padded), self.capacity)
            for group in self.groups
        )
        self._new = partial(torch.empty, dtype=problem.dtype, device=device)
        self._buffers: dict[str, Tensor] = {}

    def take(
        self, name: str, rows: tuple[int, int], width: int, offset: int = 0
    ) -> Tensor:
        """An uninitialised (*rows, width) at row ``offset`` of the buffer ``name``."""
        # Utterances differ in the width of their logits: rows are counted in the
        # largest, so that no chunk lies over another.
        widest = self.problem.columns.size if name == "logits" else width
        if name not in self._buffers:
            self._buffers[name] = self._new(self.rows * widest)
        start = offset * widest
        stop = start + rows[0] * rows[1] * width
        return self._buffers[name][start:stop].view(*rows, width)


class GroupPasses:
    """Both passes for one group."""

    def __init__(
        self,
        problem: Problem,
        group: Group,
        workspace: Workspace,
        enc: Tensor,
        dec: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self.problem = problem
        self.group = group
        self.workspace = workspace
        self.enc, self.dec = enc, dec
        self.weight, self.bias = weight, bias
        self._gathered: tuple[tuple[int, ...] | None, GatheredColumns] | None = None
        shared = problem.columns.shared
        if problem.gather:
            chunks: Sequence[Chunk] = gather_chunks(
                problem.nodes, group, workspace.capacity, shared, enc.device
            )
        else:
            chunks = block_chunks(problem.nodes, group, workspace.capacity, shared)
        self.chunks = chunks
        rows = [chunk.rows[0] * chunk.rows[1] for chunk in chunks]
        # Either every chunk has a place of its own, or all share one.
        if sum(rows) <= workspace.capacity:
            self._places = [sum(rows[:i]) for i in range(len(rows))]
            self._kept = set(range(len(rows)))
        else:
            self._places = [0] * len(rows)
            self._kept = {len(rows) - 1}

    @property
    def frames(self) -> list[int]:
        """T_b of the utterances of the group."""
        return [self.problem.nodes.frames[b] for b in self.group.utterances]

    @property
    def labels(self) -> list[int]:
        """U_b of the utterances of the group."""
        return [self.problem.nodes.labels[b] for b in self.group.utterances]

    def _columns(self, chunk: Chunk) -> GatheredColumns:
        """The output columns of a chunk; those of the last one asked for are kept."""
        # The chunks of an utterance follow each other, and the last of pass 1 is the
        # first of pass 2. Where all share their columns, any chunk's are the same.
        wanted = None if self.problem.columns.shared else chunk.utterances
        if self._gathered is None or self._gathered[0] != wanted:
            self._gathered = None
            columns = self.problem.columns.gather(
                chunk.utterances, self.weight, self.bias, self.problem.dtype
            )
            self._gathered = (wanted, columns)
        return self._gathered[1]

    def _hidden(self, index: int, make: bool) -> Tensor:
        chunk = self.chunks[index]
        out = self.workspace.take(
            "h", chunk.rows, self.workspace.joint_size, self._places[index]
        )
        if make:
            chunk.joint_input(self.enc, self.dec, out)
            self.problem.options.activation.forward_(out)
        return out

    def _joint_input(self, chunk: Chunk) -> Tensor:
        out = self.workspace.take("input", chunk.rows, self.workspace.joint_size)
        return chunk.joint_input(self.enc, self.dec, out)

    def _logits(self, index: int, columns: int) -> Tensor:
        return self.workspace.take(
            "logits", self.chunks[index].rows, columns, self._places[index]
        )

    def first_pass(self) -> Tensor:
        """log p(blank) and log p(label) of the group's nodes, (n, 2).

        What is kept in the workspace is softmax probabilities, not logits.
        """
        arcs = torch.empty(
            self.group.num_nodes,
            2,
            dtype=self.problem.dtype,
            device=self.enc.device,
        )
        for index, chunk in enumerate(self.chunks):
            columns = self._columns(chunk)
            hidden = self._hidden(index, make=True)
            logits = columns.logits(hidden, self._logits(index, columns.size))
            at = chunk.arc_columns(self.problem.arc_columns)
            largest = logits.amax(dim=-1, keepdim=True)
            selected = logits.gather(-1, at).sub_(largest)
            torch.softmax(logits, dim=-1, out=logits)
            # The largest probability is exp(0) over the sum, and never underflows.
            selected.add_(logits.amax(dim=-1, keepdim=True).log_())
            # A log probability above 0 is rounding; it would make losses negative.
            chunk.write(arcs, selected.clamp_(max=0.0))
        return arcs

    def second_pass(
        self, occupancies: Tensor, bad: Tensor | None, gradients: Gradients, kept: bool
    ) -> None:
        """Add the group's gradients.

        Args:
            occupancies: (n, 2), scaled by the upstream gradient.
            bad: (B,) bool, utterances without a finite loss, or None for none.
            gradients: to add to.
            kept: whether the workspace still holds what pass 1 left.
        """
        activation = self.problem.options.activation
        for index in range(len(self.chunks) - 1, -1, -1):
            chunk = self.chunks[index]
            columns = self._columns(chunk)
            fresh = not (kept and index in self._kept)
            hidden = self._hidden(index, make=fresh)
            error = self._logits(index, columns.size)
            if fresh:
                columns.logits(hidden, error)
                torch.softmax(error, dim=-1, out=error)
            # d loss / d logit_k = (occ_blank + occ_label) p_k - occ_k
            occupancy = chunk.read(occupancies)
            error.mul_(occupancy.sum(dim=-1, keepdim=True))
            at = chunk.arc_columns(self.problem.arc_columns)
            error.scatter_add_(-1, at, -occupancy)
            rows = None
            if bad is not None:
                # 0 times NaN is NaN: what a bad utterance left must be set to 0.
                rows = chunk.of_utterance(bad)
                error.masked_fill_(rows, 0.0)
                hidden.masked_fill_(rows, 0.0)
            gradients.output.add(columns, error, hidden)
            if gradients.wants_nodes:
                gradient = self.workspace.take(
                    "gradient", chunk.rows, self.workspace.joint_size
                )
                columns.hidden_gradient(error, gradient)
                activation.backward_(
                    gradient, hidden, partial(self._joint_input, chunk)
                )
                if rows is not None:
                    gradient.masked_fill_(rows, 0.0)
                chunk.add_gradient(gradient, gradients.enc, gradients.dec)
