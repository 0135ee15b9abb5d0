"""What a contender offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.workloads import Workload

# One forward and backward; gives the loss, None where there is none. It keeps
# nothing: what it allocates is free when it returns.
Step = Callable[[], Tensor | None]


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a workload.

    Attributes:
        name: as given to ``--contenders``.
        description: one line.
        make: (workload, device, seed) -> step. What it makes before it returns counts
            as input; what the step makes counts as extra memory.
        softmax: "full", "example" or "batch": which tokens a softmax sums over;
            None where there is none.
        needed_bytes: estimate of the extra peak memory on a workload.
        flops: floating point operations of its matrix products on a workload.
        unavailable: None where it can run on a device, else the reason.
        refuses: None where it can do a workload, else the reason.
        exact: whether its loss is the transducer loss of its softmax, so that all
            such contenders of one softmax must agree.
    """

    name: str
    description: str
    make: Callable[[Workload, torch.device, int], Step]
    softmax: str | None
    needed_bytes: Callable[[Workload], int]
    flops: Callable[[Workload], int] = lambda workload: 0
    unavailable: Callable[[torch.device], str | None] = lambda device: None
    refuses: Callable[[Workload], str | None] = lambda workload: None
    exact: bool = True


def product_flops(products: int, rows: int, columns: int, joint_size: int) -> int:
    """Operations of ``products`` matrix products of rows x joint_size x columns."""
    return 2 * products * rows * columns * joint_size


def gradient_bytes(workload: Workload) -> int:
    """Bytes of the gradients of enc, dec, weight and bias in float32."""
    return enc_dec_gradient_bytes(workload) + output_gradient_bytes(workload)


def enc_dec_gradient_bytes(workload: Workload) -> int:
    """Bytes of the gradients of enc and dec in float32."""
    positions = max(workload.frames) + max(workload.labels) + 1
    return 4 * workload.batch * positions * workload.joint_size


def output_gradient_bytes(workload: Workload) -> int:
    """Bytes of the dense gradients of weight and bias in float32."""
    return 4 * workload.vocab_size * (workload.joint_size + 1)
