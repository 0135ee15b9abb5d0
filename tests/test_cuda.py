"""The loss on a GPU against the same on the CPU. ``benchmarks/gpu.sh`` runs these."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from support.batches import Batch, make_batch

from espnet_sampled_rnnt import sample_vocabulary, transducer_loss
from espnet_sampled_rnnt.loss.lattice import BACKENDS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODES = ("full", "example", "batch")
ON_CUDA = [name for name in BACKENDS if name != "numba"]


def on_cuda(batch: Batch) -> Batch:
    """The same values in new leaves on the device."""
    moved = {
        field.name: None
        if getattr(batch, field.name) is None
        else getattr(batch, field.name).detach().cuda()
        for field in fields(batch)
    }
    for name in ("enc", "dec", "weight", "bias"):
        if moved[name] is not None:
            moved[name].requires_grad_()
    return replace(batch, **moved)


def vocabulary_of(batch: Batch, mode: str):
    """A vocabulary on the CPU, the same each time; None for the full softmax."""
    if mode == "full":
        return None
    return sample_vocabulary(
        batch.targets,
        batch.target_lengths,
        batch.vocab_size,
        5,
        scope=mode,
        generator=torch.Generator().manual_seed(1),
    )


def result(batch: Batch, upstream: torch.Tensor, **options):
    """Losses and gradients, on the CPU."""
    losses = batch.loss(reduction="none", **options)
    (losses * upstream.to(losses.device)).sum().backward()
    return [losses.detach().cpu(), *(leaf.grad.cpu() for leaf in batch.leaves)]


@pytest.fixture(autouse=True)
def full_float32():
    """Without TF32, which would hide errors under its own."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk_bytes", [None, 5000, 1])
@pytest.mark.parametrize("backend", ["auto", *ON_CUDA])
def test_as_on_the_cpu(mode, chunk_bytes, backend):
    device = torch.device("cuda")
    if backend != "auto" and (reason := BACKENDS[backend].unavailable(device)):
        pytest.skip(reason)
    batch = make_batch(
        frames=(40, 17, 33, 1), labels=(9, 12, 0, 3), vocab_size=60, scale=0.3
    )
    upstream = torch.tensor([1.0, -0.5, 2.0, 0.25])
    vocabulary = vocabulary_of(batch, mode)
    options = {"correction": 0.5} if vocabulary is not None else {}
    expected = result(batch.copy(), upstream, vocabulary=vocabulary, **options)
    found = result(
        on_cuda(batch),
        upstream,
        vocabulary=None if vocabulary is None else vocabulary.to("cuda"),
        chunk_bytes=chunk_bytes,
        backend=backend,
        **options,
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradients_made_in_the_forward_pass(mode, reduction):
    batch = make_batch(vocab_size=40)
    vocabulary = vocabulary_of(batch, mode)
    host, device = batch.copy(), on_cuda(batch)
    host.loss(reduction=reduction, vocabulary=vocabulary).backward()
    moved = None if vocabulary is None else vocabulary.to("cuda")
    device.loss(reduction=reduction, vocabulary=moved).backward()
    for ours, theirs in zip(device.leaves, host.leaves, strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """espnet/espnet issue 4674: logits near 1e3 end in NaN under mixed precision."""
    batch = make_batch(scale=300.0, vocab_size=40, garbage=False)
    device = on_cuda(batch.copy(dtype=dtype))
    loss = device.loss()
    loss.backward()
    assert loss.dtype == torch.float32
    for leaf in device.leaves:
        assert leaf.grad.dtype == dtype
        assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_utterance_is_alone(mode):
    batch = make_batch(vocab_size=40)
    vocabulary = vocabulary_of(batch, mode)
    bad = batch.copy(requires_grad=False)
    bad.enc[1, 0] = torch.nan
    device = on_cuda(bad)
    moved = None if vocabulary is None else vocabulary.to("cuda")
    losses = device.loss(reduction="none", vocabulary=moved)
    expected = batch.loss(reduction="none", vocabulary=vocabulary)
    assert torch.isfinite(losses).tolist() == [True, False, True, True]
    good = [0, 2, 3]
    torch.testing.assert_close(
        losses.cpu()[good].detach(), expected[good].detach(), rtol=1e-4, atol=1e-4
    )
    losses[good].sum().backward()
    for leaf in device.leaves:
        assert torch.isfinite(leaf.grad).all()


def test_weighted_draws_on_the_device():
    batch = make_batch(vocab_size=300)
    weights = torch.rand(4, 300, generator=torch.Generator().manual_seed(2)).cuda()
    vocabulary = sample_vocabulary(
        batch.targets.cuda(), batch.target_lengths.cuda(), 300, 20, probs=weights
    )
    assert vocabulary.token_ids.device.type == "cuda"
    device = on_cuda(batch)
    loss = transducer_loss(*device.arguments, vocabulary=vocabulary, correction=1.0)
    loss.backward()
    assert torch.isfinite(loss)


def test_memory_stays_in_the_workspace():
    """AISHELL-like, espnet/espnet issue 2921: the logits alone are 2,552 MB."""
    generator = torch.Generator().manual_seed(3)
    enc = torch.randn(16, 471, 320, generator=generator).cuda().requires_grad_()
    dec = torch.randn(16, 20, 320, generator=generator).cuda().requires_grad_()
    weight = (0.1 * torch.randn(4233, 320, generator=generator)).cuda().requires_grad_()
    targets = torch.randint(1, 4233, (16, 19), generator=generator).cuda()
    frames, labels = torch.full((16,), 471), torch.full((16,), 19)

    def extra(vocabulary) -> int:
        enc.grad = dec.grad = weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        transducer_loss(
            enc,
            dec,
            weight,
            None,
            targets,
            frames,
            labels,
            vocabulary=vocabulary,
            chunk_bytes=32 * 2**20,
        ).backward()
        return torch.cuda.max_memory_allocated() - before

    logits = 16 * 471 * 20 * 4233 * 4
    extra(None)  # libraries take their workspaces
    assert extra(None) < logits / 20
    vocabulary = sample_vocabulary(targets, labels, 4233, 256)
    extra(vocabulary)
    assert extra(vocabulary) < logits / 50
