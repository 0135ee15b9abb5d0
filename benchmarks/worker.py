"""The process of one workload and contender.

It stays alive and takes its turns, so that contenders alternate. Commands come as
JSON lines on standard input, answers go to standard output; whatever a library
prints goes to standard error.

    first line: the job     -> {"ready": true} or {"skipped": reason}
    "first"                 -> memory, loss and how many steps a turn takes
    "turn"                  -> milliseconds and processor milliseconds of a step
    "quit"
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, replace

import torch

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.contenders.base import Step
from benchmarks.inputs import draw_vocabulary, make_inputs
from benchmarks.memory import available_bytes, peak_of
from benchmarks.workloads import Workload
from espnet_sampled_rnnt.loss.memory import peak_bytes

# A turn of a short step takes several, so that the clock and the scheduler do not
# show; one of a long step is not preceded by an untimed one.
_TURN_SECONDS = 0.1
_MOST_STEPS = 50
_LONG_STEP_SECONDS = 1.0
# Of the memory that is there, what a contender may be estimated to take.
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Job:
    """What a worker is to run."""

    workload: Workload
    contender: Contender
    device: torch.device
    seed: int
    threads: int | None

    @classmethod
    def parse(cls, line: str) -> Job:
        """From the JSON line that ``benchmarks.runner`` sends."""
        values = json.loads(line)
        workload = values["workload"]
        for name in ("frames", "labels", "contenders"):
            workload[name] = tuple(workload[name])
        return cls(
            workload=Workload(**workload),
            contender=CONTENDERS[values["contender"]],
            device=torch.device(values["device"]),
            seed=values["seed"],
            threads=values["threads"],
        )


def tiny(workload: Workload) -> Workload:
    """The same kind of problem in a size where only libraries take time and memory."""
    return replace(
        workload,
        frames=(5, 4),
        labels=(3, 2),
        vocab_size=min(64, workload.vocab_size),
        num_samples=min(16, workload.num_samples),
    )


class Worker:
    """Runs the steps of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps_per_turn = 1
        self.seconds = 0.0
        self.step: Step | None = None

    def prepare(self) -> str | None:
        """Make the inputs; gives the reason where the job cannot be done."""
        job = self.job
        if job.threads is not None:
            torch.set_num_threads(job.threads)
        if job.device.type == "cuda":
            torch.cuda.init()
        needed = job.contender.needed_bytes(job.workload)
        there = available_bytes(job.device)
        if there is not None and needed > _MEMORY_SHARE * there:
            return (
                f"would not fit: needs about {needed / 1e6:,.0f} MB ({needed:,} "
                f"bytes), {there / 1e6:,.0f} MB are free"
            )
        job.contender.make(tiny(job.workload), job.device, job.seed)()
        self.step = job.contender.make(job.workload, job.device, job.seed)
        return None

    def first(self) -> dict[str, object]:
        """The run for memory, which is also the warm-up."""
        loss = None

        def run() -> None:
            nonlocal loss
            loss = self.step()

        started = time.perf_counter()
        peak = peak_of(run, self.job.device)
        self.seconds = time.perf_counter() - started
        # The first run pays for page faults and, on CUDA, for choosing kernels.
        if self.seconds < _LONG_STEP_SECONDS:
            self.seconds = self._timed(1)[0]
        self._release()
        steps = math.ceil(_TURN_SECONDS / max(self.seconds, 1e-9))
        self.steps_per_turn = min(_MOST_STEPS, steps)
        return {
            "extra_peak_bytes": peak.extra_bytes,
            "memory_method": peak.method,
            "model_bytes": _model_bytes(self.job),
            "loss": None if loss is None else float(loss),
            "steps_per_repeat": self.steps_per_turn,
            "threads": torch.get_num_threads(),
            "seconds": self.seconds,
        }

    def turn(self) -> dict[str, float]:
        """One repeat."""
        if self.seconds < _LONG_STEP_SECONDS:
            self._timed(1)
        seconds, cpu_seconds = self._timed(self.steps_per_turn)
        self._release()
        return {"ms": seconds * 1e3, "cpu_ms": cpu_seconds * 1e3}

    def _timed(self, steps: int) -> tuple[float, float]:
        self._wait()
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.step()
        self._wait()
        seconds = time.perf_counter() - started
        return seconds / steps, (time.process_time() - cpu_started) / steps

    def _release(self) -> None:
        """Leave the device's memory to the others, who now have their turns."""
        if self.job.device.type == "cuda":
            torch.cuda.empty_cache()

    def _wait(self) -> None:
        if self.job.device.type == "cuda":
            torch.cuda.synchronize(self.job.device)


def _model_bytes(job: Job) -> int | None:
    """What the project's byte model gives for one of its own losses."""
    if not job.contender.name.startswith("ours-"):
        return None
    workload = job.workload
    size = None
    if job.contender.softmax != "full":
        # The draw needs the labels only: a joint width of 1 keeps the rest small.
        narrow = replace(workload, joint_size=1)
        inputs = make_inputs(narrow, torch.device("cpu"), job.seed)
        vocabulary = draw_vocabulary(narrow, inputs, job.contender.softmax, job.seed)
        size = vocabulary.token_ids.size(1)
    return peak_bytes(
        workload.frames,
        workload.labels,
        joint_size=workload.joint_size,
        vocab_size=workload.vocab_size,
        sampled_size=size,
        shared=job.contender.softmax == "batch",
        device_type=job.device.type,
    )


def main() -> None:
    """Take a job and commands from standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(values: dict[str, object]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    worker = Worker(Job.parse(sys.stdin.readline()))
    reason = worker.prepare()
    if reason is not None:
        answer({"skipped": reason})
        return
    answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command == "quit":
            return
        answer(worker.first() if command == "first" else worker.turn())


if __name__ == "__main__":
    main()
