"""Rows looked up and compared: ratios of one run, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.rows import Row


class Figure(NamedTuple):
    """A median and its spread."""

    value: float
    low: float
    high: float


def figure_of(values: list[float]) -> Figure:
    """The median of ``values`` and their range."""
    return Figure(statistics.median(values), min(values), max(values))


def time_ratio(above: Row, below: Row) -> Figure:
    """Time of one by time of the other: the median over rounds."""
    pairs = zip(above.times_ms, below.times_ms, strict=False)
    return figure_of([a / b for a, b in pairs])


def memory_ratio(above: Row, below: Row) -> float | None:
    """Extra peak memory of one by that of the other, None where one is not known."""
    if above.extra_peak_bytes is None or not below.extra_peak_bytes:
        return None
    return above.extra_peak_bytes / below.extra_peak_bytes


class Index:
    """Rows by workload and contender; only rows of one run stand side by side."""

    def __init__(self, rows: Iterable[Row]) -> None:
        runs: dict[str, dict[tuple[str, str], Row]] = {}
        for row in rows:
            runs.setdefault(row.run, {})[row.workload, row.contender] = row

        def begun(run: str) -> str:
            return min(row.date for row in runs[run].values())

        # Newest run first: a later measurement replaces an earlier one.
        self.runs = {run: runs[run] for run in sorted(runs, key=begun, reverse=True)}

    def find(self, *names: tuple[str, str]) -> list[Row] | None:
        """Measured rows of (workload, contender), all of one run, or None."""
        for run in self.runs.values():
            found = [run.get(name) for name in names]
            if all(row is not None and row.skipped is None for row in found):
                return found
        return None

    def family(self, family: str) -> list[Row]:
        """All rows of a family in the newest run that measured one of it."""
        for run in self.runs.values():
            rows = [row for row in run.values() if row.family == family]
            if any(row.skipped is None for row in rows):
                return sorted(rows, key=lambda row: row.axis_value or 0)
        return []

    def families(self) -> list[str]:
        """The families that have rows, in the order of their measurement."""
        runs = reversed(self.runs.values())
        return list(dict.fromkeys(r.family for run in runs for r in run.values()))

    def beside(self, row: Row, contender: str) -> Row | None:
        """The measured row of another contender on the same workload and run."""
        other = self.runs[row.run].get((row.workload, contender))
        return other if other is not None and other.skipped is None else None
