"""What the doctor says about ``warprnnt_pytorch``, which ESPnet's own model wants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

from espnet_sampled_rnnt.commands.findings import Finding
from espnet_sampled_rnnt.registration import WARPRNNT, WARPRNNT_SWITCH

__all__ = ["check_warprnnt"]


def check_warprnnt() -> Iterator[Finding]:
    """Whether there is one, and whether it is ours; it is not imported."""
    switch = os.environ.get(WARPRNNT_SWITCH, "").strip()
    try:
        spec = find_spec(WARPRNNT)
    except (ImportError, ValueError):
        spec = None
    if switch not in ("", "0", "1"):
        yield Finding(
            "note",
            f"{WARPRNNT_SWITCH}={switch} has no effect: 1 turns it on",
            f"export {WARPRNNT_SWITCH}=1",
        )
    if spec is None:
        yield Finding(
            "info",
            f"{WARPRNNT} is missing, for 'model: espnet' with a transducer only "
            f"({WARPRNNT_SWITCH}=1 provides it)",
        )
    elif spec.origin == "espnet_sampled_rnnt.warprnnt":
        yield Finding("ok", f"{WARPRNNT} is provided by this package")
    else:
        place = spec.origin or ", ".join(spec.submodule_search_locations or ())
        unused = f"; {WARPRNNT_SWITCH}=1 has no effect" if switch == "1" else ""
        yield Finding("ok", f"{WARPRNNT} is installed ({place}){unused}")
