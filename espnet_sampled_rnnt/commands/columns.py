"""Aligned columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["align_columns"]


def align_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Each line's cells, all lines having as many, two spaces between columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
