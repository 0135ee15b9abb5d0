"""Drawing a vocabulary: what is in it, how often, and with what probability."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.draws import draws, seeded
from support.memory import counted_peak

from espnet_sampled_rnnt import sample_vocabulary

SCOPES = ("example", "batch")
TARGETS = torch.tensor([[3, 1, 3, 7], [5, 2, -1, 99], [0, 0, 0, 0]])
LENGTHS = torch.tensor([4, 2, 0])
POSITIVES = ([0, 1, 3, 7], [0, 2, 5], [0])


def check_vocabulary(vocabulary, positives, vocab_size, num_samples, blank=0):
    """Everything that is true of any draw; ``positives`` of each utterance."""
    assert vocabulary.token_ids.dtype == torch.int64
    assert vocabulary.mask.dtype == torch.bool
    assert vocabulary.targets.dtype == torch.int64
    assert vocabulary.log_inclusion.is_floating_point()
    sizes = vocabulary.sizes.tolist()
    assert vocabulary.token_ids.size(1) == max(sizes)
    for b, expected in enumerate(positives):
        row = vocabulary.token_ids[b].tolist()
        mask = vocabulary.mask[b].tolist()
        log_pi = vocabulary.log_inclusion[b]
        tokens = row[: sizes[b]]
        assert mask == [True] * sizes[b] + [False] * (len(row) - sizes[b])
        assert len(set(tokens)) == len(tokens)
        assert all(0 <= token < vocab_size for token in tokens)
        assert tokens[0] == blank
        assert tokens[: len(expected)] == [
            blank,
            *sorted(x for x in expected if x != blank),
        ]
        assert (log_pi[: len(expected)] == 0).all()
        negatives = log_pi[len(expected) : sizes[b]]
        assert torch.isfinite(negatives).all()
        assert (negatives <= 0).all()
        left = vocab_size - len(expected)
        assert sizes[b] - len(expected) <= min(num_samples, left)


@pytest.mark.parametrize("probs", [None, "flat", "skewed", "per utterance"])
@pytest.mark.parametrize("samples", [1, 4, 9, 11, 12, 1000])
def test_example_scope(probs, samples):
    weights = {
        None: None,
        "flat": torch.ones(12),
        "skewed": torch.arange(12.0) ** 3 + 1e-3,
        "per utterance": torch.rand(3, 12, generator=seeded()) + 0.1,
    }[probs]
    vocabulary = sample_vocabulary(
        TARGETS, LENGTHS, 12, samples, probs=weights, generator=seeded()
    )
    check_vocabulary(vocabulary, POSITIVES, 12, samples)
    for b, positives in enumerate(POSITIVES):
        expected = len(positives) + min(samples, 12 - len(positives))
        assert int(vocabulary.sizes[b]) == expected
        for u in range(int(LENGTHS[b])):
            place = int(vocabulary.targets[b, u])
            assert vocabulary.token_ids[b, place] == TARGETS[b, u]
    if samples >= 11:
        assert (vocabulary.log_inclusion == 0).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("samples", [1, 4, 6, 1000])
def test_batch_scope_is_one_vocabulary_for_all(weighted, samples):
    probs = torch.rand(3, 12, generator=seeded()) + 0.1 if weighted else None
    vocabulary = sample_vocabulary(
        TARGETS, LENGTHS, 12, samples, scope="batch", probs=probs, generator=seeded()
    )
    union = sorted({token for row in POSITIVES for token in row})
    check_vocabulary(vocabulary, [union] * 3, 12, samples)
    for name in ("token_ids", "mask", "log_inclusion"):
        field = getattr(vocabulary, name)
        assert (field == field[:1]).all()
        assert field.stride(0) == 0  # one row, expanded
    for b in range(3):
        for u in range(int(LENGTHS[b])):
            place = int(vocabulary.targets[b, u])
            assert vocabulary.token_ids[b, place] == TARGETS[b, u]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("blank", [0, 4, 11])
def test_blank_may_be_any_token(scope, blank):
    targets = torch.tensor([[3, 1, 7], [10, 2, 1]])
    lengths = torch.tensor([3, 2])
    vocabulary = sample_vocabulary(
        targets, lengths, 12, 4, scope=scope, blank=blank, generator=seeded()
    )
    rows = [[blank, 1, 3, 7], [blank, 2, 10]]
    if scope == "batch":
        rows = [[blank, 1, 2, 3, 7, 10]] * 2
    check_vocabulary(vocabulary, rows, 12, 4, blank)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_positives_are_never_drawn_as_negatives(scope, weighted):
    """Even where nearly all weight lies on them."""
    targets = torch.tensor([[3, 1, 7]]).repeat(200, 1)
    lengths = torch.tensor([3]).repeat(200)
    probs = None
    if weighted:
        probs = torch.full((9,), 1e-6)
        probs[[0, 1, 3, 7]] = 1.0
    for seed in range(200 if scope == "batch" else 1):
        vocabulary = sample_vocabulary(
            targets, lengths, 9, 3, scope=scope, probs=probs, generator=seeded(seed)
        )
        drawn = vocabulary.token_ids[:, 4:]
        assert drawn.shape == (200, 3)
        assert not torch.isin(drawn, torch.tensor([0, 1, 3, 7])).any()
        assert (drawn.sort(dim=1).values.diff(dim=1) > 0).all()


# ---- weights


def test_weights_are_of_each_utterance():
    probs = torch.zeros(3, 12)
    for b, tokens in enumerate(([4, 5], [6, 7], [8, 9])):
        probs[b, tokens] = 1.0
    vocabulary = sample_vocabulary(
        TARGETS, LENGTHS, 12, 2, probs=probs, generator=seeded()
    )
    drawn = [
        sorted(
            vocabulary.token_ids[b, len(POSITIVES[b]) :][
                vocabulary.mask[b, len(POSITIVES[b]) :]
            ].tolist()
        )
        for b in range(3)
    ]
    assert drawn == [[4, 5], [6, 7], [8, 9]]


def test_zero_weights_are_drawn_last_and_only_when_all_are():
    probs = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0, 0.0])
    three = draws(50, 6, 3, probs=probs)  # five are left, two have a weight
    assert three.sizes.tolist() == [3] * 50
    assert three.token_ids.sort(dim=1).values.tolist() == [[0, 2, 4]] * 50
    assert (three.log_inclusion == 0).all()  # they had to be in
    five = draws(50, 6, 5, probs=probs)
    assert five.token_ids.sort(dim=1).values.tolist() == [list(range(6))] * 50
    assert (five.log_inclusion == 0).all()
    # All weight on positives: nothing to draw.
    none = draws(2, 6, 3, probs=torch.tensor([1.0, 0, 0, 0, 0, 0]))
    assert none.sizes.tolist() == [1, 1]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("factor", [1e-38, 1e-20, 1e20, 2e38])
def test_weights_need_not_be_normalised(scope, factor):
    weights = torch.rand(3, 12, generator=seeded()) + 0.5
    first, second = (
        sample_vocabulary(
            TARGETS, LENGTHS, 12, 4, scope=scope, probs=probs, generator=seeded(3)
        )
        for probs in (weights, weights * factor)
    )
    assert torch.equal(first.token_ids, second.token_ids)
    torch.testing.assert_close(
        first.log_inclusion, second.log_inclusion, rtol=1e-4, atol=1e-4
    )


# ---- the random numbers


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_draw_follows_the_generator(scope, weighted):
    probs = torch.rand(60, generator=seeded()) if weighted else None

    def draw(generator):
        vocabulary = sample_vocabulary(
            TARGETS, LENGTHS, 60, 9, scope=scope, probs=probs, generator=generator
        )
        return vocabulary.token_ids.tolist(), vocabulary.log_inclusion.tolist()

    assert draw(seeded(1)) == draw(seeded(1))
    assert draw(seeded(1)) != draw(seeded(2))
    generator = seeded(1)
    first = draw(generator)
    assert draw(generator) != first
    torch.manual_seed(7)
    first, second = draw(None), draw(None)
    assert first != second
    torch.manual_seed(7)
    assert (draw(None), draw(None)) == (first, second)
    # A generator of one's own leaves torch's alone, and numpy's is never touched.
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 - the global state is what must stay
    draw(seeded(3))
    expected = np.random.RandomState(7).rand()
    assert draw(None) == first
    assert np.random.rand() == expected  # noqa: NPY002


# ---- size


def test_a_large_vocabulary_costs_by_samples_not_by_tokens():
    batch, vocab_size, samples = 32, 250_000, 512
    targets = torch.randint(1, vocab_size, (batch, 40), generator=seeded())
    lengths = torch.full((batch,), 40)

    def draw():
        return sample_vocabulary(targets, lengths, vocab_size, samples)

    draw()
    tracemalloc.start()
    try:
        vocabulary = draw()
        _, numpy_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    wanted = batch * (samples + 41) * (8 + 1 + 4)
    assert numpy_peak < 4 * wanted < batch * vocab_size / 4
    assert counted_peak(draw) < 4 * wanted
    assert vocabulary.sizes.min() >= samples + 2
    assert int(vocabulary.token_ids.max()) > 0.99 * vocab_size
    assert int(vocabulary.token_ids.max()) < vocab_size


@given(
    st.data(),
    st.integers(1, 40),
    st.integers(1, 50),
    st.sampled_from(SCOPES),
    st.sampled_from([None, "vector", "matrix"]),
    st.integers(0, 2**31),
)
def test_any_draw_is_a_vocabulary(data, vocab_size, samples, scope, kind, seed):
    blank = data.draw(st.integers(0, vocab_size - 1))
    labels = [x for x in range(vocab_size) if x != blank]
    rows = data.draw(
        st.lists(
            st.lists(st.sampled_from(labels), max_size=6) if labels else st.just([]),
            min_size=1,
            max_size=4,
        )
    )
    targets = torch.full((len(rows), max(map(len, rows))), -1)
    for b, row in enumerate(rows):
        targets[b, : len(row)] = torch.tensor(row, dtype=torch.long)
    shape = {"vector": (vocab_size,), "matrix": (len(rows), vocab_size)}.get(kind)
    probs = None
    if shape is not None:
        probs = torch.rand(shape, generator=seeded(seed)).round(decimals=1)
        probs[..., 0] += 0.1
    vocabulary = sample_vocabulary(
        targets,
        torch.tensor([len(row) for row in rows]),
        vocab_size,
        samples,
        scope=scope,
        probs=probs,
        blank=blank,
        generator=seeded(seed),
    )
    positives = [sorted({blank, *row}) for row in rows]
    if scope == "batch":
        positives = [sorted({token for row in positives for token in row})] * len(rows)
    check_vocabulary(vocabulary, positives, vocab_size, samples, blank)
    for b, row in enumerate(rows):
        places = vocabulary.targets[b, : len(row)]
        assert vocabulary.token_ids[b, places].tolist() == row
    if samples >= vocab_size - 1:
        assert vocabulary.sizes.tolist() == [vocab_size] * len(rows)
