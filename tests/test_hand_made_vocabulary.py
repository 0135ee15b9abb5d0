"""Vocabularies that a caller makes: what works, and what a mistake is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.bad_input import NAMES, V, arguments, refused

from espnet_sampled_rnnt import SampledVocabulary, sample_vocabulary, transducer_loss


def hand_made() -> SampledVocabulary:
    """Blank in another place than the first, padding in the middle, labels anywhere."""
    given = arguments()
    rows = []
    for b in range(3):
        labels = given["targets"][b, : int(given["target_lengths"][b])].tolist()
        rows.append([*sorted(set(labels), reverse=True), 0])
    width = max(map(len, rows)) + 2
    token_ids = torch.full((3, width), -7)
    mask = torch.zeros(3, width, dtype=torch.bool)
    local = torch.full((3, 4), 10**6)
    for b, row in enumerate(rows):
        token_ids[b, 1 : len(row) + 1] = torch.tensor(row)
        mask[b, 1 : len(row) + 1] = True
        for u in range(int(given["target_lengths"][b])):
            local[b, u] = 1 + row.index(int(given["targets"][b, u]))
    log_inclusion = torch.full((3, width), torch.nan)
    log_inclusion[mask] = 0.0
    return SampledVocabulary(token_ids, mask, log_inclusion, local)


def test_a_vocabulary_made_by_hand_works():
    """Checked against the same with nothing unusual about it."""
    given, vocabulary = arguments(), hand_made()
    plain = sample_vocabulary(
        given["targets"],
        given["target_lengths"],
        V,
        1,
        probs=torch.tensor([1.0] + [0.0] * 8),  # no negatives
    )
    assert torch.equal(plain.sizes, vocabulary.sizes)
    found = transducer_loss(**given, vocabulary=vocabulary, reduction="none")
    expected = transducer_loss(**given, vocabulary=plain, reduction="none")
    torch.testing.assert_close(found, expected)
    leaves = [given[name] for name in NAMES[:4]]
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), leaves),
        torch.autograd.grad(expected.sum(), leaves),
    )


def vocabulary_refused(pattern: str, **changes) -> None:
    vocabulary = replace(hand_made(), **changes)
    for correction in (0.0, 1.0):
        refused(rf"vocabulary.*{pattern}", vocabulary=vocabulary, correction=correction)


def with_entry(name: str, place: tuple, value) -> dict:
    field = getattr(hand_made(), name).clone()
    field[place] = value
    return {name: field}


@pytest.mark.parametrize("value", [V, -1])
def test_vocabulary_with_a_token_outside(value):
    vocabulary_refused(
        rf"token_ids of utterance 2 holds {value}, .*\[0, 9\)",
        **with_entry("token_ids", (2, 1), value),
    )


def test_vocabulary_with_a_token_twice():
    first = int(hand_made().token_ids[1, 1])
    vocabulary_refused(
        f"token_ids of utterance 1 holds {first} twice",
        **with_entry("token_ids", (1, 2), first),
    )


def test_vocabulary_without_blank():
    vocabulary_refused(
        "token_ids of utterance 2 lacks blank, 0",
        **with_entry("token_ids", (2, 1), 5),
    )


def test_vocabulary_without_a_label():
    target = int(arguments()["targets"][0, 1])
    local = int(hand_made().targets[0, 1])
    pattern = f"targets of utterance 0 is {local} at position 1, .*target {target}"
    other = next(x for x in range(1, V) if x not in hand_made().token_ids[0].tolist())
    vocabulary_refused(pattern, **with_entry("token_ids", (0, local), other))
    place = int(hand_made().targets[0, 1])
    vocabulary_refused(
        rf"targets of utterance 0 is {place} at position \d",
        **with_entry("mask", (0, place), False),
    )


@pytest.mark.parametrize("value", [-1, 0, 3, 10**6])
def test_vocabulary_whose_targets_point_elsewhere(value):
    if int(hand_made().targets[1, 3]) == value:
        value = 2
    vocabulary_refused(
        f"targets of utterance 1 is {value} at position 3",
        **with_entry("targets", (1, 3), value),
    )


@pytest.mark.parametrize("value", [0.5, float("nan"), float("-inf"), float("inf")])
def test_vocabulary_with_an_impossible_inclusion(value):
    vocabulary_refused(
        rf"log_inclusion of utterance 1 is {value} for token",
        **with_entry("log_inclusion", (1, 2), value),
    )


def test_vocabulary_with_an_uncertain_label_or_blank():
    """The formula has no correction in the numerator: positives are always in."""
    blank = (hand_made().token_ids == 0) & hand_made().mask
    for place in (
        tuple(blank.nonzero()[1].tolist()),
        (1, int(hand_made().targets[1, 2])),
    ):
        token = int(hand_made().token_ids[place])
        vocabulary_refused(
            rf"log_inclusion of utterance 1 is -0.5 for token {token}, .* 0",
            **with_entry("log_inclusion", place, -0.5),
        )


def test_vocabulary_of_another_batch():
    refused("vocabulary must be None or a SampledVocabulary", vocabulary="sampled")
    vocabulary = hand_made()
    fewer = SampledVocabulary(
        *(getattr(vocabulary, n)[:2] for n in ("token_ids", "mask", "log_inclusion")),
        vocabulary.targets[:2],
    )
    refused(r"vocabulary.targets has shape \(2, 4\).*\(3, 4\)", vocabulary=fewer)
    shorter = replace(vocabulary, targets=vocabulary.targets[:, :3])
    refused(r"vocabulary.targets has shape \(3, 3\).*\(3, 4\)", vocabulary=shorter)
    refused("is on meta", vocabulary=vocabulary.to("meta"))


FIELDS = {
    "no tensor": ("token_ids", [[1]], "must be a tensor, but is"),
    "axes": ("mask", torch.ones(3, dtype=torch.bool), r"2 axes, but has shape \(3,\)"),
    "ids": ("token_ids", torch.ones(3, 6, dtype=torch.int32), "int64, but is .*int32"),
    "mask": ("mask", torch.ones(3, 6), "bool, but is .*float32"),
    "pi": ("log_inclusion", torch.ones(3, 6).long(), "floating.* but is .*int64"),
    "targets": ("targets", torch.ones(3, 4), "integers, but is .*float32"),
    "width": ("log_inclusion", torch.zeros(3, 2), r"shape of token_ids.*\(3, 2\)"),
    "rows": ("targets", torch.ones(2, 4).long(), ".* 2 .*token_ids has 3"),
    "device": ("mask", torch.ones(3, 6).bool().to("meta"), ".*on meta, but .* on cpu"),
}


@pytest.mark.parametrize(("name", "value", "pattern"), FIELDS.values(), ids=FIELDS)
def test_fields_of_a_vocabulary(name, value, pattern):
    good = {
        "token_ids": torch.arange(6).repeat(3, 1),
        "mask": torch.ones(3, 6, dtype=torch.bool),
        "log_inclusion": torch.zeros(3, 6),
        "targets": torch.ones(3, 4, dtype=torch.long),
    }
    SampledVocabulary(**good)
    with pytest.raises(ValueError, match=rf"^{name}.*{pattern}"):
        SampledVocabulary(**{**good, name: value})
