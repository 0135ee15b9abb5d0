"""``python -m benchmarks.loss``: measure and write rows."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.contenders import CONTENDERS
from benchmarks.rows import Row, write_rows
from benchmarks.runner import Settings, run_family
from benchmarks.workloads import FAMILIES, Shapes, make_workloads, read_shapes

# Steps that take longer than some 20 seconds on a laptop, or some seconds on an
# accelerator, teach nothing that smaller ones do not.
_MAX_TERAFLOPS = {"cpu": 2.0, "cuda": 100.0}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.loss",
        description="Time and extra peak memory of the transducer loss, forward and "
        "backward, each contender in a process of its own.",
    )
    add = made.add_argument
    add("--workloads", nargs="+", metavar="NAME", help="default: all but tiny")
    add(
        "--contenders",
        nargs="+",
        metavar="NAME",
        help="default: each workload's own; see --list",
    )
    add("--repeats", type=int, default=5, help="default: %(default)s")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    add(
        "--librispeech-shapes",
        type=Path,
        metavar="CSV",
        help="num_frames,num_tokens of LibriSpeech utterances, plain or gzip; the "
        "workloads librispeech and lattice need it",
    )
    add("--output", type=Path, default=Path("rows.json"), help="default: %(default)s")
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--threads", type=int, help="of torch; default: torch's")
    add(
        "--max-teraflops",
        type=float,
        help="skip contenders whose matrix products take more a step; default: "
        + ", ".join(f"{value:g} on {name}" for name, value in _MAX_TERAFLOPS.items()),
    )
    add(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="start no further workload after this time",
    )
    add("--list", action="store_true", help="list workloads and contenders, and end")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if options.list:
        print(listing())
        return 0
    if options.repeats < 1:
        made.error(f"--repeats must be at least 1, but is {options.repeats}")
    if options.device == "cuda" and not torch.cuda.is_available():
        made.error("--device cuda, but torch finds no CUDA device")
    for name in options.contenders or ():
        if name not in CONTENDERS:
            made.error(f"contender {name!r} is not known; see --list")
    families = options.workloads or [name for name in FAMILIES if name != "tiny"]
    for name in families:
        if name not in FAMILIES:
            made.error(f"workload {name!r} is not known; see --list")
    shapes: Shapes | None = None
    if options.librispeech_shapes is not None:
        try:
            shapes = read_shapes(options.librispeech_shapes)
        except (OSError, ValueError) as error:
            made.error(f"--librispeech-shapes: {error}")
    most = options.max_teraflops
    if most is None:
        most = _MAX_TERAFLOPS[options.device]
    settings = Settings(
        device=options.device,
        repeats=options.repeats,
        most_flops=most * 1e12,
        seed=options.seed,
        threads=options.threads,
        run=secrets.token_hex(4),
        say=lambda line: print(line, flush=True),
    )
    return _run(families, shapes, options, settings)


def _run(
    families: list[str],
    shapes: Shapes | None,
    options: argparse.Namespace,
    settings: Settings,
) -> int:
    device = torch.device(settings.device)
    settings.say(
        f"{machine.device_name(device)}, {machine.cores()} cores, "
        f"load {machine.load_average()}, torch {torch.__version__}"
    )
    started = time.monotonic()
    rows: list[Row] = []
    for family in families:
        if FAMILIES[family].needs_shapes and shapes is None:
            settings.say(f"{family:22} skipped: needs --librispeech-shapes")
            continue
        spent = time.monotonic() - started
        if options.deadline is not None and spent > options.deadline:
            settings.say(f"{family:22} skipped: {spent:.0f} s are over the deadline")
            continue
        workloads = make_workloads(family, shapes)
        rows += run_family(workloads, options.contenders, settings)
        # After each family, so that a run that is stopped has not been in vain.
        write_rows(options.output, rows)
    settings.say(f"{len(rows)} rows in {options.output}")
    return 0 if any(row.skipped is None for row in rows) else 1


def listing() -> str:
    """Workloads with their contenders, then all contenders."""
    example: Shapes = ((5, 4), (3, 2))
    lines = ["workloads, each with its own contenders:"]
    for name, family in FAMILIES.items():
        workloads = make_workloads(name, example)
        contenders = dict.fromkeys(c for w in workloads for c in w.contenders)
        lines.append(f"  {name:14} {family.description}")
        lines.append(f"  {'':14}   {' '.join(contenders)}")
    lines.append("contenders:")
    lines += [f"  {c.name:24} {c.description}" for c in CONTENDERS.values()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
