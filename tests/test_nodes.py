"""Nodes, groups and chunks, and the accelerator's way of chunking on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.batches import Batch, gradients, make_batch, options_of, relative_error
from support.reference import reference_losses

from espnet_sampled_rnnt.loss.nodes import (
    NodeSet,
    block_chunks,
    gather_chunks,
    make_groups,
)
from espnet_sampled_rnnt.loss.options import LossOptions
from espnet_sampled_rnnt.loss.transducer import make_problem
from espnet_sampled_rnnt.loss.two_pass import TwoPass

CPU = torch.device("cpu")

lattices = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=7
)
capacities = st.integers(1, 80)


def node_set(shapes) -> NodeSet:
    return NodeSet(tuple(t for t, _ in shapes), tuple(u for _, u in shapes))


def all_nodes(nodes: NodeSet, utterances) -> list[tuple[int, int, int]]:
    return [
        (b, t, u)
        for b in utterances
        for t in range(nodes.frames[b])
        for u in range(nodes.labels[b] + 1)
    ]


@given(lattices, capacities, st.booleans())
def test_groups_hold_each_utterance_once_and_fit(shapes, capacity, padded):
    nodes = node_set(shapes)
    groups = make_groups(nodes, capacity, padded)
    members = [b for group in groups for b in group.utterances]
    assert sorted(members) == list(range(len(shapes)))
    for group in groups:
        counts = [nodes.count(b) for b in group.utterances]
        assert group.num_nodes == sum(counts)
        assert list(group.offsets) == [sum(counts[:i]) for i in range(len(counts) + 1)]
        rows = group.num_rows(nodes, padded)
        assert rows == (max(counts) * len(counts) if padded else sum(counts))
        assert rows <= capacity or len(counts) == 1


@given(lattices, capacities, st.booleans())
def test_block_chunks_walk_over_all_nodes_in_order(shapes, capacity, shared):
    nodes = node_set(shapes)
    for group in make_groups(nodes, capacity, padded=False):
        seen, position = [], 0
        for chunk in block_chunks(nodes, group, capacity, shared):
            assert chunk.start == position
            assert 1 <= chunk.stop - chunk.start <= capacity
            assert chunk.rows == (1, chunk.stop - chunk.start)
            assert shared or len(chunk.utterances) == 1
            position = chunk.stop
            seen += [
                (block.utterance, t, u)
                for block in chunk.blocks
                for t in range(block.frame_start, block.frame_end)
                for u in range(block.label_start, block.label_end)
            ]
        assert seen == all_nodes(nodes, group.utterances)


def marked(nodes: NodeSet) -> tuple[torch.Tensor, torch.Tensor]:
    """enc and dec whose sum names the node: b, t and u; NaN on padding."""
    batch, frames = len(nodes.frames), max(nodes.frames)
    positions = max(nodes.labels) + 1
    enc = torch.full((batch, frames, 3), torch.nan)
    dec = torch.full((batch, positions, 3), torch.nan)
    for b in range(batch):
        for t in range(nodes.frames[b]):
            enc[b, t] = torch.tensor([b, t, 0])
        for u in range(nodes.labels[b] + 1):
            dec[b, u] = torch.tensor([0, 0, u])
    return enc, dec


def chunks_of(kind: str, nodes: NodeSet, group, capacity: int, shared: bool):
    if kind == "gather":
        return gather_chunks(nodes, group, capacity, shared, CPU)
    return block_chunks(nodes, group, capacity, shared)


@pytest.mark.parametrize("kind", ["gather", "block"])
@given(lattices, capacities, st.booleans())
def test_both_kinds_of_chunk_do_the_same(kind, shapes, capacity, shared):
    nodes = node_set(shapes)
    enc, dec = marked(nodes)
    padded = kind == "gather" and not shared
    columns = torch.arange(2 * dec[..., 0].numel()).view(len(shapes), -1, 2)
    per_utterance = torch.arange(len(shapes))
    enc_total, dec_total = torch.zeros_like(enc), torch.zeros_like(dec)
    for group in make_groups(nodes, capacity, padded):
        expected = all_nodes(nodes, group.utterances)
        names = torch.full((group.num_nodes, 3), -1.0)
        for chunk in chunks_of(kind, nodes, group, capacity, shared):
            assert chunk.rows[0] * chunk.rows[1] <= capacity
            assert set(chunk.utterances) <= set(group.utterances)
            found = chunk.joint_input(enc, dec, torch.empty(*chunk.rows, 3))
            chunk.write(names, found)
            b, _, u = found.long().unbind(-1)
            assert torch.equal(chunk.arc_columns(columns), columns[b, u])
            assert torch.equal(chunk.of_utterance(per_utterance)[..., 0], b)
            # What is read stands where it was written, or is 0 where there is no node.
            back = chunk.read(names)
            real = (back == found).all(dim=-1)
            assert (real | (back == 0).all(dim=-1)).all()
            ones = chunk.read(torch.ones(group.num_nodes, 3))
            chunk.add_gradient(ones, enc_total, None)
            chunk.add_gradient(ones, None, dec_total)
        assert torch.equal(names, torch.tensor(expected, dtype=torch.float32))
    for b, (frames, labels) in enumerate(shapes):
        assert (enc_total[b, :frames] == labels + 1).all()
        assert (dec_total[b, : labels + 1] == frames).all()
        assert (enc_total[b, frames:] == 0).all()
        assert (dec_total[b, labels + 1 :] == 0).all()


# ---- the whole loss through index tensors


def gathered_loss(batch: Batch, vocabulary=None, correction=0.0, **options):
    """The loss as an accelerator computes it, on a CPU."""
    checked = {
        "activation": "tanh",
        "blank": 0,
        "reduction": "mean",
        "fastemit_lambda": 0.0,
        "backend": "auto",
        "chunk_bytes": None,
        **options,
    }
    problem = make_problem(
        *batch.arguments, vocabulary, LossOptions.checked(correction, **checked)
    )
    assert not problem.gather
    return TwoPass.apply(*batch.floats, replace(problem, gather=True), True)


@pytest.mark.parametrize("mode", ["full", "example", "batch"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize(("with_bias", "activation"), [(True, "tanh"), (False, "mish")])
@pytest.mark.parametrize("chunk_bytes", [1, 2500, 9000, None])
def test_gathered_equals_blocks(mode, reduction, with_bias, activation, chunk_bytes):
    batch = make_batch(
        (7, 4, 5, 1, 6),
        (3, 5, 0, 2, 3),
        vocab_size=30,
        dtype=torch.float64,
        with_bias=with_bias,
        extra_frames=1,
    )
    options = {**options_of(batch, mode), "activation": activation}
    loss = gathered_loss(batch, reduction=reduction, chunk_bytes=chunk_bytes, **options)
    expected = batch.loss(reduction=reduction, **options)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, batch), gradients(expected, batch))


@pytest.mark.parametrize("mode", ["full", "example", "batch"])
@pytest.mark.parametrize("backend", ["reference", "numba", "torchaudio"])
def test_gathered_equals_the_formulas_in_float32(mode, backend):
    batch = make_batch(vocab_size=30, extra_labels=2)
    options = options_of(batch, mode)
    truth = batch.copy(dtype=torch.float64)
    expected = reference_losses(*truth.arguments, **options)
    loss = gathered_loss(
        batch, reduction="none", backend=backend, chunk_bytes=5000, **options
    )
    assert relative_error(loss, expected) < 1e-6
    for mine, exact in zip(
        gradients(loss, batch), gradients(expected, truth), strict=True
    ):
        assert relative_error(mine, exact) < 3e-5


@pytest.mark.parametrize("mode", ["full", "example", "batch"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("chunk_bytes", [1, 5000, None])
def test_gathered_keeps_a_bad_utterance_to_itself(mode, reduction, chunk_bytes):
    batch = make_batch(vocab_size=30)
    options = {**options_of(batch, mode), "reduction": reduction}
    bad = batch.copy()
    with torch.no_grad():
        bad.enc[1, 2, 0] = torch.nan
    loss = gathered_loss(bad, chunk_bytes=chunk_bytes, **options)
    found = torch.autograd.grad(loss.sum(), bad.leaves)
    losses = batch.loss(**{**options, "reduction": "none"})
    wanted = torch.autograd.grad(losses[[0, 2, 3]].sum(), batch.leaves)
    if reduction == "none":
        torch.testing.assert_close(loss[[0, 2, 3]], losses[[0, 2, 3]])
        assert not torch.isfinite(loss[1])
    for mine, other in zip(found, wanted, strict=True):
        assert relative_error(mine, other) < 1e-5


def test_gathered_works_in_half_precision():
    batch = make_batch(vocab_size=30, dtype=torch.float16)
    options = options_of(batch, "example")
    loss = gathered_loss(batch, **options)
    expected = batch.loss(**options)
    torch.testing.assert_close(loss, expected)
    for mine, other in zip(
        gradients(loss, batch), gradients(expected, batch), strict=True
    ):
        assert mine.dtype == torch.float16
        assert relative_error(mine, other) <= torch.finfo(torch.float16).eps
