"""What ESPnet keeps to go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """``checkpoint.pth``; 202511 keeps its statistics there as NumPy's numbers."""
    return torch.load(folder / "checkpoint.pth", weights_only=False)
