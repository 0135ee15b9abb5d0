"""How many bytes the loss takes, told in advance from the shapes.

A model of the allocations of :mod:`espnet_sampled_rnnt.loss.passes`, kept beside
it and checked against counted bytes by ``tests/test_loss_memory.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from espnet_sampled_rnnt.loss.nodes import NodeSet, make_groups
from espnet_sampled_rnnt.loss.options import DEFAULT_CHUNK_BYTES

# Bytes of a row beside logits, h and gradient: arcs, their columns and indices.
ROW_OVERHEAD_BYTES = 32
# Bytes of the index tensors of a row, where chunks are gathered.
INDEX_BYTES = 5 * 8


def row_bytes(
    columns: int, joint_size: int, itemsize: int = 4, hidden_copies: int = 2
) -> int:
    """Workspace of one lattice node in bytes.

    Args:
        columns: K, the tokens of the softmax.
        joint_size: J.
        itemsize: of the computing type, 4 for float32.
        hidden_copies: arrays of h's size: h and its gradient, more where the
            derivative of the activation does not follow from its output.
    """
    return itemsize * (columns + hidden_copies * joint_size) + ROW_OVERHEAD_BYTES


def peak_bytes(
    frames: Sequence[int],
    labels: Sequence[int],
    *,
    joint_size: int,
    vocab_size: int,
    sampled_size: int | None = None,
    shared: bool = False,
    chunk_bytes: int | None = None,
    device_type: str = "cpu",
    bias: bool = True,
) -> int:
    """Bytes that a forward and backward of the loss take beyond its inputs.

    For float32 and a reduction of "mean" or "sum": the gradients of enc, dec and
    the output layer, and the workspace.

    Args:
        frames: T_b of each utterance.
        labels: U_b of each utterance.
        joint_size: J.
        vocab_size: V.
        sampled_size: K, the largest sampled vocabulary; None for the full softmax.
        shared: whether all utterances use one sampled vocabulary (batch scope).
        chunk_bytes: as given to the loss; None for the default of the device.
        device_type: "cpu" or "cuda".
        bias: whether the output layer has one.
    """
    width = 4
    nodes = NodeSet(tuple(frames), tuple(labels))
    columns = vocab_size if sampled_size is None else sampled_size
    one_vocabulary = shared or sampled_size is None
    gather = device_type != "cpu"
    limit = chunk_bytes or DEFAULT_CHUNK_BYTES["cuda" if gather else "cpu"]
    capacity = max(1, limit // row_bytes(columns, joint_size, width))
    padded = gather and not one_vocabulary

    groups = make_groups(nodes, capacity, padded)
    rows = max(min(group.num_rows(nodes, padded), capacity) for group in groups)
    per_row = row_bytes(columns, joint_size, width)
    index = 0
    if gather:
        # Of all chunks of a group, and of the group before, which goes as it comes.
        sizes = [0, *(group.num_rows(nodes, padded) for group in groups)]
        index = INDEX_BYTES * max(a + b for a, b in pairwise(sizes))

    batch = len(nodes.frames)
    node_gradients = width * batch * (max(frames) + max(labels) + 1) * joint_size
    output_row = width * (joint_size + int(bias))
    dense = vocab_size * output_row
    accumulator, gathered = dense, 0
    if sampled_size is not None:
        # The tokens that occur in any utterance, as many as uniform draws would give;
        # and the sampled rows of the output layer and of their gradient.
        missed = (1.0 - columns / vocab_size) ** (1 if shared else batch)
        occur = round(vocab_size * (1.0 - missed))
        if shared or 2 * occur <= vocab_size:
            accumulator = occur * output_row
        members = max(len(group.utterances) for group in groups) if padded else 1
        gathered = 2 * members * columns * output_row
    arcs = 2 * width * max(group.num_nodes for group in groups)
    forward = node_gradients + accumulator + gathered + rows * per_row + index + arcs
    # The workspace is gone when the dense gradient is made.
    backward = node_gradients + accumulator
    if accumulator != dense:
        backward += dense
    return max(forward, backward)
