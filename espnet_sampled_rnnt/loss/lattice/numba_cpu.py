"""The lattice on a CPU with numba, utterances in parallel.

Backward recursion first, then the occupancies as a flow. At each node the backward
recursion knows how the probability of all paths from here splits between blank and
label; the occupancies are the mass 1 that starts at (0, 0) and follows those
splits. That needs no alpha, and no array beside ``arcs``.

The recursion runs on probabilities, not on their logarithms: a log and an exp at
every node, each waiting for the one before, would take most of the time. So that
nothing underflows, a probability is a pair (m, e) for m 2**e, in float64 with e a
whole number. What is left of transcendental functions is one polynomial for each
arc, which waits for nothing and which the compiler turns into vector instructions.
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


# The exponent that goes with a probability of 0, below that of any other; and the
# log probability below which an arc counts as one that no path takes.
_NEVER = -1e18
_LOG_ZERO = -1e12
# m is brought back between these bounds before it can grow or shrink away.
_LARGE, _LARGE_EXPONENT = 2.0**64, 64.0
# 2 ** -d for differences of exponents; at larger ones the smaller term is lost
# in float64, even if its m is _LARGE and the other's 1 / _LARGE.
_HALVES = 0.5 ** np.arange(256)
_LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts, the first short enough for exact products with whole numbers.
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10


def _powers(values, m_out, e_out):
    """(m, e) with m 2**e = exp(value), m in [0.7, 1.42], to float64's precision."""
    for i in range(len(values)):
        value = values[i]
        e = np.floor(value * _LOG2_E + 0.5)
        x = value - e * _LN2_HIGH - e * _LN2_LOW
        # Taylor's series of exp on [-0.35, 0.35].
        m = 1.0 / 479001600.0
        m = m * x + 1.0 / 39916800.0
        m = m * x + 1.0 / 3628800.0
        m = m * x + 1.0 / 362880.0
        m = m * x + 1.0 / 40320.0
        m = m * x + 1.0 / 5040.0
        m = m * x + 1.0 / 720.0
        m = m * x + 1.0 / 120.0
        m = m * x + 1.0 / 24.0
        m = m * x + 1.0 / 6.0
        m = m * x + 0.5
        m = m * x + 1.0
        m = m * x + 1.0
        never = value < _LOG_ZERO
        m_out[i] = 0.0 if never else m
        e_out[i] = _NEVER if never else e


def _backward_recursion(arcs, num_frames, num_positions, keep_splits, scratch):
    """-beta(0, 0); where asked, ``arcs`` becomes the splits of each node.

    Label positions run downwards, so all rows lie the other way round here: the last
    position comes first, and of each position the label arc before the blank one.
    ``scratch`` is (4, 2 (U + 1)) float64.
    """
    values, arc_m, arc_e, beta = scratch
    beta_m, beta_e = beta[:num_positions], beta[num_positions:]
    beta_m[:] = 0.0
    beta_e[:] = _NEVER
    # One frame behind the last, only reached from its last position.
    beta_m[0] = 1.0
    beta_e[0] = 0.0
    for t in range(num_frames - 1, -1, -1):
        row = arcs[t * num_positions : (t + 1) * num_positions]
        backwards = row.reshape(2 * num_positions)[::-1]
        for i in range(2 * num_positions):
            values[i] = backwards[i]
        _powers_compiled(values, arc_m, arc_e)
        total_m, total_e = 0.0, _NEVER
        for j in range(num_positions):
            # Where nothing follows no path takes the arc, which may hold anything.
            by_label, label_exponent = 0.0, _NEVER
            if total_m != 0.0:
                by_label = arc_m[2 * j] * total_m
                label_exponent = arc_e[2 * j] + total_e
            by_blank, blank_exponent = 0.0, _NEVER
            if beta_m[j] != 0.0:
                by_blank = arc_m[2 * j + 1] * beta_m[j]
                blank_exponent = arc_e[2 * j + 1] + beta_e[j]
            # Both to the larger exponent. NaN comes to the last branch.
            difference = blank_exponent - label_exponent
            if difference >= 256.0:
                by_label = 0.0
                total_e = blank_exponent
            elif difference >= 0.0:
                by_label *= _HALVES[int(difference)]
                total_e = blank_exponent
            elif difference <= -256.0:
                by_blank = 0.0
                total_e = label_exponent
            elif difference < 0.0:
                by_blank *= _HALVES[int(-difference)]
                total_e = label_exponent
            else:
                return math.nan
            total_m = by_blank + by_label
            if keep_splits:
                scale = 1.0 / total_m if total_m != 0.0 else 0.0
                backwards[2 * j + 1] = by_blank * scale
                backwards[2 * j] = by_label * scale
            if total_m == 0.0:
                total_e = _NEVER
            elif total_m > _LARGE:
                total_m *= 1.0 / _LARGE
                total_e += _LARGE_EXPONENT
            elif total_m < 1.0 / _LARGE:
                total_m *= _LARGE
                total_e -= _LARGE_EXPONENT
            beta_m[j] = total_m
            beta_e[j] = total_e
    first = num_positions - 1
    if beta_m[first] == 0.0:
        return math.inf
    return -(math.log(beta_m[first]) + beta_e[first] * math.log(2.0))


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
        scratch = np.empty((4, 2 * u), dtype=np.float64)
        loss = _backward_recursion_compiled(part, t, u, occupancies, scratch)
        losses[utterance] = loss
        if occupancies:
            if math.isfinite(loss):
                _flow_compiled(part, t, u, scratch[0, :u])
            else:
                part[:] = 0.0


def _compile(function: Callable) -> Callable:
    # "contract" lets a product and a sum be one instruction, and nothing else;
    # numpy's error model has no exception for a division by zero in its way.
    options = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        # The compiled code is kept beside the module, or in the user's cache.
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither can be written
        return numba.njit(**options)(function)


_powers_compiled = _compile(_powers)
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
