"""Hypothesis: shapes, lengths, vocabularies and options against two references.

100 examples a test by default, 2,000 with HYPOTHESIS_PROFILE=long.
"""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.batches import Batch, gradients, make_batch, relative_error
from support.reference import reference_losses
from torchaudio.functional import rnnt_loss

from espnet_sampled_rnnt import sample_vocabulary

REDUCTIONS = st.sampled_from(["none", "sum", "mean"])
BACKENDS = st.sampled_from(["auto", "numba", "reference", "torchaudio"])
CHUNKS = st.one_of(st.none(), st.integers(1, 30_000))
FLOATS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


@st.composite
def batches(draw, dtype=None) -> tuple[Batch, int]:
    """A batch with garbage in its padding, and its blank."""
    shapes = draw(
        st.lists(
            st.tuples(st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=5
        )
    )
    vocab_size = draw(st.integers(2, 25))
    blank = draw(st.integers(0, vocab_size - 1))
    batch = make_batch(
        tuple(t for t, _ in shapes),
        tuple(u for _, u in shapes),
        vocab_size=vocab_size,
        joint_size=draw(st.integers(1, 7)),
        extra_frames=draw(st.integers(0, 2)),
        extra_labels=draw(st.integers(0, 2)),
        with_bias=draw(st.booleans()),
        dtype=dtype or draw(FLOATS),
        blank=blank,
        scale=draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])),
        seed=draw(st.integers(0, 10_000)),
    )
    integers = st.sampled_from([torch.int32, torch.int64])
    batch.targets.clamp_(-1, 2**31 - 1)
    return (
        Batch(
            *batch.floats,
            batch.targets.to(draw(integers)),
            batch.enc_lengths.to(draw(integers)),
            batch.target_lengths.to(draw(integers)),
        ),
        blank,
    )


