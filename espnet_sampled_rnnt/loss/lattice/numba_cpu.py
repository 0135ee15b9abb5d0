"""The lattice on a CPU with numba, utterances in parallel.

Backward recursion first, then the occupancies as a flow. At each node the backward
recursion knows how the probability of all paths from here splits between blank and
label; the occupancies are the mass 1 that starts at (0, 0) and follows those
splits: two transcendental functions a node in all, where the textbook's alpha,
beta and occupancies take six, and no array beside ``arcs``. The running row of
beta is float64, so that long utterances lose no digits.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from espnet_sampled_rnnt.loss.lattice.base import Backend

# Below this, starting a thread costs more than it saves.
_NODES_FOR_A_THREAD = 20_000


def _backward_recursion(arcs, num_frames, num_positions, keep_splits):
    """-beta(0, 0); where asked, ``arcs`` becomes the splits of each node."""
    last = num_positions - 1
    beta = np.empty(num_positions, dtype=np.float64)
    for t in range(num_frames - 1, -1, -1):
        for u in range(last, -1, -1):
            node = t * num_positions + u
            if t == num_frames - 1:
                by_blank = np.float64(arcs[node, 0]) if u == last else -math.inf
            else:
                by_blank = arcs[node, 0] + beta[u]
            by_label = arcs[node, 1] + beta[u + 1] if u < last else -math.inf
            # The smaller of the two relative to the larger; NaN goes to the last
            # branch and stays NaN.
            if by_blank == -math.inf and by_label == -math.inf:
                total = -math.inf
                blank_share = 0.0
                label_share = 0.0
            elif by_blank >= by_label:
                ratio = math.exp(by_label - by_blank)
                total = by_blank + math.log1p(ratio)
                blank_share = 1.0 / (1.0 + ratio)
                label_share = ratio * blank_share
            else:
                ratio = math.exp(by_blank - by_label)
                total = by_label + math.log1p(ratio)
                label_share = 1.0 / (1.0 + ratio)
                blank_share = ratio * label_share
            beta[u] = total
            if keep_splits:
                arcs[node, 0] = blank_share
                arcs[node, 1] = label_share
    return -beta[0]


def _flow(arcs, num_frames, num_positions, scratch):
    """``arcs`` from splits to occupancies: let mass 1 flow from node (0, 0)."""
    scratch[:] = 0.0
    scratch[0] = 1.0
    for t in range(num_frames):
        from_label = 0.0
        for u in range(num_positions):
            node = t * num_positions + u
            mass = scratch[u] + from_label
            by_blank = mass * arcs[node, 0]
            from_label = mass * arcs[node, 1]
            arcs[node, 0] = by_blank
            arcs[node, 1] = from_label
            scratch[u] = by_blank


def _run_some(arcs, offsets, frames, positions, losses, first, step, occupancies):
    for utterance in range(first, len(frames), step):
        part = arcs[offsets[utterance] : offsets[utterance + 1]]
        t, u = frames[utterance], positions[utterance]
        loss = _backward_recursion_compiled(part, t, u, occupancies)
        losses[utterance] = loss
        if occupancies:
            if math.isfinite(loss):
                _flow_compiled(part, t, u, np.empty(u, dtype=np.float64))
            else:
                part[:] = 0.0


def _compile(function: Callable) -> Callable:
    try:
        # The compiled code is kept beside the module, or in the user's cache.
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither can be written
        return numba.njit(nogil=True)(function)


_backward_recursion_compiled = _compile(_backward_recursion)
_flow_compiled = _compile(_flow)
_run_some_compiled = _compile(_run_some)


class NumbaBackend(Backend):
    """CPU, float32 and float64."""

    name = "numba"

    def unavailable(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> str | None:
        """See :meth:`Backend.unavailable`."""
        if device.type != "cpu":
            return f"it runs on a CPU, not on {device.type}; choose auto"
        return None

    def run(
        self,
        arcs: Tensor,
        frames: Sequence[int],
        labels: Sequence[int],
        occupancies: bool,
    ) -> Tensor:
        """See :meth:`Backend.run`."""
        frame_counts = np.asarray(frames, dtype=np.int64)
        positions = np.asarray(labels, dtype=np.int64) + 1
        counts = frame_counts * positions
        offsets = np.concatenate(([0], np.cumsum(counts)))
        losses = np.empty(len(frame_counts), dtype=np.float64)
        threads = min(
            torch.get_num_threads(),
            len(frame_counts),
            max(1, int(offsets[-1]) // _NODES_FOR_A_THREAD),
        )
        values = arcs.detach().numpy()

        def work(first: int) -> None:
            _run_some_compiled(
                values,
                offsets,
                frame_counts,
                positions,
                losses,
                first,
                threads,
                occupancies,
            )

        # Plain threads on code that holds no lock: numba's own thread pools may
        # not be used beside a fork or from two threads at once, these may.
        others = [threading.Thread(target=work, args=(i,)) for i in range(1, threads)]
        for thread in others:
            thread.start()
        work(0)
        for thread in others:
            thread.join()
        return torch.from_numpy(losses).to(arcs.dtype)
