"""Counting the bytes that torch allocates, here or in a process of its own."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

TESTS = Path(__file__).resolve().parents[1]


def counted_peak(function: Callable[[], object]) -> int:
    """Most bytes that torch's CPU allocator held at once for ``function``.

    Counted from its start; what ``function`` returns is still held at the end.
    """
    # What was left before must not be given back meanwhile: it would count against.
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with profile(
                activities=[ProfilerActivity.CPU], profile_memory=True
            ) as record:
                result = function()
    finally:
        gc.enable()
    held = peak = 0
    events = record.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    del result
    return peak


def run_isolated(body: str, timeout: float = 600.0, **values: object) -> dict:
    """Run ``body`` in a new Python process; what it puts into ``result`` comes back.

    Args:
        body: statements; ``values``, ``counted_peak`` and ``result`` are defined.
        timeout: in seconds.
        values: numbers, strings and lists.
    """
    program = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "from support.memory import counted_peak\n"
        f"values = json.loads({json.dumps(values)!r})\n"
        "result = {}\n"
        f"{textwrap.dedent(body)}\n"
        "print('RESULT ' + json.dumps(result))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if process.returncode != 0:
        raise RuntimeError(f"the program failed:\n{process.stderr[-3000:]}")
    line = next(
        line
        for line in reversed(process.stdout.splitlines())
        if line.startswith("RESULT ")
    )
    return json.loads(line.removeprefix("RESULT "))
