"""The row of one workload and contender, and files of rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass
class Row:
    """What was measured, on what, with what. Times are of one forward and backward.

    Attributes:
        run: names the run of the command; only rows of one run are compared.
        workload, family, axis, axis_value: see ``benchmarks.workloads``.
        contender: see ``benchmarks.contenders``.
        softmax: "full", "example", "batch" or None.
        device, device_name, cpu_name, cores, threads, memory_bytes: the machine.
        batch, frames, labels: B, the largest T and U.
        nodes, padded_nodes: valid nodes, and B T (U + 1).
        vocab_size, joint_size, num_samples, dtype: V, J, S, type of the inputs.
        median_ms, min_ms, max_ms, cpu_ms: of the repeats; cpu_ms is the median of
            the processor time of all threads.
        times_ms: of each repeat; repeat i of every contender of a family was run in
            the same round.
        repeats, steps_per_repeat: a repeat is the mean of that many steps.
        extra_peak_bytes: peak over the inputs, of the first run after a tiny one.
        memory_method: how that was measured.
        model_bytes: what the project's byte model says, None where there is none.
        enc_dec_gradient_bytes, output_gradient_bytes: part of the extra memory that
            every loss must take.
        loss: its value, to see that contenders did the same.
        load_average: running processes over a minute, when the contender was done.
        skipped: None, or why nothing was measured.
        versions, commit, dirty, date, seed: of the run.
    """

    run: str
    workload: str
    family: str
    axis: str | None
    axis_value: int | None
    contender: str
    softmax: str | None
    device: str
    device_name: str
    cpu_name: str
    cores: int
    threads: int
    memory_bytes: int | None
    batch: int
    frames: int
    labels: int
    nodes: int
    padded_nodes: int
    vocab_size: int
    joint_size: int
    num_samples: int
    dtype: str
    enc_dec_gradient_bytes: int
    output_gradient_bytes: int
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool | None
    date: str
    seed: int
    repeats: int = 0
    steps_per_repeat: int = 0
    times_ms: list[float] = field(default_factory=list)
    median_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    cpu_ms: float | None = None
    extra_peak_bytes: int | None = None
    memory_method: str | None = None
    model_bytes: int | None = None
    loss: float | None = None
    load_average: float | None = None
    skipped: str | None = None

    def set_times(self, times_ms: list[float], cpu_times_ms: list[float]) -> None:
        """Fill in the repeats and what is computed from them."""
        self.repeats = len(times_ms)
        self.times_ms = times_ms
        if times_ms:
            self.median_ms = statistics.median(times_ms)
            self.min_ms, self.max_ms = min(times_ms), max(times_ms)
            self.cpu_ms = statistics.median(cpu_times_ms)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a JSON list, one row a line."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a run that is stopped leaves the rows of before.
    partial = path.with_name(path.name + ".partial")
    partial.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    partial.replace(path)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Rows of one or more files.

    Raises:
        ValueError: a file that holds no such rows.
    """
    names = {f.name for f in fields(Row)}
    rows = []
    for path in paths:
        values = json.loads(path.read_text(encoding="utf-8"))
        for value in values:
            if not isinstance(value, dict) or set(value) != names:
                wrong = sorted(set(value) ^ names) if isinstance(value, dict) else value
                raise ValueError(f"{path} holds no rows of this benchmark: {wrong}")
            rows.append(Row(**value))
    return rows
