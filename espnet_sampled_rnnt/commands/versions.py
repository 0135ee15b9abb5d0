"""Which versions of ESPnet, Python, torch and torchaudio go together.

Tried with the releases of November 2026; what is not listed is not known to fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from espnet_sampled_rnnt.commands.findings import Finding

__all__ = ["check_versions", "torchaudio_for"]

Release = tuple[int, ...]


class _Espnet(NamedTuple):
    """Ranges (at least, below) that go with an ESPnet release."""

    python: tuple[Release, Release]
    torch: tuple[Release, Release]
    torch_excluded: tuple[Release, ...]
    reason: str


_ESPNET = {
    "202611": _Espnet(
        ((3, 12), (3, 14)), ((2, 11), (2, 15)), ((2, 12),), "ESPnet asks for them so"
    ),
    "202511": _Espnet(
        ((3, 9), (3, 12)),
        ((2, 5), (2, 13)),
        (),
        "ESPnet wants setuptools < 74, torch 2.13 and newer do not",
    ),
}
_OLDEST_ESPNET = 202511
_AUTOLOAD_SINCE = (2, 5)


def check_versions(versions: Mapping[str, str | None]) -> list[Finding]:
    """Judge a combination of versions.

    Args:
        versions: version, or None where not installed, of "python", "espnet",
            "torch" and "torchaudio".
    """
    found = [*_check_espnet(versions), *_check_torchaudio(versions)]
    if found:
        return found
    if None in versions.values():
        return [Finding("info", "not all are installed, so this cannot be said yet")]
    return [Finding("ok", "these versions go together")]


def torchaudio_for(torch: str | None) -> str:
    """The requirement for the torchaudio that loads beside a version of torch."""
    release = _release(torch)[:2]
    if release in ((2, 11), (2, 12)):
        return "torchaudio==2.11.0"
    if release and release < (2, 11):  # the two were released in step until then
        return f"torchaudio=={release[0]}.{release[1]}.*"
    return "torchaudio"


def _check_espnet(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    espnet, torch = versions["espnet"], _release(versions["torch"])
    if torch and torch < _AUTOLOAD_SINCE:
        yield Finding(
            "note",
            f"torch {versions['torch']} registers no plugin by itself (2.5 does)",
            "pip install -U torch, or use the launcher (--help)",
        )
    if espnet is None:
        return
    if espnet not in _ESPNET:
        old = bool(_release(espnet)) and _release(espnet)[0] < _OLDEST_ESPNET
        yield Finding(
            "problem" if old else "note",
            f"ESPnet {espnet} {'is too old' if old else 'was not tried'}; "
            f"tried: {', '.join(_ESPNET)}",
            "pip install -U espnet" if old else None,
        )
        return
    known = _ESPNET[espnet]
    python = _release(versions["python"])
    if not known.python[0] <= python[:2] < known.python[1]:
        yield Finding(
            "note",
            f"ESPnet {espnet} goes with Python {_span(known.python)}, "
            f"here is {versions['python']}",
            f"make an environment with Python {_span(known.python)}",
        )
    if torch and (
        not known.torch[0] <= torch < known.torch[1]
        or torch[:2] in known.torch_excluded
    ):
        excluded = "".join(f" but not {_dotted(x)}" for x in known.torch_excluded)
        yield Finding(
            "note",
            f"ESPnet {espnet} goes with torch {_span(known.torch)}{excluded}, here is "
            f"{versions['torch']}: {known.reason}",
            f"pip install 'torch>={_dotted(known.torch[0])},"
            + "".join(f"!={_dotted(x)}.*," for x in known.torch_excluded)
            + f"<{_dotted(known.torch[1])}'",
        )


def _check_torchaudio(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    torch, torchaudio = versions["torch"], versions["torchaudio"]
    if _release(torch)[:2] in ((2, 11), (2, 12)) and _release(torchaudio) == (2, 11, 1):
        yield Finding(
            "problem",
            f"torchaudio {torchaudio} does not load beside torch {torch}",
            f"pip install '{torchaudio_for(torch)}'",
        )


def _release(version: str | None) -> Release:
    """``2.14.1+cu130`` as (2, 14, 1); nothing, or nothing numeric, as ()."""
    match = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))


def _span(bounds: tuple[Release, Release]) -> str:
    return f">= {_dotted(bounds[0])}, < {_dotted(bounds[1])}"
