"""Losses on a whole (B, T, U + 1, K) tensor of logits, by torchaudio's kernel.

``torchaudio-full`` is the usual transducer: all V logits of every node, padding
included. Its logits are free once the loss has read them, as where a model's method
returns the loss. ``torchaudio-full-kept`` is the same with the logits in a variable
until backward is done, as in a training loop written in one piece: the same time, half
as much memory again.

``nemo-like`` is the shape of NeMo's SampledRNNTJoint, written anew: the rows of the
output layer for blank, all labels of the minibatch and S negatives are gathered, and
the logits are made over these only.
"""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.contenders.base import (
    Contender,
    Step,
    gradient_bytes,
    product_flops,
)
from benchmarks.inputs import Inputs, draw_vocabulary, make_inputs
from benchmarks.workloads import Workload

# Above it torchaudio's kernel overflows an int32 index (pytorch/audio issue 3736).
_MOST_LOGITS = 2**31 - 1


def whole_logits(inputs: Inputs, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, T, U + 1, K) logits, as a joint network makes them."""
    hidden = torch.tanh(inputs.enc[:, :, None] + inputs.dec[:, None])
    return linear(hidden, weight, bias)


def torchaudio_loss(
    logits: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, **options: object
) -> Tensor:
    """torchaudio's loss, mean over utterances, blank 0, without its warnings."""
    from torchaudio.functional import rnnt_loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rnnt_loss(logits, targets, frames, labels, blank=0, **options)


def torchaudio_unavailable(device: torch.device) -> str | None:
    """None where torchaudio's loss loads and runs on ``device``."""
    if device.type not in ("cpu", "cuda"):
        return f"torchaudio's rnnt_loss runs on CPU and CUDA, not on {device.type}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchaudio.functional import rnnt_loss  # noqa: F401
    except (ImportError, OSError) as error:
        return f"torchaudio's rnnt_loss does not load: {error}"
    return None


def _make_full(keep: bool, workload: Workload, device: torch.device, seed: int) -> Step:
    inputs = make_inputs(workload, device, seed)
    targets = inputs.targets.int()
    lengths = inputs.enc_lengths.int(), inputs.target_lengths.int()

    def step() -> Tensor:
        logits = whole_logits(inputs, inputs.weight, inputs.bias)
        loss = torchaudio_loss(logits, targets, *lengths)
        if not keep:
            del logits
        torch.autograd.grad(loss, inputs.wanted)
        return loss.detach()

    return step


def _make_nemo_like(workload: Workload, device: torch.device, seed: int) -> Step:
    inputs = make_inputs(workload, device, seed)
    vocabulary = draw_vocabulary(workload, inputs, "batch", seed)
    # One row for all; blank stands first in it.
    token_ids = vocabulary.token_ids[0].contiguous()
    targets = vocabulary.targets.int()
    lengths = inputs.enc_lengths.int(), inputs.target_lengths.int()

    def step() -> Tensor:
        weight = inputs.weight.index_select(0, token_ids)
        bias = inputs.bias.index_select(0, token_ids)
        loss = torchaudio_loss(whole_logits(inputs, weight, bias), targets, *lengths)
        torch.autograd.grad(loss, inputs.wanted)
        return loss.detach()

    return step


def whole_logits_bytes(softmax: str, workload: Workload) -> int:
    """h twice, the logits if kept, their gradient and what backward scales it into."""
    width = 2 * workload.joint_size + 3 * workload.softmax_size(softmax)
    return 4 * workload.padded_nodes * width + gradient_bytes(workload)


def whole_logits_flops(softmax: str, workload: Workload) -> int:
    """Three products: logits, gradient of h, gradient of the weight."""
    size = workload.softmax_size(softmax)
    return product_flops(3, workload.padded_nodes, size, workload.joint_size)


def _refuses(softmax: str, workload: Workload) -> str | None:
    logits = workload.padded_nodes * workload.softmax_size(softmax)
    if logits > _MOST_LOGITS:
        return f"torchaudio's kernel takes at most 2^31 - 1 logits, here {logits:,}"
    return None


def contenders() -> list[Contender]:
    """``torchaudio-full``, ``torchaudio-full-kept`` and ``nemo-like``."""
    entries = (
        (
            "torchaudio-full",
            "torchaudio on full logits",
            partial(_make_full, False),
            "full",
        ),
        (
            "torchaudio-full-kept",
            "the same, the logits kept until backward is done",
            partial(_make_full, True),
            "full",
        ),
        (
            "nemo-like",
            "torchaudio on batch-scope sampled logits, as NeMo's SampledRNNTJoint",
            _make_nemo_like,
            "batch",
        ),
    )
    return [
        Contender(
            name=name,
            description=description,
            make=make,
            softmax=softmax,
            needed_bytes=partial(whole_logits_bytes, softmax),
            flops=partial(whole_logits_flops, softmax),
            unavailable=torchaudio_unavailable,
            refuses=partial(_refuses, softmax),
        )
        for name, description, make, softmax in entries
    ]
