"""The loss as a citizen of autograd: gradcheck, frozen inputs, repeated backward."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.batches import FLOATS, Batch, make_batch

from espnet_sampled_rnnt import sample_vocabulary, transducer_loss
from espnet_sampled_rnnt.loss.activation import ACTIVATION_NAMES


def small_batch(dtype=torch.float64, **options) -> Batch:
    return make_batch(
        (3, 2, 1), (1, 3, 0), vocab_size=7, joint_size=3, dtype=dtype, **options
    )


def smaller_batch(**options) -> Batch:
    """Few enough numbers to vary each of them."""
    return make_batch(
        (2, 1),
        (1, 2),
        vocab_size=6,
        joint_size=2,
        dtype=torch.float64,
        garbage=False,
        **options,
    )


def sampled(batch: Batch, scope: str = "example") -> dict:
    vocabulary = sample_vocabulary(
        batch.targets,
        batch.target_lengths,
        batch.vocab_size,
        2,
        scope=scope,
        probs=torch.arange(1.0, batch.vocab_size + 1),
        generator=torch.Generator().manual_seed(1),
    )
    return {"vocabulary": vocabulary, "correction": 0.6}


def check_gradients(batch: Batch, **options) -> None:
    def loss(enc, dec, weight, bias):
        rest = (batch.targets, batch.enc_lengths, batch.target_lengths)
        return transducer_loss(enc, dec, weight, bias, *rest, **options)

    torch.autograd.gradcheck(loss, batch.floats, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("scope", [None, "example", "batch"])
def test_gradcheck(reduction, with_bias, scope):
    batch = smaller_batch(with_bias=with_bias)
    options = {} if scope is None else sampled(batch, scope)
    check_gradients(batch, reduction=reduction, **options)


@pytest.mark.parametrize(
    "activation",
    [*ACTIVATION_NAMES, torch.sigmoid_, torch.nn.ELU(inplace=True)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_gradcheck_of_activations(activation):
    # The seed keeps all sums away from the kinks of relu, hardtanh and the like.
    batch = smaller_batch(seed=4)
    check_gradients(batch, activation=activation, chunk_bytes=200, **sampled(batch))


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_gradcheck_of_backends(backend):
    check_gradients(smaller_batch(), backend=backend, reduction="none")


SUBSETS = [
    subset for size in range(5) for subset in itertools.combinations(FLOATS, size)
]


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("scope", [None, "example", "batch"])
@pytest.mark.parametrize("subset", SUBSETS, ids="+".join)
def test_frozen_inputs_change_no_other_gradient(subset, scope, reduction):
    batch = small_batch()
    options = {"reduction": reduction}
    if scope is not None:
        options.update(sampled(batch, scope))
    part = batch.copy()
    for name in set(FLOATS) - set(subset):
        getattr(part, name).requires_grad_(False)
    loss = part.loss(**options)
    assert loss.requires_grad is bool(subset)
    if subset:
        loss.sum().backward()
        whole = batch.copy()
        whole.loss(**options).sum().backward()
        for name in FLOATS:
            gradient = getattr(part, name).grad
            if name in subset:
                assert torch.equal(gradient, getattr(whole, name).grad)
            else:
                assert gradient is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_without_gradients_the_value_is_the_same(context, reduction):
    batch = small_batch(torch.float32)
    options = {"reduction": reduction, **sampled(batch)}
    expected = batch.loss(**options)
    with context():
        loss = batch.loss(**options)
    assert not loss.requires_grad
    assert torch.equal(loss, expected)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_second_backward_through_a_kept_graph(reduction):
    batch = small_batch(torch.float32)
    loss = batch.loss(reduction=reduction, **sampled(batch))
    upstream = 3.0 * torch.ones_like(loss)
    first = torch.autograd.grad(loss, batch.leaves, upstream, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(loss, batch.leaves, upstream, retain_graph=True)
    third = torch.autograd.grad(loss, batch.leaves, 2.0 * upstream)
    for a, kept_a, b, c in zip(first, kept, second, third, strict=True):
        assert torch.equal(a, kept_a)
        assert torch.equal(a, b)
        torch.testing.assert_close(c, 2.0 * a, rtol=1e-6, atol=0.0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, batch.leaves, upstream)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_upstream_gradients_may_differ_and_be_zero(reduction):
    batch = small_batch()
    losses = batch.loss(reduction="none")
    factors = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)
    found = torch.autograd.grad(losses, batch.leaves, factors)
    alone = []
    for b in (0, 2):
        part = make_part(batch, b)
        loss = part.loss(reduction=reduction).sum() * float(factors[b])
        alone.append(torch.autograd.grad(loss, part.leaves))
    for index, name in enumerate(FLOATS):
        if name in ("enc", "dec"):
            expected = torch.zeros_like(found[index])
            expected[0], expected[2] = alone[0][index][0], alone[1][index][0]
        else:
            expected = alone[0][index] + alone[1][index]
        torch.testing.assert_close(found[index], expected)


def make_part(batch: Batch, utterance: int) -> Batch:
    return batch.of([utterance]).copy()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", FLOATS)
def test_double_backward_is_refused_clearly(reduction, name):
    batch = small_batch()
    loss = batch.loss(reduction=reduction).sum()
    (gradient,) = torch.autograd.grad(loss, getattr(batch, name), create_graph=True)
    plain = torch.autograd.grad(batch.loss(reduction=reduction).sum(), batch.leaves)
    assert torch.equal(gradient, plain[FLOATS.index(name)])
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.pow(2).sum(), batch.leaves, allow_unused=True)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_double_backward_to_the_upstream_gradient_is_refused(reduction):
    batch = small_batch()
    factor = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = (factor * batch.loss(reduction=reduction)).sum()
    (gradient,) = torch.autograd.grad(loss, batch.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.sum(), factor)


def test_a_graph_of_gradients_may_be_asked_for_and_left():
    """backward(create_graph=True), as some optimisers have it, gives gradients."""
    batch = small_batch()
    with pytest.warns(UserWarning, match="create_graph"):
        batch.loss().backward(create_graph=True)
    expected = torch.autograd.grad(batch.loss(), batch.leaves)
    for leaf, gradient in zip(batch.leaves, expected, strict=True):
        assert torch.equal(leaf.grad, gradient)
        leaf.grad = None


def test_gradients_flow_through_what_made_the_inputs():
    """Projections before the joint network, the loss used twice in one graph."""
    batch = smaller_batch()
    projection = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def value(matrix):
        rest = (batch.targets, batch.enc_lengths, batch.target_lengths)
        first = transducer_loss(
            batch.enc @ matrix, batch.dec, batch.weight, batch.bias, *rest
        )
        second = transducer_loss(
            batch.enc, batch.dec @ matrix, batch.weight, None, *rest, reduction="none"
        )
        return first + (second * second).sum()

    torch.autograd.gradcheck(value, projection)


def test_inputs_are_not_changed():
    batch = small_batch(torch.float32)
    options = sampled(batch)
    before = [x.clone() for x in batch.arguments]
    fields = [
        getattr(options["vocabulary"], name).clone()
        for name in ("token_ids", "mask", "log_inclusion", "targets")
    ]
    batch.loss(**options).backward()
    for now, then in zip(batch.arguments, before, strict=True):
        torch.testing.assert_close(now, then, rtol=0.0, atol=0.0, equal_nan=True)
    for name, then in zip(
        ("token_ids", "mask", "log_inclusion", "targets"), fields, strict=True
    ):
        assert torch.equal(getattr(options["vocabulary"], name), then)


def test_changing_an_input_between_forward_and_backward_is_noticed():
    batch = small_batch(torch.float32)
    weight = batch.weight * 1.0
    rest = (batch.bias, batch.targets, batch.enc_lengths, batch.target_lengths)
    loss = transducer_loss(batch.enc, batch.dec, weight, *rest, reduction="none")
    with torch.no_grad():
        weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()
