"""``strip``: take what only this package reads out of a checkpoint."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

# Where the sampled transducer keeps the state of schedules and counts.
PREFIX = "sampler."


def strip_state(state: dict[str, Any]) -> list[str]:
    """Remove our keys from a state dict in place; returns their names."""
    ours = [name for name in state if str(name).startswith(PREFIX)]
    for name in ours:
        del state[name]
    return ours


def main(argv: Sequence[str] | None = None) -> int:
    """Write a checkpoint that stock ESPnet loads with ``strict=True``.

    Takes a model file (``valid.loss.ave.pth``) or a training checkpoint
    (``checkpoint.pth``, whose model part is stripped).

    Returns:
        0, or 1 where the file cannot be read or written, with one line saying why.
    """
    parser = argparse.ArgumentParser(
        prog="python -m espnet_sampled_rnnt strip",
        description="Remove the keys of sampling schedules and counts from a "
        "checkpoint, so that stock ESPnet loads it with strict=True.",
    )
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args(argv)
    try:
        state = torch.load(arguments.input, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch.load raises whatever its readers raise; all mean the same here.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        print(f"strip: cannot read {arguments.input}: {reason}", file=sys.stderr)
        return 1
    if not isinstance(state, dict):
        print(f"strip: {arguments.input} holds no state dict", file=sys.stderr)
        return 1
    model = state["model"] if isinstance(state.get("model"), dict) else state
    ours = strip_state(model)
    if arguments.output.is_dir() or not arguments.output.name:
        print(f"strip: {arguments.output} is a folder, not a file", file=sys.stderr)
        return 1
    # First beside the target, then renamed: never half a checkpoint.
    partial = arguments.output.with_name(arguments.output.name + ".partial")
    try:
        torch.save(state, partial)
        os.replace(partial, arguments.output)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        print(f"strip: cannot write {arguments.output}: {error}", file=sys.stderr)
        return 1
    print(f"removed {', '.join(ours) if ours else 'nothing'}: {arguments.output}")
    return 0
