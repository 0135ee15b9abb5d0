"""Pictures and the HTML page of a report."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from espnet_sampled_rnnt.commands.columns import align_columns
from espnet_sampled_rnnt.commands.report.experiment import Experiment
from espnet_sampled_rnnt.commands.report.memory import MemoryRow

_COLOURS = ("#0b6fa4", "#d1592b", "#6a8f2d", "#7a4fa3")
LOSS_NAMES = {
    "torchaudio": "full softmax, logits whole (torchaudio)",
    "full": "full softmax, this package",
    "sampled": "sampled softmax, this package",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ccc; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
p.note { background: #fff4d6; padding: .6rem 1rem; border-left: 4px solid #d9a400; }
img { max-width: 100%; }
code { background: #f2f2f2; padding: 0 .2rem; }
"""


@dataclass(frozen=True)
class Table:
    """A titled table; all cells are text already.

    Attributes:
        title: shown above it.
        head: the columns' names.
        rows: the cells, as long as ``head``.
        notes: sentences shown below.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """For a terminal: aligned columns."""
        below = (*align_columns([self.head, *self.rows]), *self.notes)
        return "\n".join([self.title, *(f"  {line}" for line in below)])

    def html(self) -> str:
        """For the page."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.head)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return (
            f"<h2>{escape(self.title)}</h2><table><tr>{head}</tr>{rows}</table>{notes}"
        )


def draw_curves(experiments: Sequence[tuple[str, Experiment]], path: Path) -> None:
    """Transducer and CTC loss of each epoch, in training and in validation.

    Raises:
        ImportError: matplotlib is missing.
    """
    figure, axes = _figure(1, 2, height=3.6)
    for axis, section in zip(axes, ("train", "valid"), strict=True):
        for colour, (label, experiment) in zip(_COLOURS, experiments, strict=False):
            for key, style in (("loss_transducer", "-"), ("loss_ctc", ":")):
                curve = experiment.curves.get(f"{section}/{key}", {})
                name = f"{label}, {key.removeprefix('loss_')}"
                axis.plot(
                    list(curve), list(curve.values()), style, color=colour, label=name
                )
        axis.set_yscale("log")
        axis.set_xlabel("epoch")
        axis.set_ylabel("loss")
        axis.grid(alpha=0.3)
    axes[0].set_title("training")
    axes[1].set_title("validation (always the full softmax)")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def draw_memory(rows: Sequence[MemoryRow], path: Path) -> None:
    """Bars of the measured peaks, one group for each vocabulary size.

    Raises:
        ImportError: matplotlib is missing.
    """
    sizes = sorted({row.vocabulary_size for row in rows})
    figure, axes = _figure(1, len(sizes), height=2.6)
    for axis, size in zip(axes, sizes, strict=True):
        group = [row for row in rows if row.vocabulary_size == size]
        names = [LOSS_NAMES[row.loss].replace(", ", ",\n") for row in group]
        values = [row.peak_bytes / 2**20 for row in group]
        bars = axis.barh(names, values, color=_COLOURS[: len(group)])
        axis.bar_label(bars, fmt=" %.3g MiB", fontsize="small")
        axis.margins(x=0.3)
        axis.invert_yaxis()
        axis.set_xlabel("MiB at the peak")
        axis.set_title(f"{size} tokens")
    figure.savefig(path, dpi=120)


def _figure(rows: int, columns: int, height: float):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # not pyplot: no display is wanted and no global state
    figure = Figure(figsize=(10, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)[0]


def write_page(
    path: Path,
    title: str,
    summary: Sequence[str],
    warnings: Sequence[str],
    pictures: Sequence[tuple[Path, str]],
    tables: Sequence[Table],
) -> None:
    """Write one HTML file that needs no other: the pictures are inside.

    Args:
        path: the file to write.
        title: the page's title.
        summary: sentences at the top.
        warnings: sentences that must not be overlooked.
        pictures: PNG files, each with a caption.
        tables: shown in this order.
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [f"<p>{escape(sentence)}</p>" for sentence in summary]
    parts += [f'<p class="note">{escape(sentence)}</p>' for sentence in warnings]
    for picture, caption in pictures:
        data = base64.b64encode(picture.read_bytes()).decode("ascii")
        parts.append(
            f'<p><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"<br>{escape(caption)}</p>"
        )
    parts += [table.html() for table in tables]
    path.write_text(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "".join(parts)
        + "</body></html>\n",
        encoding="utf-8",
    )
