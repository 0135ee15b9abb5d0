"""Bytes that torch allocates for the loss, counted; nothing here is timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.batches import Batch, make_batch, options_of
from support.memory import counted_peak, run_isolated
from test_nodes import gathered_loss

from espnet_sampled_rnnt.loss.memory import peak_bytes

MODES = pytest.mark.parametrize("mode", ["full", "example", "batch"])


def gradient_bytes(batch: Batch, names=("enc", "dec", "weight", "bias")) -> int:
    tensors = [getattr(batch, name) for name in names]
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)


def counted(batch: Batch, loss=Batch.loss, **options) -> int:
    """Peak of forward and backward, the gradients kept; a first run warms up."""

    def both():
        value = loss(batch, **options).sum()
        value.backward()
        return value

    both()
    for leaf in batch.leaves:
        leaf.grad = None
    return counted_peak(both)


def test_the_counter_counts():
    kept = torch.ones(1000)

    def work():
        first = torch.zeros(100_000)  # 400 kB
        second = first + 1.0
        del first
        third = second * 2.0
        del second, third
        return kept.clone()

    assert 800_000 <= counted_peak(work) < 801_000
    assert counted_peak(lambda: None) == 0
    result = run_isolated(
        """
        import torch
        result["peak"] = counted_peak(lambda: torch.zeros(values["n"]))
        """,
        n=5000,
    )
    assert result["peak"] == 20_000


@MODES
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("activation", ["tanh", "mish"])
@pytest.mark.parametrize("kind", ["block", "gather"])
def test_no_tensor_of_nodes_is_ever_whole(mode, reduction, activation, kind):
    """19,280 nodes: times J 4.9 MB, times K at least 2.1 MB, times V 7.7 MB."""
    batch = make_batch(
        (200, 150, 180, 30), (40, 30, 30, 14), vocab_size=100, joint_size=64
    )
    nodes = int((batch.enc_lengths * (batch.target_lengths + 1)).sum())
    options = options_of(batch, mode, 20)
    columns = 100 if mode == "full" else int(options["vocabulary"].sizes.min())
    smallest_whole = 4 * nodes * min(columns, 64)
    peak = counted(
        batch,
        Batch.loss if kind == "block" else gathered_loss,
        reduction=reduction,
        activation=activation,
        chunk_bytes=200_000,
        **options,
    )
    assert peak - gradient_bytes(batch) < smallest_whole / 2
    # Beyond the workspace there are a few floats a node, at most of all utterances,
    # and of one group the indices that an accelerator looks up.
    few = 16 * nodes + (48 * 200 * 41 if kind == "gather" else 0)
    assert peak - gradient_bytes(batch) < 500_000 + few


@MODES
def test_the_workspace_does_not_grow_with_the_batch(mode):
    """From B 8 to 256, T 150, U 15, V 500, beyond the gradients of enc and dec."""
    beyond = []
    for size in (8, 64, 256):
        batch = make_batch(
            (150,) * size, (15,) * size, vocab_size=500, joint_size=32, garbage=False
        )
        # The vocabulary would else grow with the labels, and fewer utterances fit.
        batch.targets.copy_(torch.arange(1, 16))
        options = options_of(batch, mode, 60)
        if mode != "full":
            # Small enough that eight utterances fill it.
            options["chunk_bytes"] = 2**23
        peak = counted(batch, **options)
        beyond.append(peak - gradient_bytes(batch, ("enc", "dec")))
    assert max(beyond) <= 1.1 * min(beyond)
    assert max(beyond) < 16 * 2**20  # 12 MiB of chunks and what is beside them


@MODES
@pytest.mark.parametrize("chunk_bytes", [100_000, 1_000_000, 4_000_000])
def test_chunk_bytes_is_the_size_of_the_workspace(mode, chunk_bytes):
    batch = make_batch((200,) * 4, (30,) * 4, vocab_size=100, joint_size=64)
    options = options_of(batch, mode, 20)
    peak = counted(batch, chunk_bytes=chunk_bytes, **options)
    # The gathered rows of the output layer, their gradient, and a group's arcs.
    beside = 4 * gradient_bytes(batch, ("weight", "bias")) + 8 * 200 * 31
    beyond = peak - gradient_bytes(batch)
    assert 0.7 * chunk_bytes < beyond < 1.05 * chunk_bytes + beside


def test_without_gradients_there_are_none():
    """V x J is 5 MB here; the first pass alone needs none of it."""
    batch = make_batch((40, 30), (10, 8), vocab_size=20_000, joint_size=64)
    options = options_of(batch, "example", 50)

    def value():
        with torch.no_grad():
            return batch.loss(chunk_bytes=300_000, **options)

    value()
    assert counted_peak(value) < 500_000


@pytest.mark.parametrize("frozen", ["weight", "enc"])
def test_a_frozen_input_has_no_gradient_in_memory(frozen):
    batch = make_batch((400, 300), (3, 4), vocab_size=9000, joint_size=64)
    options = {"chunk_bytes": 100_000, **options_of(batch, "example", 50)}
    whole = counted(batch, **options)
    part = batch.copy()
    getattr(part, frozen).requires_grad_(False)
    saved = whole - counted(part, **options)
    assert saved > 0.9 * gradient_bytes(batch, (frozen,))


def test_half_precision_needs_no_whole_logits_either():
    batch = make_batch(
        (200, 150), (40, 30), vocab_size=100, joint_size=64, dtype=torch.bfloat16
    )
    nodes = int((batch.enc_lengths * (batch.target_lengths + 1)).sum())
    peak = counted(batch, chunk_bytes=200_000)
    # Gradients in float32 and in the input's type, and a chunk.
    assert peak < 3 * gradient_bytes(batch) + 400_000 + 8 * nodes
    assert peak - 3 * gradient_bytes(batch) < 4 * nodes * 64 / 2


@pytest.mark.parametrize("mode", ["example", "batch"])
def test_the_vocabulary_size_costs_only_the_dense_gradient(mode):
    """From V 1,000 to 250,000 at S 512."""
    beyond = []
    for vocab_size in (1000, 20_000, 250_000):
        batch = make_batch((60, 50), (10, 12), vocab_size=vocab_size, joint_size=16)
        batch = replace(batch, targets=batch.targets.clamp(max=999))
        peak = counted(batch, **options_of(batch, mode, 512))
        beyond.append(peak - gradient_bytes(batch, ("weight", "bias")))
    assert max(beyond) <= 1.1 * beyond[0]


SHAPES = {
    "alike": ((50,) * 4, (10,) * 4),
    "ragged": ((60, 33, 7, 1), (10, 20, 3, 0)),
    "one": ((200,), (30,)),
}


@MODES
@pytest.mark.parametrize("frames_and_labels", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("vocab_size", "joint_size", "samples", "chunk_bytes"),
    [
        (100, 32, 30, None),
        (100, 32, 30, 200_000),
        (1000, 64, 100, 1_000_000),
        (300, 200, 20, 100_000),
    ],
)
def test_the_model_of_the_bytes_tells_what_is_counted(
    mode, frames_and_labels, vocab_size, joint_size, samples, chunk_bytes
):
    frames, labels = frames_and_labels
    batch = make_batch(frames, labels, vocab_size=vocab_size, joint_size=joint_size)
    options = options_of(batch, mode, samples)
    size = None if mode == "full" else options["vocabulary"].token_ids.size(1)
    told = peak_bytes(
        frames,
        labels,
        joint_size=joint_size,
        vocab_size=vocab_size,
        sampled_size=size,
        shared=mode == "batch",
        chunk_bytes=chunk_bytes,
    )
    peak = counted(batch, chunk_bytes=chunk_bytes, **options)
    assert peak == pytest.approx(told, rel=0.1)
