"""Many independent draws of a vocabulary at once."""

from __future__ import annotations

import torch

from espnet_sampled_rnnt import SampledVocabulary, sample_vocabulary


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(
    count: int, vocab_size: int, samples: int, seed: int = 0, **options
) -> SampledVocabulary:
    """``count`` independent draws of an utterance without labels, blank 0."""
    return sample_vocabulary(
        torch.zeros(count, 0, dtype=torch.long),
        torch.zeros(count, dtype=torch.long),
        vocab_size,
        samples,
        generator=seeded(seed),
        **options,
    )
