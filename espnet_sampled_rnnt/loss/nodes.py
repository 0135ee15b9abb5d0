"""The nodes of the lattice: which there are, in what order, in what chunks.

A node is (b, t, u) with t < T_b and u <= U_b. The nodes of a group of utterances
lie one after the other: by utterance, then by frame, then by label. Padding is no
node. Two kinds of chunk do the same work: :class:`BlockChunk` walks over
rectangles of frames and labels with views, which suits a CPU;
:class:`GatherChunk` uses index tensors, a few kernels for any number of
utterances, which suits an accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NodeSet:
    """The valid nodes of a batch.

    Attributes:
        frames: T_b of each utterance.
        labels: U_b of each utterance.
    """

    frames: tuple[int, ...]
    labels: tuple[int, ...]

    def count(self, utterance: int) -> int:
        """The number of nodes of an utterance, T_b (U_b + 1)."""
        return self.frames[utterance] * (self.labels[utterance] + 1)


@dataclass(frozen=True)
class Group:
    """Utterances that go through both passes together.

    Attributes:
        utterances: their indices in the batch.
        offsets: where the nodes of each begin in the group; one more, the total.
    """

    utterances: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the group."""
        return self.offsets[-1]

    def num_rows(self, nodes: NodeSet, padded: bool) -> int:
        """Rows of the workspace that the group takes, cut or not."""
        if not padded:
            return self.num_nodes
        return len(self.utterances) * max(nodes.count(b) for b in self.utterances)


def make_groups(nodes: NodeSet, capacity: int, padded: bool) -> list[Group]:
    """Pack utterances into groups of at most ``capacity`` rows of the workspace.

    An utterance larger than that is a group of its own, in several chunks.

    Args:
        nodes: the nodes of the batch.
        capacity: rows of the workspace.
        padded: whether each utterance of a group takes as many rows as the largest;
            utterances of like size are then put together, so that little is wasted.
    """
    order = list(range(len(nodes.frames)))
    if padded:
        order.sort(key=nodes.count, reverse=True)
    groups: list[Group] = []
    members: list[int] = []
    rows = largest = 0
    for utterance in order:
        count = nodes.count(utterance)
        largest = max(largest, count)
        after = largest * (len(members) + 1) if padded else rows + count
        if members and after > capacity:
            groups.append(_group(nodes, members))
            members, rows, largest = [], 0, count
        members.append(utterance)
        rows += count
    groups.append(_group(nodes, members))
    return groups


def _group(nodes: NodeSet, members: list[int]) -> Group:
    offsets = [0]
    for utterance in members:
        offsets.append(offsets[-1] + nodes.count(utterance))
    return Group(tuple(members), tuple(offsets))


