"""The floor on time: the four matrix products of the two-pass loss and nothing else.

Two of h by the weight, one for the gradient of h, one for the gradient of the
weight, over all nodes in blocks of the size that the loss uses, on buffers made
before.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.contenders.base import Contender, Step, product_flops
from benchmarks.inputs import draw_vocabulary, make_inputs
from benchmarks.workloads import Workload
from espnet_sampled_rnnt.loss.memory import row_bytes
from espnet_sampled_rnnt.loss.options import default_chunk_bytes


def block_rows(columns: int, joint_size: int, device: torch.device) -> int:
    """Nodes that fit in the loss's workspace."""
    return max(1, default_chunk_bytes(device) // row_bytes(columns, joint_size))


def even_blocks(nodes: int, most: int) -> list[int]:
    """Cut ``nodes`` into as few and as even blocks as go, of at most ``most``."""
    parts = -(-nodes // most)
    return [nodes * (i + 1) // parts - nodes * i // parts for i in range(parts)]


def _products(
    hidden: Tensor, weight: Tensor, logits: Tensor, grads: tuple[Tensor, Tensor]
) -> None:
    """The four products of (n, J) nodes and a (K, J) weight, or of batches of such."""
    if hidden.dim() == 2:
        torch.mm(hidden, weight.t(), out=logits)
        torch.mm(hidden, weight.t(), out=logits)
        torch.mm(logits, weight, out=grads[0])
        grads[1].addmm_(logits.t(), hidden)
    else:
        torch.bmm(hidden, weight.transpose(1, 2), out=logits)
        torch.bmm(hidden, weight.transpose(1, 2), out=logits)
        torch.bmm(logits, weight, out=grads[0])
        grads[1].baddbmm_(logits.transpose(1, 2), hidden)


def _plan(
    softmax: str, workload: Workload, device: torch.device, seed: int
) -> list[tuple[int, int, int]]:
    """Products as (batch of products, rows, columns K)."""
    nodes, joint_size = workload.nodes, workload.joint_size
    if softmax == "full":
        columns = workload.vocab_size
    else:
        vocabulary = draw_vocabulary(
            workload, make_inputs(workload, device, seed), softmax, seed
        )
        sizes = vocabulary.sizes.tolist()
        columns = max(sizes)
    most = block_rows(columns, joint_size, device)
    if softmax != "example":
        return [(1, rows, columns) for rows in even_blocks(nodes, most)]
    counts = [
        frames * (labels + 1)
        for frames, labels in zip(workload.frames, workload.labels, strict=True)
    ]
    if device.type == "cpu":
        return [
            (1, rows, size)
            for count, size in zip(counts, sizes, strict=True)
            for rows in even_blocks(
                count, block_rows(size, workload.joint_size, device)
            )
        ]
    # On an accelerator utterances go together, each padded to the largest.
    counts.sort(reverse=True)
    plan, start = [], 0
    while start < len(counts):
        members = min(max(1, most // counts[start]), len(counts) - start)
        for rows in even_blocks(counts[start], max(1, most // members)):
            plan.append((members, rows, columns))
        start += members
    return plan


def _make(softmax: str, workload: Workload, device: torch.device, seed: int) -> Step:
    plan = _plan(softmax, workload, device, seed)
    joint_size = workload.joint_size
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    most_nodes = max(members * rows for members, rows, _ in plan)
    most_columns = max(members * columns for members, _, columns in plan)
    most_logits = max(members * rows * columns for members, rows, columns in plan)
    hidden, hidden_grad = normal(most_nodes, joint_size), normal(most_nodes, joint_size)
    weight, weight_grad = (normal(most_columns, joint_size) for _ in range(2))
    logits = torch.ones(most_logits, device=device)

    def view(buffer: Tensor, members: int, rows: int, width: int) -> Tensor:
        whole = buffer.view(-1)[: members * rows * width]
        return whole.view(rows, width) if members == 1 else whole.view(-1, rows, width)

    def step() -> None:
        for members, rows, columns in plan:
            _products(
                view(hidden, members, rows, joint_size),
                view(weight, members, columns, joint_size),
                view(logits, members, rows, columns),
                (
                    view(hidden_grad, members, rows, joint_size),
                    view(weight_grad, members, columns, joint_size),
                ),
            )

    return step


def contenders() -> list[Contender]:
    """``gemms-full``, ``gemms-example`` and ``gemms-batch``."""

    def flops(softmax: str, workload: Workload) -> int:
        size = workload.softmax_size(softmax)
        return product_flops(4, workload.nodes, size, workload.joint_size)

    return [
        Contender(
            name=f"gemms-{softmax}",
            description=f"the four bare matrix products of ours-{softmax}",
            make=partial(_make, softmax),
            softmax=softmax,
            needed_bytes=lambda workload: 0,
            flops=partial(flops, softmax),
            exact=False,
        )
        for softmax in ("full", "example", "batch")
    ]
