"""One line of the doctor's report."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Finding"]


class Finding(NamedTuple):
    """What was found and, where something is amiss, the line that mends it.

    ``problem``: training cannot work; ``note``: something some runs need is missing;
    ``info``: neither good nor bad.
    """

    level: Literal["ok", "info", "note", "problem"]
    text: str
    fix: str | None = None

    def __str__(self) -> str:
        mark = {"problem": "PROBLEM", "info": "-"}.get(self.level, self.level)
        fix = "" if self.fix is None else f"\n  {'':8}-> {self.fix}"
        return f"  {mark:8}{self.text}{fix}"
