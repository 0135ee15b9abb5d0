"""Markdown tables from rows, and the marked blocks of docs/accuracy.md.

A document holds pairs of lines

    <!-- accuracy:begin NAME -->
    <!-- accuracy:end NAME -->

and what stands between them is replaced. NAME is ``machine``, ``short``, ``main TASK``,
``side TASK``, ``longer TASK``, ``found TASK`` or ``plots TASK``.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.accuracy.measure import updates_until
from benchmarks.accuracy.rows import Row
from benchmarks.accuracy.study import SETTINGS, TASKS, main_settings

_BLOCK = re.compile(
    r"(<!-- accuracy:begin (?P<name>[^>]+?) -->\n)(?P<old>.*?)"
    r"(<!-- accuracy:end (?P=name) -->)",
    re.DOTALL,
)
NOTHING = "Not measured yet."


def fill(text: str, rows: Sequence[Row]) -> str:
    """``text`` with its marked blocks made anew.

    Raises:
        ValueError: a block whose name is not known.
    """

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}{_block(match['name'].split(), rows)}\n{match[4]}"

    return _BLOCK.sub(block, text)


def _block(words: Sequence[str], rows: Sequence[Row]) -> str:
    match words:
        case ["machine"]:
            return machine_table(rows)
        case ["short"]:
            return short_table(rows)
        case [kind, task] if task in TASKS:
            here = of_task(rows, task)
            if not here:
                return NOTHING
            if kind in ("main", "side"):
                names = [n for n, s in SETTINGS.items() if s.group == kind]
                return setting_table(here, names) or NOTHING
            if kind == "longer":
                return length_table(here, longer(rows, task)) or NOTHING
            if kind == "found":
                return findings(here)
            if kind == "plots":
                return _plot_links(task, len(by_setting(here)))
    raise ValueError(f"block {' '.join(words)!r} is not known")


def _plot_links(task: str, num_settings: int) -> str:
    """Links to what ``plots.draw`` makes of a task's rows."""
    kinds = {"main": "error rate and loss over updates and time"}
    if num_settings > 1:
        kinds["trade"] = "error rate against full-softmax loss"
    return "\n\n".join(
        f"![{task}, {what}](images/accuracy-{task}-{kind}.png)"
        for kind, what in kinds.items()
    )


def of_task(rows: Iterable[Row], task: str) -> list[Row]:
    """The rows of a task that have the length that most have, in updates."""
    found = [row for row in rows if row.task == task]
    lengths = Counter(row.updates for row in found)
    usual = max(lengths, key=lambda n: (lengths[n], n), default=0)
    return [row for row in found if row.updates == usual]


def longer(rows: Iterable[Row], task: str) -> list[Row]:
    """The rows of a task that were trained for longer than those of ``of_task``."""
    rows = list(rows)
    usual = max((row.updates for row in of_task(rows, task)), default=0)
    return [row for row in rows if row.task == task and row.updates > usual]


