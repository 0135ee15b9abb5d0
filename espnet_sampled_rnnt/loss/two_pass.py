"""The two passes over the nodes, as one autograd function.

Pass 1 makes h and the logits chunk by chunk and keeps two floats a node, log
p(blank) and log p(label); the lattice turns them into occupancies; pass 2 makes h
and the logits again and from them the gradients. Since the loss is separable by
utterance, groups of utterances go through all three one after the other, so that
even those floats live for one group only. The last chunks of pass 1 are still in
the workspace when pass 2 begins, and are not made again; a group that fits in the
workspace needs three matrix products instead of four.

Symbols: B utterances, G of them in a group, n rows of a chunk, J joint width, K
output columns (the sampled vocabulary, or V).
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
from espnet_sampled_rnnt.loss.output import OutputColumns, OutputGradient


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

    def _columns(self, chunk: Chunk):
        return self.problem.columns.gather(
            chunk.utterances, self.weight, self.bias, self.problem.dtype
        )

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


class TwoPass(torch.autograd.Function):
    """Losses of a batch; see the module's docstring."""

    @staticmethod
    def forward(ctx, enc, dec, weight, bias, problem, want):
        """(B,) losses for reduction none, else their sum or mean.

        ``want`` says whether a gradient will be asked for.
        """
        ctx.problem = problem
        ctx.gradients = None
        ctx.occupancies = None
        wanted = tuple(want and x is not None for x in (enc, dec, weight, bias))
        ctx.wanted = tuple(
            w and n for w, n in zip(wanted, ctx.needs_input_grad[:4], strict=True)
        )
        at_once = problem.options.reduction != "none"
        with torch.autocast(enc.device.type, enabled=False):
            losses, ctx.gradients, ctx.occupancies = _run(
                problem, enc, dec, weight, bias, ctx.wanted, at_once
            )
        if any(ctx.wanted):
            ctx.save_for_backward(enc, dec, weight, bias)
        if problem.options.reduction == "none":
            return losses
        return losses.sum() * _scale(problem)

    @staticmethod
    def backward(ctx, upstream):
        """Gradients of enc, dec, weight and bias, in their types."""
        problem = ctx.problem
        inputs = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(upstream.device.type, enabled=False):
            if problem.options.reduction == "none":
                gradients = _second_pass_of_all(
                    problem, *inputs, ctx.wanted, ctx.occupancies, upstream
                )
            else:
                gradients = ctx.gradients
                # Handed out once, scaled in place: a copy would double the memory.
                # A second backward through a kept graph makes them anew.
                ctx.gradients = None
                if gradients is None:
                    _, gradients, _ = _run(problem, *inputs, ctx.wanted, True)
                gradients.scale(upstream)
            results = gradients.results(*inputs)
        if torch.is_grad_enabled():  # create_graph=True
            results = [
                None
                if result is None
                else _NoDoubleBackward.apply(result, like, upstream)
                for result, like in zip(results, inputs, strict=True)
            ]
        return (*results, None, None)


class _NoDoubleBackward(torch.autograd.Function):
    """Passes a gradient on and refuses to be differentiated by what made it."""

    @staticmethod
    def forward(ctx, gradient, like, upstream):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, upstream):
        raise RuntimeError(
            "transducer_loss cannot be differentiated twice: double backward "
            "(create_graph=True, a gradient penalty) is not supported"
        )


def _scale(problem: Problem) -> float:
    if problem.options.reduction == "mean":
        return 1.0 / len(problem.nodes.frames)
    return 1.0


def _run(
    problem: Problem,
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: tuple[bool, ...],
    at_once: bool,
) -> tuple[Tensor, Gradients | None, list[Tensor]]:
    """Losses (B,); with ``at_once`` the gradients too, else the occupancies."""
    workspace = Workspace(problem, enc.size(-1), enc.device)
    want = any(wanted)
    gradients = None
    if want and at_once:
        gradients = _zero_gradients(problem, enc, dec, weight, bias, wanted)
    losses = torch.zeros(enc.size(0), dtype=problem.dtype, device=enc.device)
    kept: list[Tensor] = []
    for group in workspace.groups:
        passes = GroupPasses(problem, group, workspace, enc, dec, weight, bias)
        arcs = passes.first_pass()
        found = problem.backend.run(arcs, passes.frames, passes.labels, want)
        _place(losses, group, found)
        if want:
            # FastEmit, as warp-rnnt has it: the gradient of the label arcs grows,
            # the loss stays.
            if problem.options.fastemit_lambda:
                arcs[:, 1] *= 1.0 + problem.options.fastemit_lambda
            if gradients is None:
                kept.append(arcs)
            else:
                arcs *= _scale(problem)
                passes.second_pass(arcs, _bad(losses), gradients, kept=True)
    # Rounding can leave a loss of about 0 below 0.
    return losses.clamp_(min=0.0), gradients, kept


def _second_pass_of_all(
    problem: Problem,
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: tuple[bool, ...],
    occupancies: list[Tensor],
    upstream: Tensor,
) -> Gradients:
    """Pass 2 in backward, for an upstream gradient (B,) of each utterance."""
    workspace = Workspace(problem, enc.size(-1), enc.device)
    gradients = _zero_gradients(problem, enc, dec, weight, bias, wanted)
    upstream = upstream.to(problem.dtype)
    # Occupancies of 0 alone do not mark a bad utterance; those of (0, 0) do: a path
    # leaves it, so they sum to 1 where there is one.
    for group, arcs in zip(workspace.groups, occupancies, strict=True):
        passes = GroupPasses(problem, group, workspace, enc, dec, weight, bias)
        first = torch.tensor(group.offsets[:-1], device=arcs.device)
        bad = torch.zeros(enc.size(0), dtype=torch.bool, device=enc.device)
        members = torch.tensor(group.utterances, device=enc.device)
        bad[members] = (arcs[first] == 0).all(dim=1)
        scale = upstream[members].repeat_interleave(
            torch.tensor(group.offsets, device=arcs.device).diff(),
            output_size=group.num_nodes,
        )
        passes.second_pass(arcs * scale[:, None], _some(bad), gradients, kept=False)
    return gradients


def _place(losses: Tensor, group: Group, found: Tensor) -> None:
    index = torch.tensor(group.utterances, device=losses.device)
    losses[index] = found.to(losses.dtype)


def _bad(losses: Tensor) -> Tensor | None:
    return _some(~torch.isfinite(losses))


def _some(bad: Tensor) -> Tensor | None:
    """``bad``, or on a CPU None where it marks nothing; elsewhere asking would wait."""
    if bad.device.type == "cpu" and not bool(bad.any()):
        return None
    return bad


def _zero_gradients(
    problem: Problem,
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: tuple[bool, ...],
) -> Gradients:
    def zeros(like: Tensor, want: bool) -> Tensor | None:
        if not want:
            return None
        return torch.zeros(like.shape, dtype=problem.dtype, device=like.device)

    return Gradients(
        enc=zeros(enc, wanted[0]),
        dec=zeros(dec, wanted[1]),
        output=OutputGradient(problem.columns, weight, bias, wanted[2:], problem.dtype),
    )
