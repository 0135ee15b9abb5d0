"""Parts of a step by themselves: dense gradient, lattice, drawing."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.contenders.base import Contender, Step, output_gradient_bytes
from benchmarks.contenders.logits import torchaudio_loss, torchaudio_unavailable
from benchmarks.inputs import make_inputs
from benchmarks.workloads import Workload
from espnet_sampled_rnnt import sample_vocabulary
from espnet_sampled_rnnt.loss.lattice import BACKENDS, resolve


def _make_dense_gradient(workload: Workload, device: torch.device, seed: int) -> Step:
    shape = (workload.vocab_size, workload.joint_size)
    # The layer itself is there in a training too, and its pages are read.
    layer = torch.ones(shape, device=device)

    def step() -> None:
        torch.zeros(shape, device=layer.device)
        torch.zeros(workload.vocab_size, device=layer.device)

    return step


def _random_arcs(workload: Workload, seed: int) -> Tensor:
    """(N, 2) log probabilities of blank and of the next label."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(workload.nodes, 2, generator=generator).log_softmax(dim=1)


def _make_padded_lattice(workload: Workload, device: torch.device, seed: int) -> Step:
    frames, labels = max(workload.frames), max(workload.labels)
    padded = torch.zeros(workload.batch, frames, labels + 1, 2)
    arcs = _random_arcs(workload, seed)
    start = 0
    for row, (count, width) in enumerate(
        zip(workload.frames, workload.labels, strict=True)
    ):
        stop = start + count * (width + 1)
        padded[row, :count, : width + 1] = arcs[start:stop].view(count, width + 1, 2)
        start = stop
    padded = padded.to(device).requires_grad_()
    targets = torch.ones(workload.batch, labels, dtype=torch.int32, device=device)
    lengths = [
        torch.tensor(values, dtype=torch.int32, device=device)
        for values in (workload.frames, workload.labels)
    ]

    def step() -> Tensor:
        loss = torchaudio_loss(padded, targets, *lengths, fused_log_softmax=False)
        torch.autograd.grad(loss, padded)
        return loss.detach()

    return step


def _make_lattice(
    backend: str, workload: Workload, device: torch.device, seed: int
) -> Step:
    chosen = resolve(backend, device)
    source = _random_arcs(workload, seed).to(device)

    def step() -> Tensor:
        # A backend overwrites its arcs, so each step takes a copy.
        return chosen.run(source.clone(), workload.frames, workload.labels, True).mean()

    return step


def _make_draw(
    weighted: str, workload: Workload, device: torch.device, seed: int
) -> Step:
    inputs = make_inputs(workload, device, seed)
    shape = {
        "weighted": (workload.vocab_size,),
        "weighted-rows": (workload.batch, workload.vocab_size),
    }
    probs = None
    if weighted in shape:
        generator = torch.Generator().manual_seed(seed)
        probs = torch.rand(shape[weighted], generator=generator).to(device)

    def step() -> None:
        sample_vocabulary(
            inputs.targets,
            inputs.target_lengths,
            vocab_size=workload.vocab_size,
            num_samples=workload.num_samples,
            probs=probs,
        )

    return step


def _backend_unavailable(backend: str, device: torch.device) -> str | None:
    return None if backend == "auto" else BACKENDS[backend].unavailable(device)


def contenders() -> list[Contender]:
    """Dense gradient, ``lattice-torchaudio``, ``lattice:BACKEND``, ``draw-KIND``."""
    found = [
        Contender(
            name="dense-gradient",
            description="only zeros in the shape of the output layer's gradient",
            make=_make_dense_gradient,
            softmax=None,
            needed_bytes=output_gradient_bytes,
        ),
        Contender(
            name="lattice-torchaudio",
            description="torchaudio's lattice on (B, T, U + 1, 2)",
            make=_make_padded_lattice,
            softmax=None,
            needed_bytes=lambda workload: 32 * workload.padded_nodes,
            unavailable=torchaudio_unavailable,
        ),
    ]
    found += [
        Contender(
            name=f"lattice:{backend}",
            description=f"our lattice by {backend}",
            make=partial(_make_lattice, backend),
            softmax=None,
            needed_bytes=lambda workload: 32 * workload.padded_nodes,
            unavailable=partial(_backend_unavailable, backend),
        )
        for backend in ("auto", *BACKENDS)
    ]
    draws = {
        "uniform": "uniform",
        "weighted": "by one weight a token, (V,)",
        "weighted-rows": "by a weight for each utterance and token, (B, V)",
    }
    found += [
        Contender(
            name=f"draw-{weighted}",
            description=f"only drawing the vocabulary, {description}",
            make=partial(_make_draw, weighted),
            softmax=None,
            needed_bytes=lambda workload: 32 * workload.batch * workload.vocab_size,
        )
        for weighted, description in draws.items()
    ]
    return found
