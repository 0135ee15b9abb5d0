"""How often a token is drawn, and whether the correction makes up for it."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.draws import draws, seeded

from espnet_sampled_rnnt import SampledVocabulary, sample_vocabulary, transducer_loss

# ---- how often a token is drawn


def exact_inclusion(weights: list[float], samples: int) -> list[float]:
    """Probability that each of the items is among ``samples`` drawn one by one."""
    inclusion = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), samples):
        probability, left = 1.0, sum(weights)
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        for item in order:
            inclusion[item] += probability
    return inclusion


def frequencies(vocabulary: SampledVocabulary, vocab_size: int) -> torch.Tensor:
    """How often each token is in, over the utterances."""
    count = torch.zeros(vocab_size).index_add_(
        0,
        vocabulary.token_ids[vocabulary.mask],
        torch.ones(int(vocabulary.sizes.sum())),
    )
    return count / vocabulary.mask.size(0)


def check_frequencies(found: torch.Tensor, exact: torch.Tensor, count: int) -> None:
    """Within 4.5 standard errors, and the errors small enough to mean something."""
    error = (exact * (1 - exact) / count).sqrt()
    assert float(error.max()) < 0.01
    assert ((found - exact).abs() <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("samples", [1, 3, 5])
def test_uniform_draws_all_alike(samples):
    count = 4000
    vocabulary = draws(count, 8, samples)
    exact = torch.tensor([1.0] + [samples / 7] * 7)
    check_frequencies(frequencies(vocabulary, 8), exact, count)
    torch.testing.assert_close(
        vocabulary.log_inclusion[:, 1:].exp(), torch.full((count, samples), samples / 7)
    )


WEIGHTS = {
    "equal": [1.0] * 6,
    "mild": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "strong": [1000.0, 100.0, 10.0, 1.0, 0.3, 0.1],
    "ties and zeros": [2.0, 2.0, 0.0, 1.0, 1.0, 0.0],
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_weighted_draws_like_one_by_one(weights, samples, dtype):
    count = 8000
    # Blank has the largest weight of all, which must not matter.
    probs = torch.tensor([5000.0, *weights], dtype=dtype)
    vocabulary = draws(count, 7, samples, probs=probs)
    exact = torch.tensor([1.0, *exact_inclusion(probs[1:].tolist(), samples)])
    check_frequencies(frequencies(vocabulary, 7), exact, count)


def test_batch_scope_averages_the_distributions_of_the_utterances():
    """Rows of unlike size count alike."""
    first = torch.tensor([1.0, 8.0, 1.0, 1.0, 0.0]) * 1e6
    second = torch.tensor([5.0, 0.0, 1.0, 1.0, 3.0]) * 1e-6
    average = (first / first.sum() + second / second.sum()) / 2
    exact = torch.tensor([1.0, *exact_inclusion(average[1:].tolist(), 2)])
    count, total = 3000, torch.zeros(5)
    generator = seeded()
    for _ in range(count):
        vocabulary = sample_vocabulary(
            torch.zeros(2, 0, dtype=torch.long),
            torch.zeros(2, dtype=torch.long),
            5,
            2,
            scope="batch",
            probs=torch.stack([first, second]),
            generator=generator,
        )
        total[vocabulary.token_ids[0]] += 1
    check_frequencies(total / count, exact, count)


# ---- the corrected normaliser


DISTRIBUTIONS = {
    "uniform": None,
    "skewed": torch.arange(1, 31).double() ** -2.0,
    "skewed the other way": torch.arange(30, 0, -1).double() ** -2.0,
    "a little mass nearly everywhere": torch.tensor([1.0] * 5 + [0.01] * 25),
}


@pytest.mark.parametrize("probs", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@pytest.mark.parametrize("samples", [4, 12])
def test_the_corrected_normaliser_is_unbiased(probs, samples):
    """Through the loss itself: on one node exp(loss) is the normaliser over exp(z)."""
    count, vocab_size = 2000, 30
    bias = torch.linspace(2.0, -2.0, vocab_size)
    targets = torch.zeros(count, 0, dtype=torch.long)
    ones, zeros = torch.ones(count).long(), torch.zeros(count).long()

    def normaliser(vocabulary, correction):
        losses = transducer_loss(
            torch.zeros(count, 1, 1),
            torch.zeros(count, 1, 1),
            torch.zeros(vocab_size, 1),
            bias,
            targets,
            ones,
            zeros,
            vocabulary=vocabulary,
            correction=correction,
            reduction="none",
        )
        return (losses.double() + bias[0]).exp()

    exact = float(bias.double().exp().sum())
    assert float(normaliser(None, 0.0)[0]) == pytest.approx(exact, rel=1e-5)
    vocabulary = draws(count, vocab_size, samples, probs=probs)
    found = normaliser(vocabulary, 1.0)
    error = float(found.std()) / count**0.5
    assert error < 0.06 * exact
    assert abs(float(found.mean()) - exact) <= 4.0 * error
    # Without the correction the sum is too small in every draw.
    assert (normaliser(vocabulary, 0.0) < exact).all()
    # In between it lies between.
    halfway = float(normaliser(vocabulary, 0.5).mean())
    assert float(normaliser(vocabulary, 0.0).mean()) < halfway < float(found.mean())


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_the_inverse_inclusion_is_unbiased_for_each_token(weights):
    """E[1 / pi_j where j is drawn] = 1 (Duffield et al. 2007)."""
    count = 20_000
    vocabulary = draws(count, 7, 2, seed=1, probs=torch.tensor([1.0, *weights]))
    inverse = torch.exp(-vocabulary.log_inclusion.double())
    for token, weight in enumerate(weights, start=1):
        value = torch.where(vocabulary.token_ids == token, inverse, 0.0).sum(dim=1)
        if weight == 0.0:
            assert (value == 0).all()
            continue
        error = float(value.std()) / count**0.5
        if error < 0.1:  # rarer tokens say nothing in so few draws
            assert abs(float(value.mean()) - 1.0) <= 4.5 * error + 1e-6
