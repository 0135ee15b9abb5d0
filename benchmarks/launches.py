"""``python -m benchmarks.launches``: kernels, waits and top kernels of one step.

On CUDA a step should launch kernels without waiting for any: each wait that torch
knows of is printed with the line of Python that caused it. On a CPU, where there is
nothing to wait for, the operators of the step are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import machine
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.base import Step
from benchmarks.workloads import FAMILIES, make_workloads

_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_ROOT = Path(__file__).resolve().parent.parent
_TOP = 8


def count(step: Step, device: torch.device) -> dict[str, object]:
    """Profile one step, after two that warm up.

    Returns:
        For a CPU ``operators``. For CUDA ``kernels``, ``host_copies`` (from the
        device to the host), ``waits`` (calls of the driver that wait),
        ``wait_places`` (file and line: how often) and ``device_ms``; for both
        ``top``, name and milliseconds.
    """
    step()
    step()
    if device.type != "cuda":
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            step()
        events = [e for e in profiler.events() if e.name.startswith("aten::")]
        spent = Counter()
        for event in events:
            spent[event.name] += event.self_cpu_time_total
        return {"operators": len(events), "top": _top(spent)}

    torch.cuda.synchronize(device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize(device)
    spent, kernels, host_copies, waits = Counter(), 0, 0, 0
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            spent[event.name] += event.self_device_time_total
            if event.name.startswith("Memcpy DtoH"):
                host_copies += 1
            elif not event.name.startswith(("Memcpy", "Memset")):
                kernels += 1
        elif event.name in _WAITS:
            waits += 1
    return {
        "kernels": kernels,
        "host_copies": host_copies,
        "waits": waits - 1,  # the one at the end is ours
        "wait_places": dict(_wait_places(step)),
        "device_ms": sum(spent.values()) / 1e3,
        "top": _top(spent),
    }


def _wait_places(step: Step) -> Counter[str]:
    """Where torch says that a step waits for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places: Counter[str] = Counter()
    for warning in caught:
        if "synchroniz" in str(warning.message):
            file = Path(warning.filename)
            if file.is_relative_to(_ROOT):
                file = file.relative_to(_ROOT)
            places[f"{file}:{warning.lineno}"] += 1
    return places


def _top(spent: Counter[str]) -> list[list[object]]:
    """The longest, as name and milliseconds, from microseconds."""
    return [[name[:100], round(us / 1e3, 3)] for name, us in spent.most_common(_TOP)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit code."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.launches")
    add = made.add_argument
    add("--workload", default="method", help="default: %(default)s")
    add(
        "--contenders",
        nargs="+",
        default=["ours-full", "ours-example", "ours-batch"],
        metavar="NAME",
        help="default: ours-full ours-example ours-batch",
    )
    add("--device", choices=("cpu", "cuda"), default="cuda", help="default: cuda")
    add("--output", type=Path, help="also write the counts as JSON")
    options = made.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        made.error("torch finds no CUDA device; --device cpu counts operators")
    if options.workload not in FAMILIES or FAMILIES[options.workload].needs_shapes:
        made.error(f"workload {options.workload!r} is not known, or needs shapes")
    for name in options.contenders:
        if name not in CONTENDERS:
            made.error(f"contender {name!r} is not known")

    device = torch.device(options.device)
    workload = make_workloads(options.workload, None)[0]
    found = []
    for name in options.contenders:
        reason = CONTENDERS[name].unavailable(device)
        if reason is not None:
            print(f"{name}: skipped, {reason}")
            continue
        counts = count(CONTENDERS[name].make(workload, device, 0), device)
        found.append(
            {
                "workload": workload.name,
                "contender": name,
                "device_name": machine.device_name(device),
                **counts,
            }
        )
        print(_text(found[-1]), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _text(counts: dict[str, object]) -> str:
    lines = [f"{counts['workload']}, {counts['contender']}, {counts['device_name']}:"]
    if "operators" in counts:
        lines.append(f"  {counts['operators']} operators")
    else:
        lines.append(
            f"  {counts['kernels']} kernels in {counts['device_ms']:.3f} ms of the "
            f"device, {counts['host_copies']} copies to the host, "
            f"{counts['waits']} waits"
        )
        for place, times in counts["wait_places"].items():
            lines.append(f"  waits {times} x at {place}")
    lines += [
        f"  {milliseconds:10.3f} ms  {name}" for name, milliseconds in counts["top"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
