#!/usr/bin/env python3
"""A few spoken sentences, laid out exactly as a corpus is on disk, to try its recipe.

    python3 miniature.py librispeech OUTPUT      -> OUTPUT/LibriSpeech/
    python3 miniature.py aishell OUTPUT          -> OUTPUT/{data,resource}_aishell/
    python3 miniature.py csj OUTPUT --data DATA  -> OUTPUT/WAV/, DATA/train_nodup/, ...

Sentences of random words spoken by espeak-ng (package espeakng-loader), in seconds. The
first two go through the corpus's own data preparation, ``./run.sh --corpus OUTPUT``.
CSJ's transcripts have a format of their own; its miniature is what its data
preparation would leave, the data folders.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
import soundfile
from data_folder import write_data_folder
from scipy.signal import resample_poly

sys.path.append(str(Path(__file__).resolve().parents[1] / "tts_mandarin/asr1/local"))
from speech import Speaker, Synthesizer

SAMPLE_RATE = 16000
SOUNDS = (".flac", ".wav")
PAUSE = np.zeros(SAMPLE_RATE // 4)
ENGLISH = (
    "about again all always because before began book change could day down ear found "
    "fire give good great hand head house if joy kind light little long make man many "
    "mother never night old other people quick right river said she thing time under "
    "voice water way what with word work world year young zeal box"
)
MANDARIN = (
    "今天 天气 我们 学习 中国 北京 上海 工作 时间 问题 市场 公司 经济 发展 社会 生活 "
    "孩子 老师 学校 朋友 音乐 电影 新闻 政府 城市 价格 投资 产品 技术 服务"
)
JAPANESE = (
    "えーと わたし たち けんきゅう おんせい にんしき じっけん けっか これ それ から "
    "まず つぎ に あの です ます こと もの データ モデル システム さくら みず やま"
)


@dataclass(frozen=True)
class Language:
    """How to speak and what.

    Attributes:
        voice: espeak-ng's name of the language.
        words: to make sentences of.
        length: fewest and most words of a sentence.
    """

    voice: str
    words: tuple[str, ...]
    length: tuple[int, int]


LANGUAGES = {
    "librispeech": Language("en-us", tuple(ENGLISH.split()), (3, 6)),
    "aishell": Language("cmn", tuple(MANDARIN.split()), (3, 5)),
    "csj": Language("ja", tuple(JAPANESE.split()), (3, 6)),
}


class Narrator:
    """Makes sentences of a language and speaks them.

    Args:
        language: what of.
        seed: of the sentences; the same seed gives the same ones.
    """

    def __init__(self, language: Language, seed: int) -> None:
        self._language = language
        self._random = random.Random(seed)
        self._synthesizer = Synthesizer(seed)
        divisor = gcd(SAMPLE_RATE, self._synthesizer.sample_rate)
        self._up = SAMPLE_RATE // divisor
        self._down = self._synthesizer.sample_rate // divisor

    def sentence(self, speaker: int) -> tuple[list[str], np.ndarray]:
        """Words, and (n,) float samples in [-1, 1] at 16 kHz with a little noise."""
        count = self._random.randint(*self._language.length)
        words = self._random.sample(self._language.words, count)
        variant = f"{'fm'[speaker % 2]}{1 + speaker % 4}"
        way = Speaker(
            str(speaker), f"{self._language.voice}+{variant}", 170 + 5 * speaker, 40
        )
        speech = self._synthesizer.speak(" ".join(words), way)
        speech = resample_poly(0.6 * speech, self._up, self._down)
        noise = np.random.RandomState(self._random.randrange(2**31))
        return words, speech + 1e-3 * noise.standard_normal(len(speech))


def write_sound(path: Path, samples: np.ndarray) -> None:
    """(n,) float samples as 16-bit mono, in the format of the name's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.clip(samples, -0.99, 0.99), SAMPLE_RATE, "PCM_16")


def make_librispeech(output: Path, narrator: Narrator) -> None:
    """All seven parts: folders reader/chapter of FLAC files with one .trans.txt."""
    root = output / "LibriSpeech"
    training = ("train-clean-100", "train-clean-360", "train-other-500")
    evaluation = ("dev-clean", "dev-other", "test-clean", "test-other")
    readers, chapters = [], []
    for number, part in enumerate(training + evaluation):
        # LibriSpeech's numbers have no leading zeros and differ in length
        reader, chapter = 19 + 61 * number, 198 + 1000 * number
        sex = "FM"[number % 2]
        readers.append(f"{reader:<5}| {sex} | {part:<17}| 0.10  | Reader {number}")
        chapters.append(f"{chapter:<6}| {reader:<6}| 0.10 | {part:<16} | 1 | 1 | C | B")
        folder = root / part / str(reader) / str(chapter)
        lines = []
        for index in range(4 if part in training else 2):
            words, speech = narrator.sentence(number)
            utterance = f"{reader}-{chapter}-{index:04d}"
            write_sound(folder / f"{utterance}.flac", speech)
            lines.append(f"{utterance} {' '.join(words).upper()}\n")
        (folder / f"{reader}-{chapter}.trans.txt").write_text("".join(lines))
        # ESPnet's mark of a finished download
        (root / part / ".complete").touch()
    tables = {
        "SPEAKERS.TXT": ";ID  |SEX| SUBSET           |MINUTES| NAME\n"
        + "".join(f"{line}\n" for line in readers),
        "CHAPTERS.TXT": ";ID    |READER|MINUTES| SUBSET | PROJ.|BOOK ID| CH. | BOOK\n"
        + "".join(f"{line}\n" for line in chapters),
        "BOOKS.TXT": "; BOOK ID | TITLE | AUTHOR\n",
        "LICENSE.TXT": "Made up by miniature.py; not LibriSpeech.\n",
        "README.TXT": "Made up by miniature.py; not LibriSpeech.\n",
    }
    for name, text in tables.items():
        (root / name).write_text(text)


