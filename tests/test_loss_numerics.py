"""Types, magnitudes and infinities of the inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.batches import (
    FLOATS,
    Batch,
    gradients,
    make_batch,
    options_of,
    relative_error,
)
from support.reference import reference_losses

from espnet_sampled_rnnt import transducer_loss

HALVES = (torch.float16, torch.bfloat16)


MODES = pytest.mark.parametrize("mode", ["full", "example", "batch"])


def truth_and_naive(batch: Batch, dtype: torch.dtype, **options):
    """[loss, gradients] in float64, and by the plain formulas in ``dtype``.

    Both from the values that ``batch`` holds.
    """
    results = []
    for compute in (torch.float64, dtype):
        copy = batch.copy(dtype=compute)
        losses = reference_losses(*copy.arguments, dtype=compute, **options)
        results.append([losses, *gradients(losses, copy)])
    return results


# ---- types


@MODES
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_float32_errs_no_more_than_plain_float32(mode, scale):
    """Logits of up to about 1e1, 1e2 and 1e3, against a float64 truth."""
    batch = make_batch((14, 11, 4), (5, 3, 9), vocab_size=50, scale=scale)
    options = options_of(batch, mode)
    truth, naive = truth_and_naive(batch, torch.float32, **options)
    losses = batch.loss(reduction="none", **options)
    for mine, plain, exact in zip(
        [losses, *gradients(losses, batch)], naive, truth, strict=True
    ):
        assert relative_error(mine, exact) <= 2.0 * relative_error(plain, exact) + 1e-6


@MODES
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_half_precision_is_computed_in_float32(mode, dtype, scale):
    """Field report espnet 4674: logits near 1e3 under AMP ended in nan."""
    batch = make_batch((12, 9, 4), (5, 3, 7), vocab_size=50, scale=scale, dtype=dtype)
    options = options_of(batch, mode)
    truth, _ = truth_and_naive(batch, torch.float32, **options)
    losses = batch.loss(reduction="none", **options)
    assert losses.dtype == torch.float32
    assert relative_error(losses, truth[0]) < 1e-5
    found = gradients(losses, batch)
    for mine, exact in zip(found, truth[1:], strict=True):
        assert mine.dtype == dtype
        assert torch.isfinite(mine).all()
        # One rounding to the type, of a gradient computed in float32.
        rounding = torch.finfo(dtype).eps * exact.abs() / 2
        slack = 1e-4 * exact.abs().max() + torch.finfo(dtype).tiny
        assert ((mine.double() - exact).abs() <= 1.01 * rounding + slack).all()


MIXED = {
    "enc half": {"enc": torch.float16, "dec": torch.float32},
    "layer half": {"weight": torch.bfloat16, "bias": torch.bfloat16},
    "enc half, dec bfloat16": {"enc": torch.float16, "dec": torch.bfloat16},
    "bias float64": {"bias": torch.float64},
    "enc float64": {"enc": torch.float64},
    "weight float64": {"weight": torch.float64, "enc": torch.float16},
}


@MODES
@pytest.mark.parametrize("types", MIXED.values(), ids=MIXED)
def test_types_may_be_mixed(mode, types):
    batch = make_batch(vocab_size=20)
    batch = replace(
        batch,
        **{
            name: getattr(batch, name).detach().to(dtype).requires_grad_()
            for name, dtype in types.items()
        },
    )
    wide = torch.float64 in types.values()
    options = options_of(batch, mode)
    loss = batch.loss(**options)
    assert loss.dtype == (torch.float64 if wide else torch.float32)
    copy = batch.copy(dtype=torch.float64)
    expected = reference_losses(*copy.arguments, **options).mean()
    assert relative_error(loss, expected) < (1e-12 if wide else 1e-6)
    for name, mine, exact in zip(
        FLOATS, gradients(loss, batch), gradients(expected, copy), strict=True
    ):
        assert mine.dtype == getattr(batch, name).dtype
        rounding = torch.finfo(mine.dtype).eps
        assert relative_error(mine, exact) <= rounding + (1e-12 if wide else 1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_small_half_gradients_survive_a_large_scale(reduction, dtype):
    """GradScaler's: gradients below float16's smallest are scaled before rounding."""
    batch = make_batch(vocab_size=20, dtype=dtype)
    truth = batch.copy(dtype=torch.float64)
    scale = 2.0**-20

    def scaled(tensor, factor):
        # A loss weight of 2^-20 inside the graph, and GradScaler's 2^16 outside.
        return (tensor * factor).sum() * 2.0**16

    found = gradients(scaled(batch.loss(reduction=reduction), scale), batch)
    exact = reference_losses(*truth.arguments)
    if reduction == "mean":
        exact = exact / 4
    wanted = gradients(scaled(exact, scale), truth)
    for mine, other in zip(found, wanted, strict=True):
        assert relative_error(mine, other) <= torch.finfo(dtype).eps

    # The same gradients without the large scale are 0 in part: they would be lost.
    if dtype == torch.float16:
        lost = gradients((batch.loss(reduction=reduction) * scale).sum(), batch)
        assert (lost[0][found[0] != 0] == 0).any()


@MODES
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_under_autocast(mode, reduction):
    batch = make_batch(vocab_size=20, garbage=False)
    options = {"reduction": reduction, **options_of(batch, mode)}
    outside = batch.loss(**options)
    expected = gradients(outside, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = batch.loss(**options)
        projected = transducer_loss(
            batch.enc @ torch.eye(batch.enc.size(2)),
            batch.dec,
            batch.weight,
            batch.bias,
            *batch.arguments[4:],
            **options,
        )
        # Backward under autocast, which it should not be called in, is right too.
        found = gradients(loss, batch)
    assert loss.dtype == projected.dtype == torch.float32
    assert torch.equal(loss, outside)
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine, other)
    rounded = replace(batch, enc=batch.enc.detach().bfloat16().requires_grad_())
    assert torch.equal(projected, rounded.loss(**options))


# ---- magnitudes and infinities


@MODES
@pytest.mark.parametrize("magnitude", [1e3, 1e4])
def test_large_logits(mode, magnitude):
    batch = make_batch((9, 4), (3, 5), vocab_size=20, with_bias=False)
    largest = float((torch.ones(6) @ batch.weight.detach().abs().t()).max())
    batch = replace(
        batch, weight=(batch.weight.detach() * magnitude / largest).requires_grad_()
    )
    options = options_of(batch, mode)
    truth, naive = truth_and_naive(batch, torch.float32, **options)
    losses = batch.loss(reduction="none", **options)
    for mine, plain, exact in zip(
        [losses, *gradients(losses, batch)], naive, truth, strict=True
    ):
        assert torch.isfinite(mine).all()
        assert relative_error(mine, exact) <= 2.0 * relative_error(plain, exact) + 1e-6


@MODES
def test_adding_to_all_logits_changes_nothing(mode):
    batch = make_batch(vocab_size=20, dtype=torch.float64)
    options = options_of(batch, mode)
    moved = replace(batch.copy(), bias=(batch.bias.detach() + 512.0).requires_grad_())
    losses = [x.loss(reduction="none", **options) for x in (batch, moved)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(
        *(gradients(loss, x) for loss, x in zip(losses, (batch, moved), strict=True))
    )


@MODES
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_masked_token_is_as_if_not_there(mode, reduction):
    """A bias of -inf takes a token out of the softmax."""
    batch = make_batch(vocab_size=20)
    used = {int(x) for x in batch.targets.flatten() if 0 <= x < 20} | {0}
    options = options_of(batch, mode)
    if mode == "full":
        masked = next(x for x in range(20) if x not in used)
    else:
        drawn = options["vocabulary"].token_ids.flatten().tolist()
        masked = next(x for x in drawn if x not in used)
    with torch.no_grad():
        batch.bias[masked] = -torch.inf
    kept = [x for x in range(20) if x != masked]
    places = torch.full((20,), -1)
    places[kept] = torch.arange(19)
    without = replace(
        batch.copy(),
        weight=batch.weight.detach()[kept].requires_grad_(),
        bias=batch.bias.detach()[kept].requires_grad_(),
        targets=places[batch.targets.clamp(0, 19)],
    )
    fewer = {}
    if mode != "full":
        vocabulary = options["vocabulary"]
        mask = vocabulary.mask & (vocabulary.token_ids != masked)
        token_ids = places[vocabulary.token_ids]
        fewer = {
            **options,
            "vocabulary": replace(vocabulary, token_ids=token_ids, mask=mask),
        }
    loss = batch.loss(reduction=reduction, **options)
    expected = without.loss(reduction=reduction, **fewer)
    assert torch.isfinite(loss).all()
    torch.testing.assert_close(loss, expected)
    found, wanted = gradients(loss, batch), gradients(expected, without)
    for index in (2, 3):
        assert (found[index][masked] == 0).all()
        found[index] = found[index][kept]
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


POISONS = {
    "NaN in enc": ("enc", (1, 2, 3), torch.nan),
    "NaN in the last frame": ("enc", (1, 3, 0), torch.nan),
    "NaN in dec": ("dec", (1, 0, 0), torch.nan),
    "inf in enc": ("enc", (1, 2, 3), torch.inf),
    "-inf in dec": ("dec", (1, 5, 2), -torch.inf),
}


@MODES
@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize(
    ("backend", "chunk_bytes"),
    [
        ("numba", 1),
        ("numba", 4000),
        ("numba", None),
        ("reference", 4000),
        ("torchaudio", None),
    ],
)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_bad_utterance_touches_no_other(
    mode, poison, chunk_bytes, reduction, backend
):
    """identity, so that an infinite input gives infinite logits."""
    name, place, value = poison
    batch = make_batch(vocab_size=20)
    options = {"activation": "identity", "chunk_bytes": chunk_bytes}
    options.update(options_of(batch, mode), backend=backend)
    with torch.no_grad():
        getattr(batch, name)[place] = value
    losses = batch.loss(reduction="none", **options)
    assert torch.isfinite(losses).tolist() == [True, False, True, True]
    alone = batch.of([0, 2, 3]).copy()
    if "vocabulary" in options:
        vocabulary = options["vocabulary"]
        options["vocabulary"] = type(vocabulary)(
            *(
                getattr(vocabulary, field)[[0, 2, 3]]
                for field in ("token_ids", "mask", "log_inclusion", "targets")
            )
        )
    expected = alone.loss(reduction="none", **options)
    torch.testing.assert_close(losses[[0, 2, 3]], expected, rtol=1e-6, atol=1e-6)
    if "vocabulary" in options:
        options["vocabulary"] = vocabulary
    total = batch.loss(reduction=reduction, **options)
    found = torch.autograd.grad(total.sum(), batch.leaves)
    wanted = torch.autograd.grad(expected.sum(), alone.leaves)
    for index in (0, 1):
        assert (found[index][1] == 0).all()
        torch.testing.assert_close(
            found[index][[0, 2, 3]], wanted[index], rtol=1e-5, atol=1e-5
        )
    for index in (2, 3):
        torch.testing.assert_close(found[index], wanted[index], rtol=1e-5, atol=1e-5)


@MODES
@pytest.mark.parametrize("activation", ["tanh", "relu", "mish", torch.sigmoid])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_bad_utterance_touches_no_other_whatever_the_activation(
    mode, activation, reduction
):
    batch = make_batch(vocab_size=20)
    bad = batch.copy()
    with torch.no_grad():
        bad.enc[1, 2, 3] = torch.nan
    options = {"activation": activation, **options_of(batch, mode)}
    found = gradients(bad.loss(reduction=reduction, **options).sum(), bad)
    losses = batch.loss(reduction="none", **options)
    wanted = gradients(losses[[0, 2, 3]].sum(), batch)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "numba", "torchaudio"])
def test_a_label_of_probability_zero_gives_an_infinite_loss(backend):
    batch = make_batch((4, 4), (1, 1))
    batch.targets[:] = torch.tensor([[3], [4]])
    with torch.no_grad():
        batch.bias[3] = -torch.inf
    losses = batch.loss(reduction="none", backend=backend)
    assert losses[0] == torch.inf
    assert torch.isfinite(losses[1])
    for gradient in gradients(losses, batch):
        assert torch.isfinite(gradient).all()


@MODES
def test_a_nonfinite_output_layer_ends_in_nonfinite_losses(mode):
    batch = make_batch(vocab_size=20)
    with torch.no_grad():
        batch.weight[0, 1] = torch.nan
    losses = batch.loss(reduction="none", **options_of(batch, mode))
    assert not torch.isfinite(losses).any()
    assert not torch.isfinite(batch.loss(**options_of(batch, mode)))


@MODES
@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_never_negative(mode, correction, seed, scale):
    """Field reports warp-transducer 14, 50, 65. A loss near 0 included."""
    batch = make_batch((20, 1, 30, 1), (0, 0, 3, 2), seed=seed, scale=scale)
    options = {**options_of(batch, mode), "correction": correction}
    assert (batch.loss(reduction="none", **options) >= 0.0).all()
    with torch.no_grad():
        batch.bias[0] = 40.0 + seed  # blank is certain
    losses = batch.loss(reduction="none", **options)
    assert (losses >= 0.0).all()
    if scale == 0.0:
        assert losses[0] < 1e-4


@pytest.mark.parametrize("backend", ["numba", "reference", "torchaudio"])
def test_rounding_makes_no_loss_negative(backend):
    """Two paths of probabilities p and 1 - p, certain after that: the loss is 0."""
    split = torch.linspace(-3.0, 3.0, 2001)
    far = torch.full_like(split, 50.0)
    # The label's logit is the sum of both, blank's is 0: split at (0, 0), the label
    # certain at (1, 0), blank certain at (0, 1) and (1, 1).
    losses = transducer_loss(
        torch.stack([split, far], dim=1)[..., None],
        torch.stack([torch.zeros_like(split), -4.0 * far - split], dim=1)[..., None],
        torch.tensor([[0.0], [1.0]]),
        None,
        torch.ones(2001, 1, dtype=torch.long),
        torch.full((2001,), 2),
        torch.ones(2001, dtype=torch.long),
        activation="identity",
        reduction="none",
        backend=backend,
    )
    assert (losses >= 0.0).all()
    assert (losses < 1e-6).all()
