"""Sequences of recordings of one speaker, read as numbers of a few digits."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

# The data set's own split: takes 0 to 4 of every digit and speaker are for testing.
# It has none for validation, so that comes out of the training takes.
TAKES = {"train": range(5, 45), "dev": range(45, 50), "test": range(5)}


@dataclass(frozen=True)
class Utterance:
    """Recordings to be joined.

    Attributes:
        name: begins with the speaker's.
        speaker: one of the data set's six.
        tokens: numbers, with leading zeros.
        recordings: one file name for each digit.
        gaps: silence before each recording, seconds.
    """

    name: str
    speaker: str
    tokens: tuple[str, ...]
    recordings: tuple[str, ...]
    gaps: tuple[float, ...]


def find_speakers(folder: Path) -> list[str]:
    """The speakers of a ``recordings`` folder, sorted.

    Raises:
        FileNotFoundError: a recording that the split needs is not there.
    """
    speakers = sorted({p.stem.split("_")[1] for p in folder.glob("*_*_*.wav")})
    if not speakers:
        raise FileNotFoundError(f"no recordings <digit>_<speaker>_<take>.wav: {folder}")
    for takes in TAKES.values():
        for speaker in speakers:
            for digit in range(10):
                for take in takes:
                    if not (folder / f"{digit}_{speaker}_{take}.wav").exists():
                        raise FileNotFoundError(
                            f"{folder} lacks take {take} of digit {digit} by {speaker}"
                        )
    return speakers


def make_sequences(
    name: str,
    count: int,
    speakers: list[str],
    digits: int,
    length: tuple[int, int],
    generator: random.Random,
) -> list[Utterance]:
    """Random utterances of one set; different sets share no recording.

    Args:
        name: of the set, one of ``TAKES``.
        count: how many; enough of them hold every number.
        speakers: see :func:`find_speakers`.
        digits: of a number; there are 10 ** digits of them.
        length: least and largest number of numbers in an utterance.
        generator: all randomness.
    """
    pending: list[str] = []
    utterances = []
    for index in range(count):
        speaker = generator.choice(speakers)
        tokens = []
        for _ in range(generator.randint(*length)):
            if not pending:  # every number once, in a new order, before any again
                pending = [f"{n:0{digits}d}" for n in range(10**digits)]
                generator.shuffle(pending)
            tokens.append(pending.pop())
        spoken = "".join(tokens)
        takes = [generator.choice(TAKES[name]) for _ in spoken]
        utterances.append(
            Utterance(
                name=f"{speaker}-{name}-{index:05d}",
                speaker=speaker,
                tokens=tuple(tokens),
                recordings=tuple(
                    f"{digit}_{speaker}_{take}.wav"
                    for digit, take in zip(spoken, takes, strict=True)
                ),
                gaps=tuple(generator.uniform(0.0, 0.08) for _ in spoken),
            )
        )
    return utterances
