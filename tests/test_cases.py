"""Public reports by people who train transducers, one test a report.

The large ones run in a process of their own and check the bytes that torch
allocates and the resident size.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.asr_models import build_asr_model
from support.asr_models import make_batch as make_asr_batch
from support.batches import gradients, make_batch, options_of, relative_error
from support.memory import run_isolated
from support.reference import all_zero_loss, reference_losses

from espnet_sampled_rnnt import sample_vocabulary, transducer_loss

LARGE = """
import resource
import torch
from espnet_sampled_rnnt import sample_vocabulary, transducer_loss

torch.manual_seed(0)
B, T, U, V, J = values["shape"]


def leaf(*shape, scale=1.0):
    return (scale * torch.randn(*shape)).requires_grad_()


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(function):
    # What a first call loads, compiles and starts, and the profiler, on a small loss.
    small = [x.detach()[:1, :2].contiguous() for x in (enc, dec)]
    small += [torch.ones(5, J, requires_grad=True), None]
    one = torch.ones(1, dtype=torch.long)
    counted_peak(lambda: transducer_loss(*small, one[None], 2 * one, one).backward())
    before = resident()
    result["counted"] = counted_peak(function)
    result["resident"] = resident() - before


enc, dec = leaf(B, T, J), leaf(B, U + 1, J)
weight, bias = leaf(V, J, scale=0.05), leaf(V, scale=0.05)
targets = torch.randint(1, V, (B, U))
frames, labels = torch.full((B,), T), torch.full((B,), U)
"""


@pytest.mark.parametrize(("samples", "part"), [(None, 20), (256, 50)])
def test_case_1_aishell_like_out_of_memory(samples, part):
    """espnet/espnet 2921: the logits alone would be 2,552 MB."""
    shape = (16, 471, 19, 4233, 320)
    logits = 4 * shape[0] * shape[1] * (shape[2] + 1) * shape[3]
    assert logits == pytest.approx(2552e6, rel=1e-3)
    result = run_isolated(
        LARGE
        + """
vocabulary = None
if values["samples"]:
    vocabulary = sample_vocabulary(targets, labels, V, values["samples"])


def work():
    loss = transducer_loss(
        enc, dec, weight, bias, targets, frames, labels, vocabulary=vocabulary
    )
    loss.backward()
    result["loss"] = float(loss.detach())


measure(work)
result["finite"] = all(
    bool(torch.isfinite(x.grad).all()) for x in (enc, dec, weight, bias)
)
""",
        shape=shape,
        samples=samples,
    )
    assert result["finite"]
    assert result["loss"] > 0.0
    assert result["counted"] < logits / part
    assert result["resident"] < logits / part


def test_case_2_more_than_two_to_the_31_logits():
    """pytorch/audio 3736: a crash."""
    shape = (33, 256, 63, 4096, 8)
    assert math.prod(shape[:2]) * (shape[2] + 1) * shape[3] > 2**31
    result = run_isolated(
        LARGE
        + """
with torch.no_grad():
    weight.zero_()
    bias.zero_()
