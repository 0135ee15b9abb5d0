"""A number that changes over training: steps or straight lines between points."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

UNITS = ("updates", "epochs")
INTERPOLATIONS = ("step", "linear")


@dataclass(frozen=True)
class Schedule:
    """A number over updates of the parameters, or over epochs.

    Attributes:
        points: (position, value) in rising order of position, the first at 0.
        unit: what positions count, "updates" or "epochs".
        interpolate: "step" holds a value until the next point, "linear" goes
            straight to it; behind the last point both hold its value.
    """

    points: tuple[tuple[int, float], ...]
    unit: str = "updates"
    interpolate: str = "step"

    @classmethod
    def parse(cls, option: str, value: float | Mapping[str, Any] | None) -> Schedule:
        """A schedule from a configuration.

        Args:
            option: what to call it in messages.
            value: a number (None counts as 0), held throughout; or a mapping with
                ``points`` (a mapping from position to number), and as one likes
                ``unit`` and ``interpolate``.

        Raises:
            ValueError: naming ``option`` and what is wrong.
        """
        if value is None:
            value = 0
        if _is_number(value):
            return cls(points=((0, value),))
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{option} is {value!r}; allowed: a finite number, or a mapping with "
                "points"
            )
        unknown = sorted(set(value) - {"points", "unit", "interpolate"}, key=str)
        if unknown:
            raise ValueError(
                f"{option}.{unknown[0]} is not known; "
                f"allowed: points, unit, interpolate"
            )
        unit = value.get("unit", "updates")
        if unit not in UNITS:
            raise ValueError(f"{option}.unit is {unit!r}; allowed: {', '.join(UNITS)}")
        interpolate = value.get("interpolate", "step")
        if interpolate not in INTERPOLATIONS:
            raise ValueError(
                f"{option}.interpolate is {interpolate!r}; "
                f"allowed: {', '.join(INTERPOLATIONS)}"
            )
        return cls(_points(option, value.get("points")), unit, interpolate)

    @property
    def is_constant(self) -> bool:
        """Whether it is one number throughout."""
        return len({number for _, number in self.points}) == 1

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers at its points; all others lie between them."""
        return tuple(number for _, number in self.points)

    def at(self, position: int) -> float:
        """Its number at a position >= 0 in its unit."""
        index = bisect_right(self.points, position, key=lambda point: point[0]) - 1
        start, number = self.points[index]
        if self.interpolate == "step" or index + 1 == len(self.points):
            return number
        end, following = self.points[index + 1]
        share = (position - start) / (end - start)
        return number + share * (following - number)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _points(option: str, points: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(points, Mapping) or not points:
        raise ValueError(
            f"{option}.points is {points!r}; "
            f"allowed: a mapping from position to number, such as {{0: 1, 5000: 0}}"
        )
    pairs = []
    for position, number in points.items():
        try:
            place = int(position)  # a command line gives names for numbers
        except (TypeError, ValueError):
            place = -1
        if place < 0 or str(place) != str(position):
            raise ValueError(
                f"{option}.points has the position {position!r}; "
                f"allowed: whole numbers from 0 on"
            )
        number = 0 if number is None else number
        if not _is_number(number):
            raise ValueError(
                f"{option}.points[{place}] is {number!r}; allowed: a number"
            )
        pairs.append((place, number))
    pairs.sort()
    for (place, _), (following, _) in pairwise(pairs):
        if place == following:
            raise ValueError(f"{option}.points has the position {place} twice")
    if pairs[0][0] != 0:
        raise ValueError(
            f"{option}.points begins at {pairs[0][0]}; allowed: a first point at 0"
        )
    return tuple(pairs)
