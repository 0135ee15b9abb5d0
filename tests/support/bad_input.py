"""Good arguments of the loss, to be spoilt one at a time."""

from __future__ import annotations

import pytest

from espnet_sampled_rnnt import transducer_loss
from support.batches import make_batch

V = 9
NAMES = (
    "enc",
    "dec",
    "weight",
    "bias",
    "targets",
    "enc_lengths",
    "target_lengths",
)


def arguments() -> dict:
    """Of a loss of three utterances: T 5, U 4, V 9, J 6."""
    batch = make_batch((5, 3, 4), (2, 4, 0), vocab_size=V, garbage=False)
    return dict(zip(NAMES, batch.arguments, strict=True))


def refused(pattern: str, **changes) -> None:
    with pytest.raises(ValueError, match=pattern):
        transducer_loss(**{**arguments(), **changes})