def reduce(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    return {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]


def check_close(batch: Batch, loss, truth: Batch, expected) -> None:
    """Value and gradients, to the rounding of the types."""
    wide = batch.enc.dtype == torch.float64
    assert loss.dtype == (torch.float64 if wide else torch.float32)
    assert torch.isfinite(loss).all()
    assert (loss >= 0).all()
    # Relative, but for losses near 0: a log of a probability near 1 is only known to
    # an eps, and so are the gradients.
    error = float((loss.double() - expected.double()).abs().max())
    largest = max(1.0, expected.max().item())
    assert error <= (1e-12 if wide else 2e-6) * largest
    mine, exact = gradients(loss, batch), gradients(expected, truth)
    largest = max(float(x.abs().max()) for x in exact)
    for found, wanted in zip(mine, exact, strict=True):
        assert found.dtype == batch.enc.dtype
        bound = torch.finfo(found.dtype).eps + (1e-11 if wide else 3e-5)
        difference = float((found.double() - wanted.double()).abs().max())
        assert difference <= bound * max(largest, 0.1)


@given(batches(torch.float32), REDUCTIONS, BACKENDS, CHUNKS)
def test_full_softmax_against_torchaudio(drawn, reduction, backend, chunk_bytes):
    batch, blank = drawn
    loss = batch.loss(
        blank=blank, reduction=reduction, backend=backend, chunk_bytes=chunk_bytes
    )
    truth = batch.copy()
    frames, labels = int(batch.enc_lengths.max()), int(batch.target_lengths.max())
    assume(labels > 0)  # torchaudio takes no empty target axis
    enc = torch.where(truth.enc.isnan(), 0.0, truth.enc)[:, :frames]
    dec = torch.where(truth.dec.isnan(), 0.0, truth.dec)[:, : labels + 1]
    logits = torch.tanh(enc[:, :, None] + dec[:, None]) @ truth.weight.t()
    if truth.bias is not None:
        logits = logits + truth.bias
    behind = torch.arange(labels) >= batch.target_lengths[:, None]
    targets = batch.targets[:, :labels].masked_fill(behind, (blank + 1) % 2)
    expected = rnnt_loss(
        logits,
        targets.int(),
        batch.enc_lengths.int(),
        batch.target_lengths.int(),
        blank=blank,
        reduction=reduction,
    )
    check_close(batch, loss, truth, expected)


@given(batches(), REDUCTIONS, BACKENDS, CHUNKS)
def test_full_softmax_against_the_formulas(drawn, reduction, backend, chunk_bytes):
    batch, blank = drawn
    if backend == "torchaudio" and batch.enc.dtype == torch.float64:
        backend = "auto"
    loss = batch.loss(
        blank=blank, reduction=reduction, backend=backend, chunk_bytes=chunk_bytes
    )
    truth = batch.copy(dtype=torch.float64)
    expected = reduce(reference_losses(*truth.arguments, blank=blank), reduction)
    check_close(batch, loss, truth, expected)


@given(
    batches(),
    REDUCTIONS,
    BACKENDS,
    CHUNKS,
    st.sampled_from(["example", "batch"]),
    st.integers(1, 30),
    st.floats(0.0, 1.0),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_sampled_softmax_against_the_formulas(
    drawn,
    reduction,
    backend,
    chunk_bytes,
    scope,
    num_samples,
    correction,
    weighted,
    seed,
):
    batch, blank = drawn
    if backend == "torchaudio" and batch.enc.dtype == torch.float64:
        backend = "auto"
    generator = torch.Generator().manual_seed(seed)
    probs = None
    if weighted:
        shape = (batch.enc.size(0), batch.vocab_size)
        probs = torch.rand(shape, generator=generator) ** 4 + 1e-4
    vocabulary = sample_vocabulary(
        batch.targets,
        batch.target_lengths,
        batch.vocab_size,
        num_samples,
        scope=scope,
        probs=probs,
        blank=blank,
        generator=generator,
    )
    options = {"vocabulary": vocabulary, "correction": correction, "blank": blank}
    loss = batch.loss(
        reduction=reduction, backend=backend, chunk_bytes=chunk_bytes, **options
    )
    truth = batch.copy(dtype=torch.float64)
    expected = reduce(reference_losses(*truth.arguments, **options), reduction)
    check_close(batch, loss, truth, expected)
    if num_samples >= batch.vocab_size - 1:
        full = batch.loss(reduction=reduction, backend=backend, blank=blank)
        assert relative_error(loss, full) < 1e-6


@given(batches(torch.float64), st.data())
def test_the_order_of_utterances_does_not_matter(drawn, data):
    batch, blank = drawn
    order = data.draw(st.permutations(range(batch.enc.size(0))))
    chunk_bytes = data.draw(CHUNKS)
    losses = batch.loss(blank=blank, reduction="none", chunk_bytes=chunk_bytes)
    other = batch.of(list(order)).loss(blank=blank, reduction="none")
    torch.testing.assert_close(other, losses[list(order)], rtol=1e-12, atol=1e-12)


@given(batches(torch.float64), st.data())
def test_a_larger_vocabulary_never_has_a_smaller_loss(drawn, data):
    """More rivals in the normaliser, uncorrected: every log probability falls."""
    batch, blank = drawn
    small = data.draw(st.integers(1, 20))
    generator = torch.Generator().manual_seed(small)
    vocabulary = sample_vocabulary(
        batch.targets,
        batch.target_lengths,
        batch.vocab_size,
        small,
        blank=blank,
        generator=generator,
    )
    options = {"blank": blank, "reduction": "none"}
    sampled = batch.loss(vocabulary=vocabulary, **options)
    corrected = batch.loss(vocabulary=vocabulary, correction=1.0, **options)
    full = batch.loss(**options)
    assert (sampled <= full * (1 + 1e-12) + 1e-12).all()
    assert (sampled <= corrected * (1 + 1e-12) + 1e-12).all()
