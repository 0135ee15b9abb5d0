"""Peak memory of a call, over what was there before it.

CUDA: the allocator's own peak. CPU: resident size of the process, from the kernel's
high-water mark, which Linux lets a process reset; where it does not, from a thread
that samples the resident size.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

_PROC = Path("/proc/self")
_SAMPLE_SECONDS = 0.0005


class Peak(NamedTuple):
    """Extra peak memory of a call, None where it cannot be known, and how it was."""

    extra_bytes: int | None
    method: str


def peak_of(call: Callable[[], object], device: torch.device) -> Peak:
    """Run ``call`` once and measure it.

    On a CPU pages that the C library kept from earlier calls are given back first
    where it can, for they would hide what the call takes.
    """
    gc.collect()
    if device.type == "cuda":
        return _cuda_peak(call, device)
    _trim()
    if not (_PROC / "status").exists():
        call()
        return Peak(None, "not known: no /proc here")
    return _reset_peak(call) or _sampled_peak(call)


def available_bytes(device: torch.device) -> int | None:
    """Memory that can be had now on ``device``, None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
                return min([free, *_cgroup_left()])
    return None


def _cgroup_left() -> list[int]:
    folder = Path("/sys/fs/cgroup")
    try:
        most = int((folder / "memory.max").read_text())  # "max" is no number
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return []
    return [max(0, most - used)]


def _cuda_peak(call: Callable[[], object], device: torch.device) -> Peak:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return Peak(peak - before, "torch's CUDA allocator")


def _trim() -> None:
    """Give freed heap pages back to the system; glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int:
    """A size of /proc/self/status in bytes."""
    for line in (_PROC / "status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


def _reset_peak(call: Callable[[], object]) -> Peak | None:
    """By the kernel's mark, or None, before ``call``, where it cannot be reset."""
    try:
        (_PROC / "clear_refs").write_text("5")
        before = _status("VmRSS")
        if _status("VmHWM") > before + 2**20:  # the reset did nothing
            return None
    except OSError:
        return None
    call()
    return Peak(max(0, _status("VmHWM") - before), "VmHWM")


def _sampled_peak(call: Callable[[], object]) -> Peak:
    before = highest = _status("VmRSS")
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(_SAMPLE_SECONDS):
            highest = max(highest, _status("VmRSS"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return Peak(highest - before, "VmRSS, sampled")
