"""The loss and its gradients against enumeration, float64 formulas and torchaudio."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.batches import Batch, gradients, make_batch, relative_error
from support.reference import (
    all_zero_loss,
    enumerate_loss,
    lattice_loss,
    log_probabilities,
    reference_losses,
)

from espnet_sampled_rnnt import sample_vocabulary, transducer_loss
from espnet_sampled_rnnt.loss.activation import ACTIVATION_NAMES

torchaudio_functional = pytest.importorskip("torchaudio.functional")

SCOPES = ("example", "batch")


def vocabulary_of(
    batch: Batch, num_samples: int = 3, scope: str = "example", **options
):
    generator = torch.Generator().manual_seed(5)
    return sample_vocabulary(
        batch.targets,
        batch.target_lengths,
        batch.vocab_size,
        num_samples,
        scope=scope,
        generator=generator,
        **options,
    )


def skewed(vocab_size: int) -> torch.Tensor:
    return torch.arange(1, vocab_size + 1).double() ** -2


# ---- against the enumeration of all alignments


@pytest.mark.parametrize(
    ("frames", "labels"),
    [(1, 0), (1, 3), (4, 0), (4, 1), (3, 5), (5, 3), (2, 2), (6, 4)],
)
@pytest.mark.parametrize("correction", [None, 0.0, 0.7])
def test_equals_the_sum_over_all_alignments(frames, labels, correction):
    batch = make_batch((frames,), (labels,), dtype=torch.float64, blank=2)
    vocabulary = None
    if correction is not None:
        vocabulary = vocabulary_of(batch, blank=2, probs=skewed(batch.vocab_size))
    hidden = torch.tanh(batch.enc[0, :, None] + batch.dec[0, None])
    logits = hidden @ batch.weight.t() + batch.bias
    if vocabulary is None:
        log_probs = log_probabilities(logits)
    else:
        token_ids = vocabulary.token_ids[0]
        log_pi = vocabulary.log_inclusion[0].double()
        assert len(token_ids) < batch.vocab_size
        log_probs = log_probabilities(logits, token_ids, -correction * log_pi)
    expected = enumerate_loss(log_probs, batch.targets[0].tolist(), blank=2)
    loss = batch.loss(vocabulary=vocabulary, correction=correction or 0.0, blank=2)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)


def test_the_recursion_of_the_reference_equals_enumeration():
    log_probs = torch.randn(4, 4, 5, dtype=torch.float64).log_softmax(-1)
    arcs = torch.stack(
        [log_probs[..., 0], log_probs[:, range(4), [1, 4, 4, 0]]], dim=-1
    )
    torch.testing.assert_close(
        lattice_loss(arcs), enumerate_loss(log_probs, [1, 4, 4], blank=0)
    )


def test_one_node_by_hand():
    """T = 1, U = 0: the loss is -log p(blank) at the only node."""
    loss = transducer_loss(
        torch.tensor([[[1.0]]]),
        torch.tensor([[[-0.5]]]),
        torch.tensor([[2.0], [0.0], [-1.0]]),
        torch.tensor([0.0, 1.0, 0.5]),
        torch.zeros(1, 0, dtype=torch.long),
        torch.tensor([1]),
        torch.tensor([0]),
        activation="identity",
    )
    logits = (1.0, 1.0, 0.0)  # 2 * 0.5, 0 * 0.5 + 1, -1 * 0.5 + 0.5
    expected = math.log(sum(map(math.exp, logits))) - logits[0]
    assert float(loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("vocab_size", [2, 5, 4233])
def test_equal_logits_have_the_value_of_the_formula(vocab_size):
    frames, labels = (1, 3, 40, 17, 2), (0, 7, 9, 1, 31)
    batch = make_batch(frames, labels, vocab_size=vocab_size, joint_size=2)
    batch = replace(batch, weight=torch.zeros_like(batch.weight), bias=None)
    expected = [
        all_zero_loss(t, u, vocab_size) for t, u in zip(frames, labels, strict=True)
    ]
    torch.testing.assert_close(
        batch.loss(reduction="none"), torch.tensor(expected), rtol=1e-6, atol=1e-5
    )


# ---- against torchaudio's loss on full logits


def torchaudio_loss(batch: Batch, reduction: str, blank: int = 0) -> torch.Tensor:
    """torchaudio's loss, which wants the axes to be as long as the longest."""
    t, u = int(batch.enc_lengths.max()), int(batch.target_lengths.max())
    # Padding is not read, but NaN in it would reach the gradient of the weight.
    enc = torch.where(batch.enc.isnan(), 0.0, batch.enc)[:, :t]
    dec = torch.where(batch.dec.isnan(), 0.0, batch.dec)[:, : u + 1]
    logits = torch.tanh(enc[:, :, None] + dec[:, None]) @ batch.weight.t()
    if batch.bias is not None:
        logits = logits + batch.bias
    behind = torch.arange(u) >= batch.target_lengths[:, None]
    return torchaudio_functional.rnnt_loss(
        logits,
        batch.targets[:, :u].masked_fill(behind, 1).int(),
        batch.enc_lengths.int(),
        batch.target_lengths.int(),
        blank=blank,
        reduction=reduction,
    )


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("extra", [0, 3], ids=["tight", "longer axes"])
@pytest.mark.parametrize("blank", [0, 8])
def test_equals_torchaudio(reduction, with_bias, extra, blank):
    batch = make_batch(
        (9, 4, 7, 1),
        (5, 6, 0, 2),
        extra_frames=extra,
        extra_labels=extra,
        with_bias=with_bias,
        blank=blank,
    )
    loss, expected = (
        batch.loss(reduction=reduction, blank=blank),
        torchaudio_loss(batch, reduction, blank),
    )
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    found, wanted = gradients(loss, batch), gradients(expected, batch)
    assert len(found) == (4 if with_bias else 3)
    for mine, theirs in zip(found, wanted, strict=True):
        assert float(theirs.abs().max()) > 1e-2
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-5)


