"""Write Kaldi-style data folders and WAV files, for recipes that make their corpus."""

from __future__ import annotations

import shutil
import wave
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def write_wave(path: Path, samples: np.ndarray, sample_rate: int) -> None:
    """(n,) float samples as 16-bit mono, scaled down where they would clip."""
    samples = samples / max(1.0, np.abs(samples).max() / 0.99)
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(sample_rate)
        stream.writeframes(np.round(samples * 32767).astype("<i2").tobytes())


def write_data_folder(
    folder: Path, utterances: Iterable[tuple[str, str, str]], wave_folder: Path
) -> None:
    """wav.scp, text, utt2spk and spk2utt.

    Args:
        folder: made, or replaced.
        utterances: (utterance, speaker, text); an utterance's name begins with its
            speaker's, as Kaldi's sorting wants.
        wave_folder: where ``<utterance>.wav`` are.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    utterances = sorted(utterances)
    by_speaker: dict[str, list[str]] = {}
    for name, speaker, _ in utterances:
        by_speaker.setdefault(speaker, []).append(name)
    lines = {
        "wav.scp": [f"{name} {wave_folder / name}.wav" for name, _, _ in utterances],
        "text": [f"{name} {text}" for name, _, text in utterances],
        "utt2spk": [f"{name} {speaker}" for name, speaker, _ in utterances],
        "spk2utt": [f"{s} {' '.join(names)}" for s, names in by_speaker.items()],
    }
    for file, rows in lines.items():
        (folder / file).write_text("\n".join(rows) + "\n", encoding="utf-8")