@dataclass(frozen=True)
class Block:
    """A rectangle of nodes of one utterance: frames by labels, end excluded."""

    utterance: int
    frame_start: int
    frame_end: int
    label_start: int
    label_end: int

    @property
    def shape(self) -> tuple[int, int]:
        """Frames and label positions of the block."""
        return self.frame_end - self.frame_start, self.label_end - self.label_start

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the block."""
        frames, labels = self.shape
        return frames * labels


class BlockChunk:
    """Blocks whose nodes follow each other in their group.

    Attributes:
        utterances: whose output columns the chunk uses, one or (shared) any number.
        rows: shape of the chunk's node axes, (1, n).
        start, stop: the chunk's nodes in the order of the group.
    """

    def __init__(self, blocks: Sequence[Block], start: int) -> None:
        self.blocks = tuple(blocks)
        self.utterances = tuple(dict.fromkeys(block.utterance for block in blocks))
        self.start = start
        self.stop = start + sum(block.num_nodes for block in blocks)
        self.rows = (1, self.stop - self.start)

    def _parts(self, rows: Tensor) -> list[tuple[Block, Tensor]]:
        """``rows`` (1, n, D) by block, each as a (frames, labels, D) view."""
        parts, position = [], 0
        for block in self.blocks:
            end = position + block.num_nodes
            parts.append(
                (block, rows[0, position:end].view(*block.shape, rows.size(2)))
            )
            position = end
        return parts

    def joint_input(self, enc: Tensor, dec: Tensor, out: Tensor) -> Tensor:
        """Write enc[b, t] + dec[b, u] into ``out`` (1, n, J) and return it."""
        for block, part in self._parts(out):
            frames = enc[block.utterance, block.frame_start : block.frame_end]
            labels = dec[block.utterance, block.label_start : block.label_end]
            # To the wide type first: a sum in half precision would lose bits.
            torch.add(
                frames.to(out.dtype)[:, None], labels.to(out.dtype)[None], out=part
            )
        return out

    def add_gradient(
        self, gradient: Tensor, enc_grad: Tensor | None, dec_grad: Tensor | None
    ) -> None:
        """Add ``gradient`` (1, n, J) to the gradients of enc and dec."""
        for block, part in self._parts(gradient):
            if enc_grad is not None:
                enc_grad[block.utterance, block.frame_start : block.frame_end].add_(
                    part.sum(dim=1)
                )
            if dec_grad is not None:
                dec_grad[block.utterance, block.label_start : block.label_end].add_(
                    part.sum(dim=0)
                )

    def arc_columns(self, columns: Tensor) -> Tensor:
        """The columns of blank and of the next label, (1, n, 2) int64.

        Args:
            columns: (B, U + 1, 2) int64, by utterance and label position.
        """
        parts = [
            columns[block.utterance, block.label_start : block.label_end].expand(
                block.shape[0], -1, -1
            )
            for block in self.blocks
        ]
        flat = [part.reshape(-1, 2) for part in parts]
        return (flat[0] if len(flat) == 1 else torch.cat(flat))[None]

    def of_utterance(self, values: Tensor) -> Tensor:
        """``values`` (B,) at the utterance of each node, as (1, n, 1)."""
        parts = [
            values[block.utterance].expand(block.num_nodes) for block in self.blocks
        ]
        return torch.cat(parts)[None, :, None]

    def read(self, values: Tensor) -> Tensor:
        """The chunk's part of ``values`` (nodes of the group, D), as (1, n, D)."""
        return values[self.start : self.stop][None]

    def write(self, values: Tensor, part: Tensor) -> None:
        """Put ``part`` (1, n, D) into ``values`` (nodes of the group, D)."""
        values[self.start : self.stop] = part[0]


class GatherChunk:
    """Nodes by index: G utterances by n nodes, or one row of n nodes of any.

    Rows that stand for no node repeat the last node of their utterance; they are
    written to the same place with the same value and get no gradient.

    Attributes: as of :class:`BlockChunk`; ``rows`` is (G, n).
    """

    def __init__(
        self,
        utterances: tuple[int, ...],
        position: Tensor,
        table: GroupTable,
        member: Tensor,
        local: Tensor,
        valid: Tensor | None,
    ) -> None:
        width = table.label_positions[member]
        self.utterances = utterances
        self.rows = tuple(position.shape)
        self._position = position
        self._valid = valid
        self._utterance = table.utterance[member]
        self._frame = local // width
        self._label = local % width

    def joint_input(self, enc: Tensor, dec: Tensor, out: Tensor) -> Tensor:
        """As :meth:`BlockChunk.joint_input`, for ``out`` (G, n, J)."""
        out.copy_(enc[self._utterance, self._frame])
        return out.add_(dec[self._utterance, self._label])

    def add_gradient(
        self, gradient: Tensor, enc_grad: Tensor | None, dec_grad: Tensor | None
    ) -> None:
        """As :meth:`BlockChunk.add_gradient`, for ``gradient`` (G, n, J)."""
        flat = gradient.flatten(0, 1)
        for total, index in ((enc_grad, self._frame), (dec_grad, self._label)):
            if total is not None:
                rows = (self._utterance * total.size(1) + index).flatten()
                total.view(-1, total.size(2)).index_add_(0, rows, flat)

    def arc_columns(self, columns: Tensor) -> Tensor:
        """As :meth:`BlockChunk.arc_columns`, (G, n, 2)."""
        return columns[self._utterance, self._label]

    def of_utterance(self, values: Tensor) -> Tensor:
        """As :meth:`BlockChunk.of_utterance`, (G, n, 1)."""
        return values[self._utterance][..., None]

    def read(self, values: Tensor) -> Tensor:
        """As :meth:`BlockChunk.read`; rows that stand for no node are 0."""
        part = values[self._position]
        if self._valid is not None:
            part = part.masked_fill(~self._valid[..., None], 0.0)
        return part

    def write(self, values: Tensor, part: Tensor) -> None:
        """As :meth:`BlockChunk.write`."""
        values[self._position] = part


