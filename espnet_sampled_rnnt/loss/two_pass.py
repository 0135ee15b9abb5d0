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

import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.nodes import Group
from espnet_sampled_rnnt.loss.output import OutputGradient
from espnet_sampled_rnnt.loss.passes import (
    Gradients,
    GroupPasses,
    Problem,
    Workspace,
)


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
