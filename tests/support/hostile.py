"""Data that nobody wants, and what a command that fails on it may print."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import soundfile

from support.espnet_commands import OUR_DECODER, SAMPLE_RATE, Corpus, run

SECOND = np.arange(SAMPLE_RATE) / SAMPLE_RATE
TONE = (0.3 * np.sin(2 * np.pi * 300 * SECOND)).astype(np.float32)
ONE_FRAME = 128  # samples: the hop of the tests' front end

# Recording, transcript, and whether it is to be left out of training.
HOSTILE = {
    "empty-transcript": (TONE[:6000], "", False),
    "one-sample": (TONE[:1], "a", True),
    "one-frame": (TONE[:ONE_FRAME], "a", True),
    "no-sample": (TONE[:0], "a", True),
    "more-labels-than-frames": (TONE[:6000], "abcde" * 40, False),
    "unknown-characters": (TONE[:6000], "xyz Ω", False),
    "nan": (np.full(6000, np.nan, np.float32), "ab", True),
    "one-infinity": (np.append(TONE[:6000], np.float32(np.inf)), "ab", True),
    "silent": (np.zeros(6000, np.float32), "ab", False),
    "too-loud": (np.float32(1e30) * TONE[:6000], "ab", True),
}
LEFT_OUT = {name for name, (_, _, left_out) in HOSTILE.items() if left_out}


def make_hostile_corpus(tones: Corpus, folder: Path) -> Corpus:
    """The corpus of tones with the utterances of ``HOSTILE`` in it, and statistics.

    Of an empty transcript ESPnet collects none (it refuses the line), but it does train
    on one.
    """
    corpus = Corpus(folder)
    scp = (tones.folder / "wav.scp").read_text("utf-8")
    text = (tones.folder / "text").read_text("utf-8")
    for name, (samples, transcript, _) in HOSTILE.items():
        path = folder / f"{name}.wav"
        soundfile.write(path, samples, SAMPLE_RATE, subtype="FLOAT")
        scp += f"{name} {path}\n"
        text += f"{name} {transcript}\n"
    shutil.copy(tones.folder / "tokens.txt", folder)
    empty = [name for name, (_, transcript, _) in HOSTILE.items() if not transcript]
    for part, lines in (("wav.scp", scp), ("text", text)):
        kept = [line for line in lines.splitlines(True) if line.split()[0] not in empty]
        (folder / part).write_text("".join(kept), "utf-8")
    run(corpus.train("stats", collect_stats=True, **OUR_DECODER)[0])
    (folder / "wav.scp").write_text(scp, "utf-8")
    (folder / "text").write_text(text, "utf-8")
    for part in ("train", "valid"):
        for name in empty:
            samples = len(HOSTILE[name][0])
            for kind, length in (("speech_shape", samples), ("text_shape", 0)):
                with open(corpus.stats / part / kind, "a") as shapes:
                    shapes.write(f"{name} {length}\n")
    return corpus


def assert_one_message(printed: str, message: str) -> None:
    """That a failed command ends in this message, and had one traceback at most."""
    last = printed.rstrip().splitlines()[-1]
    assert message in last, printed[-2000:]
    assert printed.count("Traceback (most recent call last)") <= 1, printed[-6000:]


def replace_option(command: list[str], old: str, new: str) -> list[str]:
    """The command with one text in its words put in the place of another."""
    assert any(old in word for word in command)
    return [word.replace(old, new) for word in command]
