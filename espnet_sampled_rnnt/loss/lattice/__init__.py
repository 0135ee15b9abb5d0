"""The RNN-T lattice on two columns a node, behind one registry of backends.

The contract. A backend gets the nodes of some utterances one after the other, as
``arcs`` (n, 2): log p(blank) and log p(next label) at node (t, u), ordered by
utterance, then by frame t < T_b, then by label position u <= U_b. With

    beta(T_b - 1, U_b) = arcs[T_b - 1, U_b, 0]
    beta(t, u) = logaddexp(arcs[t, u, 0] + beta(t + 1, u),
                           arcs[t, u, 1] + beta(t, u + 1))

it returns the losses -beta(0, 0), (G,), and where asked replaces ``arcs`` by the
occupancies: the posterior probability that the path takes the arc, which is minus
the derivative of the loss by its log probability.

- The label column at u = U_b is never read and its occupancy is 0; so is that of
  the blank arcs out of the last frame, but for the final one.
- An arc of -inf is one that no path takes. No path at all: the loss is +inf.
- Where the loss of an utterance is not finite, its occupancies are 0 and no other
  utterance is touched.
- Results are float32 for float32 arcs and, where the backend can, float64 for
  float64.

Source of the recursion: A. Graves, "Sequence Transduction with Recurrent Neural
Networks", arXiv 1211.3711, section 2.4.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from espnet_sampled_rnnt.loss.lattice.base import Backend
from espnet_sampled_rnnt.loss.lattice.numba_cpu import NumbaBackend
from espnet_sampled_rnnt.loss.lattice.reference import ReferenceBackend
from espnet_sampled_rnnt.loss.lattice.torchaudio import TorchaudioBackend
from espnet_sampled_rnnt.loss.lattice.warp_rnnt import WarpRnntBackend

__all__ = ["BACKENDS", "Backend", "resolve"]

# In the order in which "auto" tries them.
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        NumbaBackend(),
        WarpRnntBackend(),
        TorchaudioBackend(),
        ReferenceBackend(),
    )
}


def resolve(
    name: str, device: torch.device, dtype: torch.dtype = torch.float32
) -> Backend:
    """The backend called ``name``, or for "auto" the first that can run here.

    Raises:
        ValueError: unknown name, or a backend that cannot run on ``device`` in
            ``dtype``, with the reason and what to do.
    """
    if name == "auto":
        return BACKENDS[_first_available(device.type, dtype)]
    if name not in BACKENDS:
        raise ValueError(
            f"backend {name!r} is not known; known: auto, {', '.join(BACKENDS)}"
        )
    reason = BACKENDS[name].unavailable(device, dtype)
    if reason is not None:
        raise ValueError(f"backend {name!r} cannot run here: {reason}")
    return BACKENDS[name]


# Looking for libraries costs milliseconds, too much for every step.
@lru_cache
def _first_available(device_type: str, dtype: torch.dtype) -> str:
    device = torch.device(device_type)
    return next(
        name
        for name, backend in BACKENDS.items()
        if backend.unavailable(device, dtype) is None
    )
