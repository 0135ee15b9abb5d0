"""Error rate and full-softmax loss over updates and over wall time, as PNG files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.rows import Row
from benchmarks.accuracy.study import TASKS, main_settings
from benchmarks.accuracy.tables import by_setting, of_task

_COLOURS = {
    "full": "#222222",
    "uniform": "#edae49",
    "ctc": "#d1495b",
    "ctc-then-full": "#1b6ca8",
}
_PANELS = (
    ("cer", "validation CER (%)"),
    ("loss", "full-softmax validation loss"),
)
_AXES = (("update", "updates"), ("seconds", "training seconds"))


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Two files for each task that has rows: curves of the main settings, and the
    trade between error rate and calibration of all.

    Returns:
        The files written.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for task in TASKS:
        every = by_setting(of_task(rows, task))
        if len(every) > 1:
            written.append(_draw_trade(pyplot, task, every, folder))
        groups = {name: every[name] for name in main_settings() if name in every}
        if not groups:
            continue
        figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
        for line, (quantity, label) in zip(panels, _PANELS, strict=True):
            for panel, (axis, axis_label) in zip(line, _AXES, strict=True):
                for name, group in groups.items():
                    _draw_setting(panel, name, group, axis, quantity)
                panel.set_xlabel(axis_label)
                panel.set_ylabel(label)
                panel.set_ylim(bottom=0, top=100 if quantity == "cer" else None)
                panel.grid(True, alpha=0.3)
        panels[0][0].legend(fontsize="small")
        figure.suptitle(f"{task}: mean over seeds thick, each seed thin", fontsize=11)
        written.append(_save(pyplot, figure, folder / f"accuracy-{task}-main.png"))
    return written


def _draw_trade(
    pyplot, task: str, groups: Mapping[str, Sequence[Row]], folder: Path
) -> Path:
    """Test CER against full-softmax validation loss, a point a setting."""
    figure, panel = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for name, group in groups.items():
        place = (
            statistics.fmean(row.valid_loss_full for row in group),
            statistics.fmean(row.cer for row in group),
        )
        panel.scatter(*place, color=_COLOURS.get(name, "#888888"), zorder=3)
        panel.annotate(
            f"{name} ({len(group)})",
            place,
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=8,
        )
    panel.set_xlabel("full-softmax validation loss (nats an utterance)")
    panel.set_ylabel("test CER (%)")
    panel.grid(True, alpha=0.3)
    panel.margins(x=0.18)
    figure.suptitle(
        f"{task}: error rate and calibration, runs in brackets", fontsize=11
    )
    return _save(pyplot, figure, folder / f"accuracy-{task}-trade.png")


def _save(pyplot, figure, path: Path) -> Path:
    # Without a date in it the same rows give the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _draw_setting(
    panel, name: str, group: Sequence[Row], axis: str, quantity: str
) -> None:
    colour = _COLOURS.get(name)
    for row in group:
        points = [(e[axis], e[quantity]) for e in row.curve if e[quantity] is not None]
        if len(group) > 1:
            panel.plot(*zip(*points, strict=True), color=colour, alpha=0.35, lw=0.8)
    count = min(len(row.curve) for row in group)
    means = [
        [
            statistics.fmean(row.curve[i][which] or 0.0 for row in group)
            for i in range(count)
        ]
        for which in (axis, quantity)
    ]
    panel.plot(*means, color=colour, lw=2, label=f"{name} ({len(group)})")
