"""Peak bytes of the losses for a batch, and the worst batch of many.

All in float32, as :func:`espnet_sampled_rnnt.loss.memory.peak_bytes`: what a forward
and backward of the loss take beyond the projected encoder and prediction network
outputs, gradients of the joint network's output layer included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from espnet_sampled_rnnt.commands.memory.batches import Batch
from espnet_sampled_rnnt.commands.memory.model import Model
from espnet_sampled_rnnt.loss.memory import peak_bytes

__all__ = ["LOSSES", "Worst", "loss_bytes", "sampled_sizes", "stock_bytes", "worst"]

LOSSES = ("stock", "full", "sampled")

_FLOAT = 4
# Of a lattice of whole logits: alpha, beta, normaliser.
_FLOATS_OF_A_NODE = 3
# Batches that are looked at closely, for each measure of size.
_NUM_CANDIDATES = 8


@dataclass(frozen=True)
class Worst:
    """The batch that takes most.

    Attributes:
        total_bytes: of the loss and of what the rest keeps for backward.
        loss_bytes: of the loss alone.
        kept_bytes: of the rest; 0 where it is not known.
        utterances: B.
        frames: T, the longest.
        labels: U, the most.
    """

    total_bytes: int
    loss_bytes: int
    kept_bytes: int
    utterances: int
    frames: int
    labels: int


def stock_bytes(
    frames: Sequence[int], labels: Sequence[int], joint_size: int, vocab_size: int
) -> int:
    """Peak of a loss on whole logits, padding included.

    ESPnet's joint network keeps h (J floats a node) for backward and makes the logits
    (V); the loss makes their gradient (V). torchaudio's, warp-transducer's on a GPU
    and our drop-in all hold these two at once. Then the gradient of the logits
    becomes that of h, and that of h the gradient of its input.

    Args:
        frames: T_b of each utterance.
        labels: U_b of each utterance.
        joint_size: J.
        vocab_size: V.
    """
    nodes = len(frames) * max(frames) * (max(labels) + 1)
    at_the_loss = joint_size + 2 * vocab_size + _FLOATS_OF_A_NODE
    behind_it = max(2 * joint_size + vocab_size, 3 * joint_size)
    output_layer = vocab_size * (joint_size + 1)
    return _FLOAT * max(nodes * at_the_loss, nodes * behind_it + output_layer)


def sampled_sizes(model: Model, labels: Sequence[int]) -> list[int | None]:
    """K at each point of the schedule of S, None for the full softmax.

    Shape files tell how many labels an utterance has, not which: as many differ as
    would if all tokens were equally frequent, which is more than really do.
    """
    others = model.vocabulary_size - 1
    count = sum(labels) if _is_shared(model) else max(labels)
    distinct = others * (1.0 - (1.0 - 1.0 / max(others, 1)) ** count)
    return [
        None
        if samples == 0
        else min(model.vocabulary_size, int(samples) + 1 + round(distinct))
        for samples in sorted(set(model.options.num_samples_schedule.values))
    ]


def loss_bytes(loss: str, model: Model, batch: Batch, device_type: str) -> int:
    """Peak of one of :data:`LOSSES` for a batch.

    Args:
        loss: its name.
        model: of the configuration.
        batch: the utterances.
        device_type: "cpu" or "cuda": chunks and their sizes differ.
    """
    frames = model.frames(batch.speech)
    if loss == "stock":
        return stock_bytes(
            frames, batch.labels, model.joint_size, model.vocabulary_size
        )
    sizes = [None] if loss == "full" else sampled_sizes(model, batch.labels)
    return max(
        peak_bytes(
            frames,
            batch.labels,
            joint_size=model.joint_size,
            vocab_size=model.vocabulary_size,
            sampled_size=size,
            shared=_is_shared(model),
            chunk_bytes=model.options.loss_chunk_bytes,
            device_type=device_type,
            bias=model.has_bias,
        )
        for size in sizes
    )


def worst(loss: str, model: Model, batches: Sequence[Batch], device_type: str) -> Worst:
    """The batch for which the loss and what the rest keeps are largest together."""
    found = None
    for batch in _candidates(batches):
        of_loss = loss_bytes(loss, model, batch, device_type)
        kept = model.kept_bytes(batch.speech)
        if found is None or of_loss + kept > found.total_bytes:
            found = Worst(
                total_bytes=of_loss + kept,
                loss_bytes=of_loss,
                kept_bytes=kept,
                utterances=len(batch.speech),
                frames=max(model.frames(batch.speech)),
                labels=max(batch.labels),
            )
    if found is None:
        raise ValueError("there is no batch")
    return found


def _is_shared(model: Model) -> bool:
    return model.options.sampling_scope == "batch"


def _candidates(batches: Sequence[Batch]) -> Iterable[Batch]:
    """Few enough batches to look at closely, the largest in every way that counts."""
    measures: tuple[Callable[[Batch], int], ...] = (
        lambda batch: len(batch.speech) * max(batch.speech) * (max(batch.labels) + 1),
        lambda batch: len(batch.speech) * max(batch.speech),
        lambda batch: len(batch.speech) * (max(batch.labels) + 1),
        lambda batch: max(batch.speech) * (max(batch.labels) + 1),
        lambda batch: max(batch.speech),
        lambda batch: len(batch.speech),
    )
    chosen: dict[int, Batch] = {}
    for measure in measures:
        for batch in sorted(batches, key=measure, reverse=True)[:_NUM_CANDIDATES]:
            chosen[id(batch)] = batch
    return chosen.values()