def by_setting(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by setting, in the study's order, seeds in theirs."""
    groups: dict[str, list[Row]] = {name: [] for name in SETTINGS}
    for row in sorted(rows, key=lambda row: row.seed):
        groups.setdefault(row.setting, []).append(row)
    return {name: group for name, group in groups.items() if group}


def spread(values: Iterable[float | None], digits: int = 2) -> str:
    """Mean, and the least and largest where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):,.{digits}f}"
    if len(known) == 1:
        return mean
    return f"{mean} ({min(known):,.{digits}f} – {max(known):,.{digits}f})"


def schedule(value: float | Mapping[str, Any]) -> str:
    """A number, or a schedule in few words."""
    if not isinstance(value, Mapping):
        return f"{value:g}"
    straight = value.get("interpolate") == "linear"
    joint = " → " if straight else ", then "
    return joint.join(f"{number:g}" for number in value["points"].values())


def setting_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """One line a setting; empty where none was run."""
    groups = by_setting(rows)
    head = [
        "setting",
        "S",
        "correction",
        "seeds",
        "test CER (%)",
        "full-softmax validation loss",
        "updates to half",
        "updates to the full softmax's last CER",
        "s/update",
        "processor s/update",
        "loss memory (MB)",
        "coverage",
    ]
    lines = []
    for name in names:
        group = groups.get(name)
        if not group:
            continue
        twins = groups.get(SETTINGS[name].twin, [])
        lines.append(
            [
                name,
                schedule(group[0].num_samples) if group[0].num_samples else "V",
                schedule(group[0].correction) if group[0].num_samples else "",
                str(len(group)),
                spread(row.cer for row in group),
                spread(row.valid_loss_full for row in group),
                spread((row.updates_to_half for row in group), 0),
                spread((updates_to_level(row, twins) for row in group), 0),
                spread((row.seconds_per_update for row in group), 3),
                spread((row.cpu_seconds_per_update for row in group), 3),
                spread((row.loss_peak_bytes / 1e6 for row in group), 1),
                spread((row.coverage for row in group), 2),
            ]
        )
    return _table(head, lines) if lines else ""


def short_table(rows: Sequence[Row]) -> str:
    """Error rate and full-softmax loss of the main settings, a line each."""
    tasks = {
        task: by_setting(of_task(rows, task))
        for task in TASKS
        if any(row.task == task for row in rows)
    }
    head = ["setting"]
    for task, groups in tasks.items():
        seeds = sorted({len(groups[n]) for n in main_settings() if n in groups})
        several = "seeds" if seeds != [1] else "seed"
        head.append(f"{task}, {' or '.join(map(str, seeds))} {several}: test CER (%)")
        head.append("full-softmax loss")
    lines = []
    for name in main_settings():
        line = [name]
        for groups in tasks.values():
            group = groups.get(name, [])
            line.append(spread(row.cer for row in group))
            line.append(spread(row.valid_loss_full for row in group))
        lines.append(line)
    return _table(head, lines)


def length_table(usual: Sequence[Row], longer_rows: Sequence[Row]) -> str:
    """Settings trained for longer beside the same seeds of the usual length."""
    wanted = {(row.setting, row.seed) for row in longer_rows}
    lines = [
        [
            row.setting,
            str(row.seed),
            f"{row.updates:,}",
            f"{row.cer:.2f}",
            f"{row.valid_loss_full:.2f}",
            f"{row.valid_cer:.1f}",
        ]
        for row in sorted([*usual, *longer_rows], key=lambda row: row.key)
        if (row.setting, row.seed) in wanted
    ]
    head = ["setting", "seed", "updates", "test CER (%)"]
    head += ["full-softmax validation loss", "last validation CER (%)"]
    return _table(head, lines) if lines else ""


def updates_to_level(row: Row, twins: Sequence[Row]) -> float | None:
    """Updates until the validation CER at which the full softmax ended, or below.

    Args:
        row: any row.
        twins: the full softmax's rows; their mean is the level.
    """
    ends = [twin.valid_cer for twin in twins if twin.valid_cer is not None]
    if not ends:
        return None
    # "falls below": let equal count, as the full softmax itself gets there last
    return updates_until(row.curve, statistics.fmean(ends) + 1e-6)


def findings(rows: Sequence[Row]) -> str:
    """What the issue of this study asks, answered from the rows."""
    groups = by_setting(rows)
    full = groups.get("full")
    if not full:
        return NOTHING
    low, high = min(r.cer for r in full), max(r.cer for r in full)
    mean = statistics.fmean(r.cer for r in full)
    theirs = f"{mean:.2f} %, one seed"
    if len(full) > 1:
        theirs = f"{mean:.2f} %, {low:.2f} to {high:.2f}"
    full_loss = statistics.fmean(r.valid_loss_full for r in full)
    first = [updates_to_level(row, full) for row in full]
    lines = []
    for name, group in groups.items():
        if name not in main_settings() or name == "full":
            continue
        cer = statistics.fmean(r.cer for r in group)
        if cer < mean:
            place = "below the full softmax's"
        elif cer <= high:
            place = "above the full softmax's, inside its spread over seeds"
        else:
            place = "above the full softmax's and outside its spread over seeds"
        reached = [updates_to_level(row, full) for row in group]
        known = [value for value in reached if value is not None]
        if len(known) < len(group):
            when = f"{len(group) - len(known)} of {len(group)} seeds never reached"
            when += " the validation CER at which the full softmax ended"
        else:
            own = 100 * statistics.fmean(known) / group[0].updates
            when = "its validation CER passed the full softmax's last one after "
            when += f"{own:.0f} % of the updates"
            if None not in first:
                share = 100 * statistics.fmean(first) / full[0].updates
                when += f", the full softmax itself after {share:.0f} %"
        loss = statistics.fmean(r.valid_loss_full for r in group)
        lines.append(
            f"- `{name}`: mean test CER {cer:.2f} %, {place} ({theirs}); {when}; "
            f"full-softmax validation loss {loss:.2f} against {full_loss:.2f}."
        )
    return "\n".join(lines) or NOTHING


def machine_table(rows: Sequence[Row]) -> str:
    """Where the rows are from."""
    if not rows:
        return NOTHING
    lines = {}
    for row in rows:
        versions = ", ".join(f"{k} {v}" for k, v in sorted(row.versions.items()) if v)
        key = (row.task, row.cpu_name, f"{row.jobs}", versions)
        lines.setdefault(key, []).append(row)
    return _table(
        ["task", "processor", "trainings at once", "versions", "commits", "rows"],
        [
            [
                *key,
                " ".join(sorted({(row.commit or "?")[:9] for row in group})),
                str(len(group)),
            ]
            for key, group in sorted(lines.items())
        ],
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
