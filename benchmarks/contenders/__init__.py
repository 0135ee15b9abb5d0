"""Who runs: each module here offers some contenders; this is their registry."""

from __future__ import annotations

from benchmarks.contenders import external, gemms, logits, ours, parts
from benchmarks.contenders.base import Contender

__all__ = ["CONTENDERS", "Contender"]

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for module in (ours, logits, gemms, parts, external)
    for contender in module.contenders()
}
