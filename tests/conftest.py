"""Fixtures that several test modules share."""

from __future__ import annotations

import sys

import pytest
from support.asr_models import warprnnt_stand_in


@pytest.fixture
def espnets_own_transducer(monkeypatch):
    """Let ESPnet's own transducer be built."""
    monkeypatch.setitem(sys.modules, "warprnnt_pytorch", warprnnt_stand_in())
