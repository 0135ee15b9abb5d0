"""Measure the memory of a transducer loss, full and sampled, on a CPU.

Run as a program of its own (``python -m espnet_sampled_rnnt.commands.report.memory``),
because torch's profiler writes to stderr what nobody asked for. It reads a JSON object
from stdin and prints a JSON list of rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class MemoryRow:
    """One measurement.

    Attributes:
        loss: "torchaudio", "full" or "sampled".
        vocabulary_size: V, blank included.
        num_samples: S; 0 unless sampled.
        peak_bytes: the most that torch held at once during forward and backward,
            beyond what was there before, gradients included.
    """

    loss: str
    vocabulary_size: int
    num_samples: int
    peak_bytes: int


def measure(
    workload: tuple[tuple[int, int], ...],
    joint_size: int,
    cases: tuple[tuple[int, int], ...],
) -> list[MemoryRow]:
    """Measure in a process of its own.

    Args:
        workload: (frames, labels) of each utterance of the batch.
        joint_size: J.
        cases: (V, S) pairs.

    Returns:
        Three rows for each case.

    Raises:
        RuntimeError: the measurement failed; the message is its last words.
    """
    task = {"workload": workload, "joint_size": joint_size, "cases": cases}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(last[-1])
    return [MemoryRow(**row) for row in json.loads(done.stdout)]


def _peak_bytes(function: Callable[[], None]) -> int:
    """The peak of torch's CPU allocations while ``function`` runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = [
        (event.start_ns(), event.nbytes())
        for event in recorded.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    held = peak = 0
    for _, change in sorted(events, key=lambda event: event[0]):
        held += change
        peak = max(peak, held)
    return peak


def _measure_case(
    workload: list[list[int]], joint_size: int, vocab_size: int, num_samples: int
) -> list[MemoryRow]:
    import torch
    import torchaudio

    from espnet_sampled_rnnt import sample_vocabulary, transducer_loss

    generator = torch.Generator().manual_seed(0)
    batch = len(workload)
    frames = torch.tensor([pair[0] for pair in workload])
    labels = torch.tensor([pair[1] for pair in workload])
    width = (vocab_size, joint_size)
    targets = torch.randint(
        1, vocab_size, (batch, int(labels.max())), generator=generator
    )
    shapes = (
        (batch, int(frames.max()), joint_size),
        (batch, int(labels.max()) + 1, joint_size),
        width,
        (vocab_size,),
    )
    enc, dec, weight, bias = (
        (torch.randn(shape, generator=generator) * 0.1).requires_grad_()
        for shape in shapes
    )

    def torchaudio_loss() -> None:
        logits = torch.nn.functional.linear(
            torch.tanh(enc.unsqueeze(2) + dec.unsqueeze(1)), weight, bias
        )
        torchaudio.functional.rnnt_loss(
            logits, targets.int(), frames.int(), labels.int(), blank=0
        ).backward()

    def our_loss(sampled: bool) -> None:
        vocabulary = None
        if sampled:
            vocabulary = sample_vocabulary(
                targets,
                labels,
                vocab_size=vocab_size,
                num_samples=num_samples,
                generator=generator,
            )
        transducer_loss(
            enc, dec, weight, bias, targets, frames, labels, vocabulary=vocabulary
        ).backward()

    losses: dict[str, Callable[[], None]] = {
        "torchaudio": torchaudio_loss,
        "full": lambda: our_loss(False),
        "sampled": lambda: our_loss(True),
    }
    rows = []
    for name, loss in losses.items():
        for _ in range(2):  # the first run compiles and fills caches
            for tensor in (enc, dec, weight, bias):
                tensor.grad = None
            peak = _peak_bytes(loss)
        rows.append(
            MemoryRow(name, vocab_size, num_samples if name == "sampled" else 0, peak)
        )
    return rows


def main() -> int:
    """Read the task from stdin, print the rows."""
    task = json.load(sys.stdin)
    rows = []
    for vocab_size, num_samples in task["cases"]:
        rows += _measure_case(
            task["workload"], task["joint_size"], vocab_size, num_samples
        )
    print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
