"""This project's loss: full softmax, sampled by example or by batch, any backend."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.contenders.base import Contender, Step, product_flops
from benchmarks.inputs import draw_vocabulary, make_inputs
from benchmarks.workloads import Workload
from espnet_sampled_rnnt import transducer_loss
from espnet_sampled_rnnt.loss.lattice import BACKENDS
from espnet_sampled_rnnt.loss.memory import peak_bytes

SOFTMAXES = {
    "full": "the exact loss",
    "example": "sampled, a vocabulary for each utterance",
    "batch": "sampled, one vocabulary for the batch",
}


def _make(
    softmax: str, backend: str, workload: Workload, device: torch.device, seed: int
) -> Step:
    inputs = make_inputs(workload, device, seed)
    vocabulary = None
    if softmax != "full":
        vocabulary = draw_vocabulary(workload, inputs, softmax, seed)

    def step() -> torch.Tensor:
        loss = transducer_loss(
            *inputs.wanted,
            inputs.targets,
            inputs.enc_lengths,
            inputs.target_lengths,
            vocabulary=vocabulary,
            backend=backend,
        )
        torch.autograd.grad(loss, inputs.wanted)
        return loss.detach()

    return step


def _unavailable(backend: str, device: torch.device) -> str | None:
    return None if backend == "auto" else BACKENDS[backend].unavailable(device)


def _needed_bytes(softmax: str, workload: Workload) -> int:
    return peak_bytes(
        workload.frames,
        workload.labels,
        joint_size=workload.joint_size,
        vocab_size=workload.vocab_size,
        sampled_size=None if softmax == "full" else workload.softmax_size(softmax),
        shared=softmax == "batch",
    )


def _flops(softmax: str, workload: Workload) -> int:
    size = workload.softmax_size(softmax)
    return product_flops(4, workload.nodes, size, workload.joint_size)


def contenders() -> list[Contender]:
    """``ours-SOFTMAX`` and ``ours-SOFTMAX:BACKEND`` for each backend."""
    found = []
    for softmax, description in SOFTMAXES.items():
        for backend in ("auto", *BACKENDS):
            suffix = "" if backend == "auto" else f":{backend}"
            found.append(
                Contender(
                    name=f"ours-{softmax}{suffix}",
                    description=f"ours, {description}; lattice by {backend}",
                    make=partial(_make, softmax, backend),
                    softmax=softmax,
                    needed_bytes=partial(_needed_bytes, softmax),
                    flops=partial(_flops, softmax),
                    unavailable=partial(_unavailable, backend),
                )
            )
    return found
