"""Other people's losses, run where they are installed.

All but the pruned ones take the logits of every node. The pruned loss of k2 and
fast_rnnt is another objective: a first, additive pass finds for each frame a band of
label positions, and logits are made in the band only.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.contenders.base import (
    Contender,
    Step,
    gradient_bytes,
    product_flops,
)
from benchmarks.contenders.logits import (
    whole_logits,
    whole_logits_bytes,
    whole_logits_flops,
)
from benchmarks.inputs import Inputs, make_inputs
from benchmarks.workloads import Workload

_PRUNE_RANGE = 5


def _boundary(inputs: Inputs) -> Tensor:
    """(B, 4) int64: first label and frame, label and frame count, as k2 has it."""
    zero = torch.zeros_like(inputs.enc_lengths)
    return torch.stack([zero, zero, inputs.target_lengths, inputs.enc_lengths], dim=1)


def _warp_rnnt(module: ModuleType, inputs: Inputs, weight: Tensor, bias: Tensor):
    return module.rnnt_loss(
        whole_logits(inputs, weight, bias).log_softmax(dim=-1),
        inputs.targets.int(),
        inputs.enc_lengths.int(),
        inputs.target_lengths.int(),
        reduction="mean",
        blank=0,
        gather=True,
    )


def _optimized_transducer(
    module: ModuleType, inputs: Inputs, weight: Tensor, bias: Tensor
):
    nodes = [
        (enc[:frames, None] + dec[None, : labels + 1]).flatten(0, 1)
        for enc, dec, frames, labels in zip(
            inputs.enc,
            inputs.dec,
            inputs.enc_lengths.tolist(),
            inputs.target_lengths.tolist(),
            strict=True,
        )
    ]
    return module.transducer_loss(
        logits=linear(torch.tanh(torch.cat(nodes)), weight, bias),
        targets=inputs.targets.int(),
        logit_lengths=inputs.enc_lengths.int(),
        target_lengths=inputs.target_lengths.int(),
        blank=0,
        reduction="mean",
    )


def _k2(module: ModuleType, inputs: Inputs, weight: Tensor, bias: Tensor):
    return module.rnnt_loss(
        logits=whole_logits(inputs, weight, bias),
        symbols=inputs.targets,
        termination_symbol=0,
        boundary=_boundary(inputs),
        reduction="mean",
    )


def _k2_pruned(module: ModuleType, inputs: Inputs, weight: Tensor, bias: Tensor):
    boundary = _boundary(inputs)
    simple_loss, (label_grad, blank_grad) = module.rnnt_loss_smoothed(
        lm=linear(inputs.dec, weight, bias),
        am=linear(inputs.enc, weight),
        symbols=inputs.targets,
        termination_symbol=0,
        lm_only_scale=0.25,
        am_only_scale=0.0,
        boundary=boundary,
        reduction="mean",
        return_grad=True,
    )
    ranges = module.get_rnnt_prune_ranges(
        px_grad=label_grad, py_grad=blank_grad, boundary=boundary, s_range=_PRUNE_RANGE
    )
    enc, dec = module.do_rnnt_pruning(am=inputs.enc, lm=inputs.dec, ranges=ranges)
    pruned_loss = module.rnnt_loss_pruned(
        logits=linear(torch.tanh(enc + dec), weight, bias),
        symbols=inputs.targets,
        ranges=ranges,
        termination_symbol=0,
        boundary=boundary,
        reduction="mean",
    )
    return 0.5 * simple_loss + pruned_loss


def _make(
    module_name: str, loss, workload: Workload, device: torch.device, seed: int
) -> Step:
    module = importlib.import_module(module_name)
    inputs = make_inputs(workload, device, seed)

    def step() -> Tensor:
        value = loss(module, inputs, inputs.weight, inputs.bias)
        torch.autograd.grad(value, inputs.wanted)
        return value.detach()

    return step


def _unavailable(
    module_name: str, devices: tuple[str, ...], device: torch.device
) -> str | None:
    if device.type not in devices:
        return f"{module_name} runs on {' and '.join(devices)}, not on {device.type}"
    if importlib.util.find_spec(module_name) is None:
        return f"{module_name} is not installed"
    return None


def _pruned_bytes(workload: Workload) -> int:
    rows = workload.batch * max(workload.frames) * _PRUNE_RANGE
    width = 2 * workload.joint_size + 3 * workload.vocab_size
    return 4 * rows * width + gradient_bytes(workload)


def _pruned_flops(workload: Workload) -> int:
    rows = workload.batch * max(workload.frames) * _PRUNE_RANGE
    return product_flops(3, rows, workload.vocab_size, workload.joint_size)


def contenders() -> list[Contender]:
    """warp-rnnt, optimized-transducer, k2 and fast-rnnt, the latter two also pruned."""
    both = ("cpu", "cuda")
    exact = (
        ("warp-rnnt", "warp_rnnt", _warp_rnnt, ("cuda",)),
        ("optimized-transducer", "optimized_transducer", _optimized_transducer, both),
        ("k2", "k2", _k2, both),
        ("fast-rnnt", "fast_rnnt", _k2, both),
    )
    found = [
        Contender(
            name=name,
            description=f"{module} on full logits",
            make=partial(_make, module, loss),
            softmax="full",
            needed_bytes=partial(whole_logits_bytes, "full"),
            flops=partial(whole_logits_flops, "full"),
            unavailable=partial(_unavailable, module, devices),
        )
        for name, module, loss, devices in exact
    ]
    found += [
        Contender(
            name=f"{name}-pruned",
            description=f"{module}'s pruned loss, band of {_PRUNE_RANGE}; not exact",
            make=partial(_make, module, _k2_pruned),
            softmax="full",
            needed_bytes=_pruned_bytes,
            flops=_pruned_flops,
            unavailable=partial(_unavailable, module, both),
            exact=False,
        )
        for name, module in (("k2", "k2"), ("fast-rnnt", "fast_rnnt"))
    ]
    return found
