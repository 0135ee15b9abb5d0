"""``python -m benchmarks.report``: tables and plots from rows, also into the docs.

A document that is to be filled in holds pairs of lines

    <!-- benchmarks:begin NAME -->
    <!-- benchmarks:end NAME -->

and what stands between them is replaced: NAME is ``machine``, ``targets``,
``table FAMILY`` or ``plot FAMILY``, of the CPU, or of CUDA where ``cuda`` follows.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Index
from benchmarks.plots import draw_sweeps
from benchmarks.rows import Row, read_rows
from benchmarks.tables import (
    DEFAULT_BASELINES,
    family_table,
    machine_table,
    target_table,
)

_BLOCK = re.compile(
    r"(<!-- benchmarks:begin (?P<name>[^>]+?) -->\n)(?P<old>.*?)"
    r"(<!-- benchmarks:end (?P=name) -->)",
    re.DOTALL,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit code."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.report")
    add = made.add_argument
    add("rows", nargs="+", type=Path, help="JSON files of benchmarks.loss")
    add(
        "--plots",
        type=Path,
        metavar="FOLDER",
        help="where plots go; default: beside the rows, with --update-docs the "
        "folder images beside the document",
    )
    add(
        "--baselines",
        nargs="+",
        metavar="CONTENDER",
        help=f"of the ratios; default: {' '.join(DEFAULT_BASELINES)}, and others "
        f"where a workload has its own",
    )
    add("--update-docs", type=Path, metavar="FILE", help="fill in a document")
    options = made.parse_args(arguments)
    try:
        rows = read_rows(options.rows)
    except (OSError, ValueError) as error:
        made.error(str(error))
    if not rows:
        made.error("no rows in these files")

    folder = options.plots
    if folder is None:
        document = options.update_docs
        folder = document.parent / "images" if document else options.rows[0].parent
    plots: dict[str, list[Path]] = {}
    try:
        for device in devices(rows):
            prefix = "performance" if device == "cpu" else f"performance-{device}"
            index = device_index(rows, device)
            plots[device] = draw_sweeps(index, folder, prefix)
    except ImportError as error:
        print(f"no plots: {error}; pip install matplotlib", file=sys.stderr)

    if options.update_docs is None:
        print(markdown(rows, options.baselines))
        for plot in (plot for some in plots.values() for plot in some):
            print(f"plot: {plot}", file=sys.stderr)
        return 0
    text = options.update_docs.read_text(encoding="utf-8")
    try:
        filled = fill(text, rows, options.update_docs.parent, plots)
    except ValueError as error:
        made.error(f"{options.update_docs}: {error}")
    options.update_docs.write_text(filled, encoding="utf-8")
    print(f"{options.update_docs}: filled in from {len(rows)} rows")
    return 0


def devices(rows: Sequence[Row]) -> list[str]:
    """The devices that rows are from, "cpu" first."""
    return sorted({row.device for row in rows})


def device_index(rows: Sequence[Row], device: str) -> Index:
    """The rows of one device."""
    return Index(row for row in rows if row.device == device)


def markdown(rows: Sequence[Row], baselines: Sequence[str] | None = None) -> str:
    """The whole report."""
    parts = ["## Machine", machine_table(rows)]
    for device in devices(rows):
        index = device_index(rows, device)
        parts += [f"## What is to be reached, {device}", target_table(index)]
        for family in index.families():
            parts.append(f"## {family}, {device}")
            parts.append(family_table(index, family, baselines))
    return "\n\n".join(parts)


def fill(
    text: str, rows: Sequence[Row], folder: Path, plots: Mapping[str, Sequence[Path]]
) -> str:
    """``text`` with its marked blocks made anew.

    Args:
        text: a Markdown document in ``folder``.
        rows: what to fill in.
        folder: that links start from.
        plots: files of :func:`draw_sweeps` by device.

    Raises:
        ValueError: a block whose name is not known.
    """

    def block(match: re.Match[str]) -> str:
        words = match["name"].split()
        device = words.pop() if words[-1] == "cuda" else "cpu"
        index = device_index(rows, device)
        made = _block(words, rows, index, folder, plots.get(device, ()))
        return f"{match[1]}{made}\n{match[4]}"

    return _BLOCK.sub(block, text)


def _block(
    words: Sequence[str],
    rows: Sequence[Row],
    index: Index,
    folder: Path,
    plots: Sequence[Path],
) -> str:
    match words:
        case ["machine"]:
            return machine_table(rows)
        case ["targets"]:
            return target_table(index) if index.runs else "Not measured yet."
        case ["table", family]:
            return family_table(index, family)
        case ["plot", family]:
            for plot in plots:
                if plot.stem.endswith(f"-{family}"):
                    # Not relative_to: the plots may be anywhere.
                    link = Path(plot.resolve()).as_posix()
                    base = folder.resolve().as_posix()
                    link = link.removeprefix(f"{base}/")
                    return f"![time and memory, {family}]({link})"
            return "Not drawn yet."
    raise ValueError(f"block {' '.join(words)!r} is not known")


if __name__ == "__main__":
    sys.exit(main())
