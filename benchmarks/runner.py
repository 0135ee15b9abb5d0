"""Starts the workers of a family, lets them take turns, collects rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.base import enc_dec_gradient_bytes, output_gradient_bytes
from benchmarks.rows import Row
from benchmarks.workloads import Workload

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        device: "cpu" or "cuda".
        repeats: rounds.
        most_flops: contenders whose products take more a step are skipped.
        seed: of inputs and draws.
        threads: of torch in each worker, None for its default.
        run: names this run in its rows.
        say: gets a line for each thing that happens.
    """

    device: str
    repeats: int
    most_flops: float
    seed: int
    threads: int | None
    run: str
    say: Callable[[str], None] = print


class WorkerError(RuntimeError):
    """A worker that ended before it answered."""


class Process:
    """A worker process, seen from outside."""

    def __init__(self, workload: Workload, contender: str, settings: Settings) -> None:
        job = {
            "workload": asdict(workload),
            "contender": contender,
            "device": settings.device,
            "seed": settings.seed,
            "threads": settings.threads,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=_ROOT,
        )
        self.send(job)

    def send(self, message: object) -> None:
        """Send a command, or the job, without waiting for the answer."""
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerError(self._end()) from error

    def receive(self) -> dict:
        """Wait for an answer.

        Raises:
            WorkerError: the process ended instead.
        """
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._end())
        return json.loads(line)

    def ask(self, command: str) -> dict:
        """Send a command and wait for the answer."""
        self.send(command)
        return self.receive()

    def close(self) -> None:
        """End the process."""
        try:
            self.send("quit")
            self._process.wait(timeout=30)
        except (WorkerError, subprocess.TimeoutExpired):
            self._process.kill()
        finally:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()

    def _end(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"its process was ended by signal {-code} (9: out of memory?)"
        return f"its process failed with code {code}; the reason stands above"


def new_row(workload: Workload, contender: str, settings: Settings) -> Row:
    """A row in which nothing is measured yet."""
    device = torch.device(settings.device)
    commit, dirty = machine.git_state()
    return Row(
        run=settings.run,
        workload=workload.name,
        family=workload.family,
        axis=workload.axis,
        axis_value=workload.axis_value,
        contender=contender,
        softmax=CONTENDERS[contender].softmax,
        device=settings.device,
        device_name=machine.device_name(device),
        cpu_name=machine.cpu_name(),
        cores=machine.cores(),
        threads=settings.threads or torch.get_num_threads(),
        memory_bytes=machine.memory_bytes(),
        batch=workload.batch,
        frames=max(workload.frames),
        labels=max(workload.labels),
        nodes=workload.nodes,
        padded_nodes=workload.padded_nodes,
        vocab_size=workload.vocab_size,
        joint_size=workload.joint_size,
        num_samples=workload.num_samples,
        dtype="float32",
        enc_dec_gradient_bytes=enc_dec_gradient_bytes(workload),
        output_gradient_bytes=output_gradient_bytes(workload),
        versions=machine.versions(),
        commit=commit,
        dirty=dirty,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seed=settings.seed,
    )


def why_not(workload: Workload, contender: str, settings: Settings) -> str | None:
    """A reason not to start a worker at all, or None."""
    known = CONTENDERS[contender]
    reason = known.unavailable(torch.device(settings.device))
    reason = reason or known.refuses(workload)
    if reason is not None:
        return reason
    flops = known.flops(workload)
    if flops > settings.most_flops:
        return (
            f"would take {flops / 1e12:.2f} TFLOP a step, more than --max-teraflops "
            f"{settings.most_flops / 1e12:g}"
        )
    return None


@dataclass
class _Runner:
    row: Row
    process: Process
    times: list[float]
    cpu_times: list[float]


def run_family(
    workloads: Iterable[Workload], chosen: Iterable[str] | None, settings: Settings
) -> list[Row]:
    """Measure the contenders of all workloads of a family side by side.

    Every round lets each of them run once, so that what else the machine does in
    that time falls on all alike.

    Args:
        workloads: the points of the family.
        chosen: contenders, or None for each workload's own.
        settings: how.

    Returns:
        A row for each, also for those that were skipped.
    """
    rows: list[Row] = []
    runners: list[_Runner] = []
    try:
        for workload in workloads:
            for contender in workload.contenders if chosen is None else chosen:
                row = new_row(workload, contender, settings)
                rows.append(row)
                row.skipped = why_not(workload, contender, settings)
                if row.skipped is not None:
                    _say_skipped(row, settings)
                    continue
                process = Process(workload, contender, settings)
                runners.append(_Runner(row, process, [], []))
        _each(runners, _prepare, settings)
        _each(runners, _first, settings)
        for _ in range(settings.repeats):
            _each(runners, _turn, settings)
        for runner in runners:
            runner.row.set_times(runner.times, runner.cpu_times)
            _say_result(runner.row, settings)
    finally:
        for runner in runners:
            runner.process.close()
    return rows


def _each(
    runners: list[_Runner],
    action: Callable[[_Runner], None],
    settings: Settings,
) -> None:
    """Do ``action`` for each runner; one that fails is left out from then on."""
    for runner in list(runners):
        try:
            action(runner)
        except WorkerError as error:
            runner.row.skipped = str(error)
        if runner.row.skipped is not None:
            _say_skipped(runner.row, settings)
            runner.process.close()
            runners.remove(runner)


def _prepare(runner: _Runner) -> None:
    runner.row.skipped = runner.process.receive().get("skipped")


def _first(runner: _Runner) -> None:
    found = runner.process.ask("first")
    found.pop("seconds")
    for name, value in found.items():
        setattr(runner.row, name, value)


def _turn(runner: _Runner) -> None:
    found = runner.process.ask("turn")
    runner.times.append(found["ms"])
    runner.cpu_times.append(found["cpu_ms"])
    runner.row.load_average = machine.load_average()


def _say_skipped(row: Row, settings: Settings) -> None:
    settings.say(f"{row.workload:22} {row.contender:24} skipped: {row.skipped}")


def _say_result(row: Row, settings: Settings) -> None:
    memory = (
        "?" if row.extra_peak_bytes is None else f"{row.extra_peak_bytes / 1e6:,.1f}"
    )
    settings.say(
        f"{row.workload:22} {row.contender:24} {row.median_ms:10,.2f} ms "
        f"({row.min_ms:,.2f} to {row.max_ms:,.2f})  {memory:>9} MB"
    )