def make_aishell(output: Path, narrator: Narrator) -> None:
    """wav/{train,dev,test}/SPEAKER/*.wav and one transcript of all."""
    root = output / "data_aishell"
    lines = []
    parts = {
        "train": ("S0002", "S0003", "S0004"),
        "dev": ("S0724",),
        "test": ("S0764",),
    }
    number = 0
    for part, speakers in parts.items():
        for speaker in speakers:
            number += 1
            for index in range(4):
                words, speech = narrator.sentence(number)
                utterance = f"BAC009{speaker}W{122 + index:04d}"
                write_sound(root / "wav" / part / speaker / f"{utterance}.wav", speech)
                lines.append(f"{utterance} {' '.join(words)}\n")
    transcript = root / "transcript/aishell_transcript_v0.8.txt"
    transcript.parent.mkdir()
    transcript.write_text("".join(lines), encoding="utf-8")
    resource = output / "resource_aishell"
    resource.mkdir()
    (resource / "lexicon.txt").write_text("SIL sil\n")
    (resource / "speaker.info").write_text("0002 F\n")
    for folder in (root, resource):
        (folder / ".complete").touch()  # ESPnet's mark of a finished download


def make_csj(output: Path, narrator: Narrator, data: Path) -> None:
    """Lectures of several utterances, and data folders that cut them by segments.

    Training has an academic lecture (A...) and a simulated one (S...), so that the
    recipe's subset of the academic ones is a real one.
    """
    lectures = {
        "train_nodup": ("A01F0055", "A01M0074", "S01M0005"),
        "train_dev": ("A01F0019",),
        "eval1": ("A01M0110",),
        "eval2": ("A01M0056",),
        "eval3": ("S00F0066",),
    }
    number = 0
    for part, names in lectures.items():
        utterances, recordings, segments = [], [], []
        for name in names:
            number += 1
            pieces, position = [PAUSE], len(PAUSE)
            for _ in range(4 if part.startswith("train") else 2):
                words, speech = narrator.sentence(number)
                start, end = (
                    position / SAMPLE_RATE,
                    (position + len(speech)) / SAMPLE_RATE,
                )
                utterance = f"{name}_{int(1000 * start):07d}_{int(1000 * end):07d}"
                utterances.append((utterance, name, "".join(words)))
                segments.append(f"{utterance} {name} {start:.3f} {end:.3f}\n")
                pieces += [speech, PAUSE]
                position += len(speech) + len(PAUSE)
            path = (output / "WAV" / f"{name}.wav").resolve()
            write_sound(path, np.concatenate(pieces))
            recordings.append(f"{name} cat {path} |\n")
        folder = data / part
        write_data_folder(folder, utterances, output)
        (folder / "wav.scp").write_text("".join(sorted(recordings)))
        (folder / "segments").write_text("".join(sorted(segments)))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", choices=sorted(LANGUAGES))
    parser.add_argument("output", type=Path, help="must not exist, or be empty")
    parser.add_argument("--data", type=Path, help="csj: where its data folders go")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if (options.corpus == "csj") != (options.data is not None):
        parser.error("--data goes with csj, and csj with --data")
    if options.output.exists() and any(options.output.iterdir()):
        # a corpus may be there: nothing of it is to be touched
        parser.error(f"{options.output} is not empty")
    options.output.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path, Narrator], None]] = {
        "librispeech": make_librispeech,
        "aishell": make_aishell,
        "csj": lambda output, narrator: make_csj(output, narrator, options.data),
    }
    try:
        narrator = Narrator(LANGUAGES[options.corpus], options.seed)
        makers[options.corpus](options.output, narrator)
    except RuntimeError as error:
        print(f"miniature.py: {error}", file=sys.stderr)
        return 1
    sounds = sum(1 for path in options.output.rglob("*") if path.suffix in SOUNDS)
    print(f"{options.output}: a miniature of {options.corpus}, {sounds} recordings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
