#!/usr/bin/env python3
"""Join recordings of the Free Spoken Digit Dataset to utterances.

    PYTHONPATH=../../tools python3 local/make_corpus.py --fsdd fsdd.tar.gz \\
        --digits 2 --output downloads/digits2 --data data

The same options give the same bytes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tarfile
import tempfile
import wave
from pathlib import Path

import numpy as np
from data_folder import write_data_folder, write_wave
from sequences import find_speakers, make_sequences

WHERE_FROM = (
    "github.com/Jakobovski/free-spoken-digit-dataset, commit 26eb9aaf (CC BY-SA 4.0): "
    "a checkout, or a tar.gz that holds its folder 'recordings'"
)
SAMPLE_RATE = 8000
# Utterances of each set, and numbers in an utterance, by the digits of a number.
SIZES = {
    2: ({"train": 5000, "dev": 80, "test": 300}, (2, 4)),
    3: ({"train": 8000, "dev": 80, "test": 300}, (1, 3)),
}


def unpack(fsdd: Path, scratch: Path) -> Path:
    """The folder ``recordings`` of an archive or a checkout.

    Raises:
        FileNotFoundError: there is none; the message says where to get it.
    """
    if not fsdd.exists():
        raise FileNotFoundError(f"{fsdd} is not there. Get {WHERE_FROM}")
    if fsdd.is_file():
        with tarfile.open(fsdd) as archive:
            archive.extractall(scratch, filter="data")
        fsdd = scratch
    for folder in (fsdd, *sorted(fsdd.glob("*"))):
        for candidate in (folder, folder / "recordings"):
            if any(candidate.glob("*_*_*.wav")):
                return candidate
    raise FileNotFoundError(f"{fsdd} holds no recordings. Get {WHERE_FROM}")


def read_recording(path: Path) -> np.ndarray:
    """(n,) float64 samples in [-1, 1].

    Raises:
        ValueError: it is not 8 kHz, 16 bit, mono.
    """
    with wave.open(str(path), "rb") as stream:
        kind = stream.getframerate(), stream.getsampwidth(), stream.getnchannels()
        if kind != (SAMPLE_RATE, 2, 1):
            raise ValueError(
                f"{path} has (rate, bytes, channels) {kind}, not ({SAMPLE_RATE}, 2, 1)"
            )
        return np.frombuffer(stream.readframes(-1), dtype="<i2") / 32768.0


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fsdd", type=Path, required=True, help=WHERE_FROM)
    parser.add_argument("--digits", type=int, choices=sorted(SIZES), default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True, help="for the speech")
    parser.add_argument("--data", type=Path, required=True, help="for data folders")
    options = parser.parse_args(arguments)
    counts, length = SIZES[options.digits]
    generator = random.Random(options.seed)
    output = options.output.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            recordings = unpack(options.fsdd, Path(scratch))
            speakers = find_speakers(recordings)
        except (OSError, tarfile.TarError) as error:
            print(f"make_corpus.py: {error}", file=sys.stderr)
            return 1
        # Not before: a wrong path must not cost the corpus that is there.
        shutil.rmtree(output, ignore_errors=True)
        for name, count in counts.items():
            utterances = make_sequences(
                name, count, speakers, options.digits, length, generator
            )
            folder = output / name
            folder.mkdir(parents=True)
            for utterance in utterances:
                pieces = []
                for recording, gap in zip(
                    utterance.recordings, utterance.gaps, strict=True
                ):
                    pieces.append(np.zeros(round(gap * SAMPLE_RATE)))
                    pieces.append(read_recording(recordings / recording))
                write_wave(
                    folder / f"{utterance.name}.wav",
                    np.concatenate(pieces),
                    SAMPLE_RATE,
                )
            write_data_folder(
                options.data / f"{name}_digits{options.digits}",
                [(u.name, u.speaker, " ".join(u.tokens)) for u in utterances],
                folder,
            )
    print(
        f"{10**options.digits} numbers, {len(speakers)} speakers, utterances: {counts}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