losses = transducer_loss(
    enc, dec, weight, bias, targets, frames, labels, reduction="none"
)
losses.sum().backward()
result["losses"] = losses.tolist()
result["finite"] = all(
    bool(torch.isfinite(x.grad).all()) for x in (enc, dec, weight, bias)
)
result["sum"] = float(bias.grad.sum())
result["largest"] = float(bias.grad.abs().max())
""",
        shape=shape,
    )
    expected = all_zero_loss(256, 63, 4096)
    assert expected == pytest.approx(2498.0, abs=0.5)
    assert result["losses"] == pytest.approx([expected] * 33, abs=0.5)
    assert result["finite"]
    # The gradient by the logits sums to 0 over the vocabulary at each node.
    assert abs(result["sum"]) < 1e-4 * result["largest"]


def test_case_3_more_labels_than_frames():
    """k2-fsa/fast_rnnt 10: nan or inf when U > T."""
    batch = make_batch((3,), (7,), vocab_size=5)
    batch = replace(batch, weight=torch.zeros_like(batch.weight), bias=None)
    for backend in ("numba", "reference", "torchaudio"):
        loss = batch.loss(backend=backend)
        assert loss.item() == pytest.approx(all_zero_loss(3, 7, 5), rel=1e-6)


@pytest.mark.parametrize("scope", ["example", "batch"])
@pytest.mark.parametrize("correction", [0.0, 0.5, 1.0])
def test_case_4_negative_losses(scope, correction):
    """HawkAaron/warp-transducer 14, 50, 65."""
    for seed in range(20):
        batch = make_batch((1, 3, 12), (0, 4, 2), vocab_size=30, scale=10.0, seed=seed)
        for options in ({}, options_of(batch, scope, 3)):
            options = {**options, "correction": correction, "reduction": "none"}
            assert (batch.loss(**options).detach() >= 0.0).all()


def test_case_5_backends_that_differ():
    """HawkAaron/warp-transducer 93: CPU and GPU gradients differ."""
    batch = make_batch((20, 13, 6), (7, 9, 0), vocab_size=40)
    truth = batch.copy(dtype=torch.float64)
    for mode in ("full", "example", "batch"):
        options = options_of(batch, mode)
        expected = reference_losses(*truth.arguments, **options)
        exact = [expected, *gradients(expected, truth)]
        for backend in ("numba", "reference", "torchaudio"):
            loss = batch.loss(backend=backend, reduction="none", **options)
            found = [loss, *gradients(loss, batch)]
            for mine, wanted in zip(found, exact, strict=True):
                assert relative_error(mine, wanted) < 5e-5


def test_case_6_lengths_shorter_than_the_axes():
    """pytorch/audio 2196: refused. Padding is NaN here, so reading it would show."""
    batch = make_batch((5, 3), (2, 1), extra_frames=4, extra_labels=3)
    assert int(batch.enc_lengths.max()) < batch.enc.size(1)
    assert int(batch.target_lengths.max()) < batch.targets.size(1)
    truth = batch.copy(dtype=torch.float64)
    expected = reference_losses(*truth.arguments).mean()
    loss = batch.loss()
    assert relative_error(loss, expected) < 1e-6
    for gradient in gradients(loss, batch):
        assert torch.isfinite(gradient).all()


def test_case_7_a_target_outside_the_vocabulary():
    """k2-fsa/icefall 167: an index error deep inside."""
    batch = make_batch(garbage=False)
    batch.targets[1, 4] = batch.vocab_size
    pattern = r"targets of utterance 1 holds 9 at position 4, .*\[0, 9\)"
    with pytest.raises(ValueError, match=pattern):
        batch.loss()
    with pytest.raises(ValueError, match=pattern):
        sample_vocabulary(batch.targets, batch.target_lengths, 9, 3)


def test_case_8_error_rates_in_validation():
    """espnet/espnet 4054, 4813: cer_ctc or cer_transducer shown as nan."""
    conf = {"ctc_weight": 0.3, "num_samples": 3, "report_cer": True}
    model = build_asr_model(model_conf=conf).eval()
    with torch.no_grad():
        _, stats, _ = model(**make_asr_batch())
    for name in ("cer_ctc", "cer_transducer", "loss_ctc", "loss_transducer"):
        assert math.isfinite(float(stats[name])), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["full", "example", "batch"])
def test_case_9_half_precision_ends_in_nan(dtype, mode):
    """espnet/espnet 4674: use_amp."""
    batch = make_batch((30, 20), (8, 11), vocab_size=60, scale=400.0, dtype=dtype)
    logits = batch.enc[0, :, None].double() + batch.dec[0, None, :9].double()
    logits = (torch.tanh(logits) @ batch.weight.double().t()).detach()
    assert logits.abs().max() > 1e3
    truth = batch.copy(dtype=torch.float64)
    options = options_of(batch, mode)
    expected = reference_losses(*truth.arguments, **options)
    losses = batch.loss(reduction="none", **options)
    assert losses.dtype == torch.float32
    assert relative_error(losses, expected) < 1e-5
    for gradient in gradients(losses, batch):
        assert gradient.dtype == dtype
        assert torch.isfinite(gradient).all()


def test_case_10_a_large_vocabulary():
    """openspeech 108, espnet/espnet 1651: 16 GB do not hold V = 21,800."""
    result = run_isolated(
        LARGE
        + """
def work():
    vocabulary = sample_vocabulary(targets, labels, V, 512)
    loss = transducer_loss(
        enc, dec, weight, bias, targets, frames, labels, vocabulary=vocabulary
    )
    loss.backward()
    result["loss"] = float(loss.detach())


measure(work)
""",
        shape=(16, 512, 60, 21_800, 512),
    )
    assert math.isfinite(result["loss"])
    assert result["counted"] < 1e9
    assert result["resident"] < 1e9


def test_the_formula_of_the_cases():
    """All logits zero: against the loss itself at a size that can be enumerated."""
    zeros = torch.zeros(1, 4, 2)
    loss = transducer_loss(
        zeros,
        zeros,
        torch.zeros(6, 2),
        None,
        torch.tensor([[1, 2, 3]]),
        torch.tensor([4]),
        torch.tensor([3]),
    )
    assert float(loss) == pytest.approx(all_zero_loss(4, 3, 6), rel=1e-6)
