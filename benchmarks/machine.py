"""What a row says about where it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parent.parent


def device_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()


@lru_cache
def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """The machine's memory, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def load_average() -> float | None:
    """Running processes over the last minute, None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@lru_cache
def versions() -> dict[str, str | None]:
    """Versions of Python and of what the figures depend on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "torchaudio", "numba"):
        found[name] = _version(name)
    # Also right where the package is imported from a checkout without installing.
    from espnet_sampled_rnnt import __version__

    found["espnet_sampled_rnnt"] = __version__
    found["cuda"] = torch.version.cuda if torch.cuda.is_available() else None
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@lru_cache
def git_state() -> tuple[str | None, bool | None]:
    """Commit of this checkout and whether tracked files differ from it."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changed is None else bool(changed)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
