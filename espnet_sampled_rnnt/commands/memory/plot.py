"""Memory over the size of a batch, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw"]

_COLOURS = {"stock": "#b3563a", "full": "#4a6fa5", "sampled": "#3a8f5c"}


def draw(
    path: Path, curves: Mapping[str, Sequence[tuple[int, int]]], facts: dict[str, Any]
) -> None:
    """Write the picture.

    Args:
        path: its name says the format.
        curves: (size, bytes beside parameters) of each loss.
        facts: of the table.

    Raises:
        ValueError: matplotlib is missing, or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    fixed = facts["training_bytes"]
    for loss, points in curves.items():
        sizes, totals = zip(*points, strict=True)
        axes.plot(
            sizes,
            [(total + fixed) / 1e9 for total in totals],
            marker="o",
            label=loss,
            color=_COLOURS[loss],
        )
    if facts["gpu_gb"] is not None:
        axes.axhline(facts["gpu_gb"], color="black", linestyle="--", label="GPU")
    axes.axvline(facts["size"], color="grey", linestyle=":", label="configured")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=facts["size_option"],
        ylabel="peak in GB, worst batch",
        title=f"{Path(facts['config']).name}: V {facts['vocabulary_size']}",
    )
    axes.legend()
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ValueError(f"cannot draw {path}: {error}") from None