def test_gradient_of_padding_is_zero():
    batch = make_batch(extra_frames=2, extra_labels=2)
    enc, dec = gradients(batch.loss(), batch)[:2]
    assert torch.equal(enc == 0, batch.enc.isnan())
    assert torch.equal(dec == 0, batch.dec.isnan())


# ---- against the float64 formulas


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("correction", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
def test_sampled_equals_the_formulas(reduction, scope, correction, weighted):
    batch = make_batch(vocab_size=23, dtype=torch.float64, extra_frames=1)
    probs = skewed(batch.vocab_size) if weighted else None
    vocabulary = vocabulary_of(batch, 4, scope, probs=probs)
    assert int(vocabulary.sizes.max()) < batch.vocab_size
    options = {"vocabulary": vocabulary, "correction": correction}
    loss = batch.loss(reduction=reduction, **options)
    expected = reference_losses(*batch.arguments, **options)
    if reduction != "none":
        expected = expected.sum() / (4 if reduction == "mean" else 1)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        gradients(loss, batch), gradients(expected, batch), rtol=1e-9, atol=1e-9
    )


ESPNET_ACTIVATIONS = {
    "ftswish",
    "hardtanh",
    "identity",
    "leaky_relu",
    "mish",
    "relu",
    "selu",
    "smish",
    "swish",
    "tanh",
}


def test_knows_the_activations_of_espnet():
    assert set(ACTIVATION_NAMES) == ESPNET_ACTIVATIONS


