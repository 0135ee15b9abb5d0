"""Rows as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Figure, Index, memory_ratio, time_ratio
from benchmarks.rows import Row
from benchmarks.targets import TARGETS, Target

DEFAULT_BASELINES = ("torchaudio-full", "nemo-like")
# Sweeps and whole losses are compared with other losses, parts with their own kind.
_BASELINES_OF = {
    "lattice": ("lattice-torchaudio",),
    "sampling": ("ours-example",),
}


def machine_table(rows: Sequence[Row]) -> str:
    """Where, when and with what the rows were measured, one line a run."""
    lines = [
        "| device | processor | cores, threads | memory | versions | commit | date "
        "(UTC) | load average | workloads |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in dict.fromkeys(row.run for row in rows):
        part = [row for row in rows if row.run == run]
        first = part[0]
        names = ", ".join(
            f"{name} {value}" for name, value in first.versions.items() if value
        )
        commit = "unknown" if first.commit is None else first.commit[:10]
        if first.dirty:
            commit += " with changes"
        loads = [row.load_average for row in part if row.load_average is not None]
        load = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown"
        memory = (
            f"{first.memory_bytes / 1e9:.0f} GB" if first.memory_bytes else "unknown"
        )
        name = "-" if first.device == "cpu" else first.device_name
        lines.append(
            f"| {first.device} {name} | {first.cpu_name} | {first.cores}, "
            f"{first.threads} | {memory} | {names} | {commit} | {first.date[:16]} | "
            f"{load} | {', '.join(dict.fromkeys(row.family for row in part))} |"
        )
    return "\n".join(lines)


def target_table(index: Index) -> str:
    """What is to be reached beside what the rows say."""
    lines = ["| work | measure | wanted | measured | met |", "| --- " * 5 + "|"]
    for target in TARGETS:
        figure = target.value(index)
        measured, met = "not measured", "-"
        if figure is not None:
            measured = _measured(target, figure)
            met = "yes" if target.met(figure) else "**no**"
        lines.append(
            f"| {target.work} | {target.measure} | {target.wanted} | {measured} "
            f"| {met} |"
        )
    return "\n".join(lines)


def _measured(target: Target, figure: Figure) -> str:
    text = f"{_number(figure.value)} {target.unit}"
    if figure.low != figure.high:
        text += f" ({_number(figure.low)} to {_number(figure.high)})"
    return text


def family_table(
    index: Index, family: str, baselines: Sequence[str] | None = None
) -> str:
    """All contenders of a family: time, memory, ratios; then who was skipped."""
    rows = index.family(family)
    measured = [row for row in rows if row.skipped is None]
    if not measured:
        return "Not measured yet."
    if baselines is None:
        baselines = _BASELINES_OF.get(family, DEFAULT_BASELINES)
    present = {row.contender for row in measured}
    baselines = [name for name in baselines if name in present]
    gemms = any(_gemms(index, row) is not None for row in measured)
    models = any(row.model_bytes is not None for row in measured)
    axis = measured[0].axis

    head = [axis] if axis else []
    head += ["contender", "time, ms: median (min to max)"]
    head += [f"time, {name} / this" for name in baselines]
    head += ["time, this / four GEMMs"] if gemms else []
    head += ["extra peak, MB"]
    head += [f"memory, {name} / this" for name in baselines]
    head += ["model, MB"] if models else []
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for row in measured:
        cells = [f"{row.axis_value:,}"] if axis else []
        cells += [f"`{row.contender}`", _times(row)]
        cells += [_time_cell(_baseline(index, row, name), row) for name in baselines]
        if gemms:
            cells.append(_time_cell(row, _gemms(index, row)))
        cells.append(_megabytes(row.extra_peak_bytes))
        cells += [_memory_cell(_baseline(index, row, name), row) for name in baselines]
        if models:
            cells.append(_megabytes(row.model_bytes))
        lines.append(f"| {' | '.join(cells)} |")
    shape = _shape(measured)
    text = f"{shape}\n\n" + "\n".join(lines)
    skipped = [row for row in rows if row.skipped is not None]
    if skipped:
        text += "\n\nNot measured:\n"
        for row in skipped:
            where = f" at {row.axis} = {row.axis_value:,}" if row.axis else ""
            text += f"\n- `{row.contender}`{where}: {row.skipped}"
    differing = disagreements(measured)
    if differing:
        text += "\n\n**Losses that should be one differ:** " + "; ".join(differing)
    return text


def disagreements(rows: Sequence[Row]) -> list[str]:
    """Exact contenders of one workload and softmax whose losses differ."""
    from benchmarks.contenders import CONTENDERS

    found = []
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        known = CONTENDERS.get(row.contender)
        if row.loss is not None and row.softmax and known is not None and known.exact:
            groups.setdefault((row.run, row.workload, row.softmax), []).append(row)
    for group in groups.values():
        first = group[0]
        for row in group[1:]:
            if not abs(row.loss - first.loss) <= 1e-4 * abs(first.loss):
                found.append(
                    f"{row.workload}: {first.contender} {first.loss:.6g}, "
                    f"{row.contender} {row.loss:.6g}"
                )
    return found


def _shape(rows: Sequence[Row]) -> str:
    """The shapes of a family in words, without what is swept."""
    first = rows[0]
    parts = {
        "B": first.batch,
        "largest T": first.frames,
        "largest U": first.labels,
        "V": first.vocab_size,
        "J": first.joint_size,
        "S": first.num_samples,
        "nodes": first.nodes,
        "padded nodes": first.padded_nodes,
    }
    if first.axis is not None:
        parts.pop(first.axis)
    if first.axis == "B":
        parts.pop("nodes")
        parts.pop("padded nodes")
    words = ", ".join(f"{name} {value:,}" for name, value in parts.items())
    return f"{words}; {first.dtype}, {first.device}, {first.repeats} repeats."


def _baseline(index: Index, row: Row, name: str) -> Row | None:
    """The baseline to compare ``row`` with; what only is a part of a loss has none."""
    if row.contender == "dense-gradient" or row.contender.startswith("gemms-"):
        return None
    return index.beside(row, name)


def _gemms(index: Index, row: Row) -> Row | None:
    if not row.contender.startswith("ours-"):
        return None
    return index.beside(row, f"gemms-{row.softmax}")


def _times(row: Row) -> str:
    return f"{_number(row.median_ms)} ({_number(row.min_ms)} to {_number(row.max_ms)})"


def _time_cell(above: Row | None, below: Row | None) -> str:
    if above is None or below is None:
        return "-"
    return _number(time_ratio(above, below).value)


def _memory_cell(above: Row | None, below: Row) -> str:
    ratio = None if above is None else memory_ratio(above, below)
    return "-" if ratio is None else _number(ratio)


def _megabytes(size: int | None) -> str:
    return "-" if size is None else _number(size / 1e6)


def _number(value: float) -> str:
    """Three figures, more where the whole part has more."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