Chunk = BlockChunk | GatherChunk


@dataclass(frozen=True)
class GroupTable:
    """What :class:`GatherChunk` looks up by member of the group, on the device.

    Attributes:
        utterance: (G,) int64, index in the batch.
        label_positions: (G,) int64, U_b + 1.
        offset: (G,) int64, first node in the group.
        count: (G,) int64, number of nodes.
    """

    utterance: Tensor
    label_positions: Tensor
    offset: Tensor
    count: Tensor

    @classmethod
    def of(cls, nodes: NodeSet, group: Group, device: torch.device) -> GroupTable:
        """The table of ``group``, moved to ``device`` in one transfer."""
        rows = torch.tensor(
            [
                group.utterances,
                [nodes.labels[b] + 1 for b in group.utterances],
                group.offsets[:-1],
                [nodes.count(b) for b in group.utterances],
            ],
            dtype=torch.int64,
        ).to(device, non_blocking=True)
        return cls(*rows)


def block_chunks(
    nodes: NodeSet, group: Group, capacity: int, shared: bool
) -> list[BlockChunk]:
    """Chunks of ``group`` with at most ``capacity`` nodes each.

    A chunk crosses utterances only where all use the same output columns
    (``shared``). An utterance that does not fit is cut into chunks of like size,
    by frames, and where not even a frame fits, by labels.
    """
    if shared and group.num_nodes <= capacity:
        blocks = [
            Block(b, 0, nodes.frames[b], 0, nodes.labels[b] + 1)
            for b in group.utterances
        ]
        return [BlockChunk(blocks, 0)]
    chunks = []
    for utterance, start in zip(group.utterances, group.offsets, strict=False):
        for block in _cut(utterance, nodes, capacity):
            chunks.append(BlockChunk([block], start))
            start = chunks[-1].stop
    return chunks


def _cut(utterance: int, nodes: NodeSet, capacity: int) -> list[Block]:
    frames, labels = nodes.frames[utterance], nodes.labels[utterance] + 1
    if labels <= capacity:
        step = _even_step(frames, capacity // labels)
        return [
            Block(utterance, t, min(t + step, frames), 0, labels)
            for t in range(0, frames, step)
        ]
    step = _even_step(labels, capacity)
    return [
        Block(utterance, t, t + 1, u, min(u + step, labels))
        for t in range(frames)
        for u in range(0, labels, step)
    ]


def _even_step(length: int, largest: int) -> int:
    """The step that cuts ``length`` into as few and as even parts as it can."""
    parts = -(-length // largest)
    return -(-length // parts)


def gather_chunks(
    nodes: NodeSet, group: Group, capacity: int, shared: bool, device: torch.device
) -> list[GatherChunk]:
    """As :func:`block_chunks`, as index tensors on ``device``."""
    table = GroupTable.of(nodes, group, device)
    members = len(group.utterances)
    if shared or members == 1:
        step = _even_step(group.num_nodes, capacity)
        chunks = []
        for start in range(0, group.num_nodes, step):
            stop = min(start + step, group.num_nodes)
            position = torch.arange(start, stop, device=device)[None]
            member = torch.bucketize(position, table.offset, right=True) - 1
            local = position - table.offset[member]
            chunks.append(
                GatherChunk(group.utterances, position, table, member, local, None)
            )
        return chunks
    largest = max(nodes.count(b) for b in group.utterances)
    step = _even_step(largest, max(1, capacity // members))
    member = torch.arange(members, device=device)[:, None]
    chunks = []
    for start in range(0, largest, step):
        local = torch.arange(start, min(start + step, largest), device=device)[None]
        valid = local < table.count[:, None]
        local = torch.minimum(local, table.count[:, None] - 1)
        chunks.append(
            GatherChunk(
                group.utterances,
                table.offset[:, None] + local,
                table,
                member.expand_as(local),
                local,
                valid,
            )
        )
    return chunks
