"""``python -m benchmarks.accuracy run | plan | report``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy.rows import read_rows
from benchmarks.accuracy.runs import ROOT, Study
from benchmarks.accuracy.study import SETTINGS, TASKS, Run, main_settings, plan

RESULTS = ROOT / "docs/results/accuracy.json"
DOCUMENT = ROOT / "docs/accuracy.md"
README = ROOT / "README.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("run", "train what is missing, write rows"),
        ("plan", "list the runs and which of them are done"),
    ):
        command = commands.add_parser(name, help=text)
        add = command.add_argument
        add("--task", required=True, choices=sorted(TASKS))
        add(
            "--only",
            nargs="+",
            metavar="SETTING",
            help=f"main ({' '.join(main_settings())}), side (the others), all, or "
            f"names of {' '.join(SETTINGS)}; default: main",
            default=["main"],
        )
        add("--seeds", nargs="+", type=int, help="default: 1 2 3 main, 1 side")
        add("--epochs", type=int, help="validations, another length than the task's")
        add("--jobs", type=int, default=1, help="trainings at once, 1 thread each")
        add("--threads", type=int, default=1, help="of each training")
        add("--minutes-per-run", type=float, help="stop what takes longer")
        add("--ngpu", type=int, help="of each training; default: the task's")
        add("--results", type=Path, default=RESULTS)
    report = commands.add_parser("report", help="tables and plots from the rows")
    report.add_argument("--results", type=Path, default=RESULTS)
    report.add_argument(
        "--document",
        type=Path,
        nargs="+",
        default=[DOCUMENT, README],
        help="with marked blocks; plots go beside the first, into images",
    )
    report.add_argument(
        "--check", action="store_true", help="change nothing, fail if it is stale"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "report":
            return _report(options)
        runs = _runs(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    study = Study(
        options.results,
        jobs=options.jobs,
        threads=options.threads,
        minutes_per_run=options.minutes_per_run,
        ngpu=options.ngpu,
    )
    if options.command == "plan":
        return _plan(study, runs)
    if options.task.startswith("digits") and not os.environ.get("FSDD"):
        print(
            "FSDD is not set: the path of the Free Spoken Digit Dataset, needed for "
            "stage 1 (egs2_recipes/spoken_digits/asr1/run.sh says where it is from)",
            file=sys.stderr,
        )
    # A plain `kill` is to stop the trainings too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        failures = study.run(runs)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except RuntimeError as error:
        failures = [str(error)]
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _runs(options: argparse.Namespace) -> list[Run]:
    task = TASKS[options.task]
    if options.epochs is not None:
        task = replace(task, epochs=options.epochs)
    groups = {
        "main": list(main_settings()),
        "side": [name for name, s in SETTINGS.items() if s.group == "side"],
        "all": list(SETTINGS),
    }
    names: list[str] = []
    for word in options.only:
        if word not in groups and word not in SETTINGS:
            raise ValueError(
                f"--only {word}: main, side, all, or one of {', '.join(SETTINGS)}"
            )
        names += groups.get(word, [word])
    chosen = [name for name in SETTINGS if name in names]
    return plan(task, chosen, options.seeds or [1, 2, 3], options.seeds or [1])


def _plan(study: Study, runs: Sequence[Run]) -> int:
    done = {row.key for row in read_rows(study.results)}
    for run in runs:
        key = run.task.name, run.setting.name, run.seed, run.task.updates
        print(f"{'done' if key in done else '    '} {run.name}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from benchmarks.accuracy.plots import draw
    from benchmarks.accuracy.tables import fill

    rows = read_rows(options.results)
    if not rows:
        raise ValueError(f"{options.results} has no rows")
    for document in options.document:
        text = document.read_text(encoding="utf-8")
        filled = fill(text, rows)
        if not options.check:
            document.write_text(filled, encoding="utf-8")
            print(f"{document}: filled in from {len(rows)} rows")
        elif filled != text:
            print(f"{document} is not what its rows say", file=sys.stderr)
            return 1
    if options.check:
        return 0
    for path in draw(rows, options.document[0].parent / "images"):
        print(f"plot: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