@pytest.mark.parametrize("name", sorted(ESPNET_ACTIVATIONS))
def test_activations_equal_those_of_espnet(name):
    activation_module = pytest.importorskip("espnet2.asr_transducer.activation")
    stock = activation_module.get_activation(name)
    batch = make_batch(scale=2.0, seed=3)
    for activation in (name, stock):
        expected = reference_losses(
            *batch.arguments, activation=lambda x: stock(x.float()).double()
        )
        loss = batch.loss(activation=activation, reduction="none")
        torch.testing.assert_close(loss, expected.float(), rtol=1e-5, atol=1e-5)
        for mine, theirs in zip(
            gradients(loss, batch), gradients(expected, batch), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "activation",
    [
        torch.sin,
        torch.nn.ELU(),
        torch.nn.ReLU(inplace=True),
        torch.nn.LeakyReLU(0.3, inplace=True),
        torch.sigmoid_,
        lambda x: x**3 / 9.0,
    ],
    ids=[
        "function",
        "module",
        "ReLU in place",
        "module in place",
        "in place",
        "lambda",
    ],
)
def test_any_elementwise_callable(activation):
    batch = make_batch(dtype=torch.float64)
    loss = batch.loss(activation=activation, reduction="none", chunk_bytes=3000)
    expected = reference_losses(
        *batch.arguments, activation=lambda x: activation(x.clone())
    )
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        gradients(loss, batch), gradients(expected, batch), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("lambda_", [0.0, 0.01, 2.5])
@pytest.mark.parametrize("sampled", [False, True], ids=["full", "sampled"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_fastemit_scales_label_arcs_only(lambda_, sampled, reduction):
    """arXiv 2010.11148: the loss stays, the gradient by log p(label) grows."""
    batch = make_batch((6, 4), (3, 5), dtype=torch.float64)
    vocabulary = vocabulary_of(batch) if sampled else None
    options = {"vocabulary": vocabulary, "correction": 1.0}
    loss = batch.loss(fastemit_lambda=lambda_, reduction=reduction, **options)
    expected = reference_losses(*batch.arguments, **options)
    if reduction == "mean":
        expected = expected.mean()
    torch.testing.assert_close(loss, expected)

    class Scaled(torch.autograd.Function):
        """log p(label), whose gradient is larger by 1 + lambda."""

        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, upstream):
            return upstream * (1.0 + lambda_)

    losses = []
    for b in range(2):
        frames, labels = int(batch.enc_lengths[b]), int(batch.target_lengths[b])
        hidden = batch.enc[b, :frames, None] + batch.dec[b, None, : labels + 1]
        logits = torch.tanh(hidden) @ batch.weight.t() + batch.bias
        ids = vocabulary.token_ids[b][vocabulary.mask[b]] if sampled else None
        offset = -vocabulary.log_inclusion[b][vocabulary.mask[b]] if sampled else None
        log_probs = log_probabilities(logits, ids, offset)
        by_label = log_probs[:, torch.arange(labels), batch.targets[b, :labels]]
        by_label = torch.nn.functional.pad(Scaled.apply(by_label), (0, 1))
        losses.append(lattice_loss(torch.stack([log_probs[..., 0], by_label], -1)))
    surrogate = torch.stack(losses)
    if reduction == "mean":
        surrogate = surrogate.mean()
    torch.testing.assert_close(gradients(loss, batch), gradients(surrogate, batch))


# ---- everything sampled, and chunks of any size


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("correction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("samples", ["rest", "more", "huge"])
def test_with_all_negatives_it_is_the_full_softmax(scope, correction, samples):
    batch = make_batch(vocab_size=17)
    largest = 17 - 1  # V - |P| of an utterance without labels
    count = {"rest": largest, "more": largest + 1, "huge": 2**40}[samples]
    vocabulary = vocabulary_of(batch, count, scope, probs=skewed(17))
    assert vocabulary.sizes.tolist() == [17] * 4
    loss = batch.loss(vocabulary=vocabulary, correction=correction, reduction="none")
    full = batch.loss(reduction="none")
    torch.testing.assert_close(loss, full, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradients(loss, batch), gradients(full, batch), rtol=1e-5, atol=1e-5
    )


def configurations(batch: Batch) -> dict:
    return {
        "full": {},
        "example": {
            "vocabulary": vocabulary_of(batch, 4, "example", probs=skewed(40)),
            "correction": 1.0,
        },
        "batch": {
            "vocabulary": vocabulary_of(batch, 4, "batch", probs=skewed(40)),
            "correction": 1.0,
        },
        "uncorrected": {"vocabulary": vocabulary_of(batch, 4)},
        "mish": {"vocabulary": vocabulary_of(batch, 4), "activation": "mish"},
    }


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("name", ["full", "example", "batch", "uncorrected", "mish"])
def test_chunk_size_changes_nothing_but_rounding(name, reduction):
    batch = make_batch((7, 2, 5, 1, 3), (2, 5, 0, 2, 3), vocab_size=40)
    options = {"reduction": reduction, **configurations(batch)[name]}
    loss = batch.loss(chunk_bytes=2**30, **options)
    expected = gradients(loss, batch)
    for chunk_bytes in (1, 700, 2000, 5000, 12_000):
        twice = []
        for _ in range(2):
            again = batch.loss(chunk_bytes=chunk_bytes, **options)
            twice.append((again.detach(), *gradients(again, batch)))
        for first, second in zip(*twice, strict=True):
            assert torch.equal(first, second)
        for mine, other in zip(twice[0], (loss, *expected), strict=True):
            assert relative_error(mine, other) < 2e-6


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("chunk_bytes", [1, 900, 2500, 7000, 30_000, None])
def test_utterances_of_unlike_vocabularies_share_a_workspace(with_bias, chunk_bytes):
    """Chunks whose logits differ in width must not lie over each other."""
    batch = make_batch(
        (6, 5, 6, 4, 3),
        (6, 1, 3, 0, 5),
        vocab_size=40,
        dtype=torch.float64,
        with_bias=with_bias,
    )
    vocabulary = vocabulary_of(batch, 3)
    assert len(set(vocabulary.sizes.tolist())) > 2
    options = {"vocabulary": vocabulary, "correction": 0.5}
    expected = reference_losses(*batch.arguments, **options).mean()
    loss = batch.loss(chunk_bytes=chunk_bytes, **options)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, batch), gradients(expected, batch))
