#!/usr/bin/env python3
"""Make the corpus: sentences, speech and Kaldi-style data folders.

    PYTHONPATH=../../tools python3 local/make_corpus.py --size study \\
        --output downloads/study --data data

The same options give the same bytes, with the same versions of espeakng-loader,
wordfreq, numpy and scipy. A corpus that is there already is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from dataclasses import asdict, dataclass
from math import gcd
from pathlib import Path

import numpy as np
from data_folder import write_data_folder, write_wave
from scipy.signal import resample_poly
from sentences import choose_words, make_sentences, split_sentences
from speech import Synthesizer, add_noise, make_speakers


@dataclass(frozen=True)
class Size:
    """How much of everything; lengths in characters."""

    characters: int
    train: int
    dev: int
    test: int
    length: tuple[int, int]


SIZES = {
    # tests/espnet/test_mandarin.py: learnt in a minute
    "tiny": Size(40, 120, 8, 8, (3, 5)),
    "study": Size(400, 5000, 80, 300, (5, 9)),
    "large": Size(2000, 40000, 400, 1000, (6, 14)),
}


def speak_corpus(
    size: Size, seed: int, sample_rate: int, folder: Path
) -> dict[str, list[tuple[str, str, str]]]:
    """Speech of all sets under ``folder``; (utterance, speaker, text) by set."""
    from wordfreq import top_n_list

    generator = random.Random(seed)
    noise = np.random.RandomState(seed)
    synthesizer = Synthesizer(seed)
    words = choose_words(
        top_n_list("zh", 20000), size.characters, synthesizer.pronunciation
    )
    sizes = {"train": size.train, "dev": size.dev, "test": size.test}
    sentences = make_sentences(words, sum(sizes.values()), size.length, generator)
    speakers = make_speakers()
    divisor = gcd(sample_rate, synthesizer.sample_rate)
    up, down = sample_rate // divisor, synthesizer.sample_rate // divisor
    sets = {}
    for name, part in split_sentences(sentences, sizes).items():
        sets[name] = []
        (folder / name).mkdir(parents=True)
        for index, sentence in enumerate(part):
            speaker = generator.choice(speakers)
            # Between words a space, for espeak-ng's dictionary; the text has none.
            speech = synthesizer.speak(" ".join(sentence), speaker)
            speech = resample_poly(speech * generator.uniform(0.3, 0.9), up, down)
            speech = add_noise(speech, generator.uniform(10.0, 30.0), noise)
            utterance = f"{speaker.name}-{name}-{index:05d}"
            write_wave(folder / name / f"{utterance}.wav", speech, sample_rate)
            sets[name].append((utterance, speaker.name, "".join(sentence)))
            if (index + 1) % 1000 == 0:
                print(f"  {name}: {index + 1} of {len(part)} spoken", flush=True)
    return sets


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="study")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample_rate", type=int, default=16000)
    parser.add_argument("--output", type=Path, required=True, help="for the speech")
    parser.add_argument("--data", type=Path, required=True, help="for data folders")
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    made_of = json.dumps(
        {"size": asdict(size), "seed": options.seed, "rate": options.sample_rate}
    )
    output = options.output.resolve()
    done = output / "made_of.json"
    listing = output / "utterances.json"
    if done.exists() and done.read_text() == made_of:
        print(f"the corpus in {output} is kept")
        sets = json.loads(listing.read_text())
    else:
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        try:
            sets = speak_corpus(size, options.seed, options.sample_rate, output)
        except RuntimeError as error:
            print(f"make_corpus.py: {error}", file=sys.stderr)
            return 1
        listing.write_text(json.dumps(sets, ensure_ascii=False))
        done.write_text(made_of)
    for name, utterances in sets.items():
        write_data_folder(
            options.data / f"{name}_{options.size}",
            [tuple(row) for row in utterances],
            output / name,
        )
    characters = {c for _, _, text in sets["train"] for c in text}
    print(f"{len(characters)} characters, utterances:", end="")
    print("".join(f" {name} {len(rows)}" for name, rows in sets.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
