"""Time and memory over V, S and B as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Index
from benchmarks.rows import Row

_AXES = {
    "V": "vocabulary V",
    "S": "sampled negatives S",
    "B": "utterances B",
}
# One look for a contender in all plots; the dashed ones are not losses of ours.
_STYLES = {
    "ours-full": {"color": "#1b6ca8", "marker": "o"},
    "ours-example": {"color": "#d1495b", "marker": "o"},
    "ours-batch": {"color": "#edae49", "marker": "o"},
    "torchaudio-full": {"color": "#444444", "marker": "s", "linestyle": "--"},
    "nemo-like": {"color": "#66a182", "marker": "s", "linestyle": "--"},
    "dense-gradient": {"color": "#999999", "marker": ".", "linestyle": ":"},
}


def draw_sweeps(index: Index, folder: Path, prefix: str = "performance") -> list[Path]:
    """A file for each sweep that has rows.

    Args:
        index: the rows.
        folder: where to write, made where it is not there.
        prefix: files are ``PREFIX-FAMILY.png``.

    Returns:
        The files written.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for family in index.families():
        rows = [row for row in index.family(family) if row.skipped is None]
        if len({row.axis_value for row in rows}) < 2:
            continue
        figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
        _draw_time(panels[0], rows)
        _draw_memory(panels[1], rows)
        axis = rows[0].axis
        for panel in panels:
            panel.set_xscale("log", base=2 if axis != "V" else 10)
            panel.set_yscale("log")
            panel.set_xlabel(_AXES[axis])
            ticks = sorted({row.axis_value for row in rows})
            panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            panel.minorticks_off()
            panel.grid(True, alpha=0.3)
        panels[0].legend(fontsize="small")
        figure.suptitle(_title(rows[0]), fontsize="medium")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{prefix}-{family}.png"
        # Without a date in it the same rows give the same file.
        figure.savefig(path, dpi=120, metadata={"Software": None})
        pyplot.close(figure)
        written.append(path)
    return written


def _by_contender(rows: Sequence[Row]) -> dict[str, list[Row]]:
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.contender, []).append(row)
    return lines


def _draw_time(panel, rows: Sequence[Row]) -> None:
    for contender, line in _by_contender(rows).items():
        medians = [row.median_ms for row in line]
        below = [row.median_ms - row.min_ms for row in line]
        above = [row.max_ms - row.median_ms for row in line]
        panel.errorbar(
            [row.axis_value for row in line],
            medians,
            yerr=[below, above],
            label=contender,
            capsize=2,
            **_STYLES.get(contender, {}),
        )
    panel.set_ylabel("forward and backward, ms")


def _draw_memory(panel, rows: Sequence[Row]) -> None:
    for contender, line in _by_contender(rows).items():
        known = [row for row in line if row.extra_peak_bytes]
        panel.plot(
            [row.axis_value for row in known],
            [row.extra_peak_bytes / 1e6 for row in known],
            label=contender,
            **_STYLES.get(contender, {}),
        )
    panel.set_ylabel("extra peak memory, MB")


def _title(row: Row) -> str:
    parts = {
        "B": row.batch,
        "T": row.frames,
        "U": row.labels,
        "V": row.vocab_size,
        "J": row.joint_size,
        "S": row.num_samples,
    }
    parts.pop(row.axis)
    words = ", ".join(f"{name} {value:,}" for name, value in parts.items())
    where = row.device_name if row.device == "cuda" else f"{row.cpu_name}"
    return f"{words}; {row.dtype}; {where}, {row.threads} threads"
