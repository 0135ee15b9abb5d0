"""Utterance sizes from shape files, and the batches that ESPnet makes of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet2.fileio.read_text import load_num_sequence_text
from espnet2.samplers.build_batch_sampler import BATCH_TYPES, build_batch_sampler

__all__ = ["BINNED_TYPES", "Batch", "Shapes", "make_batches", "read_shapes"]

# Batch types whose size ``batch_bins`` rules; that of the others ``batch_size`` does.
BINNED_TYPES = ("numel", "length")


@dataclass(frozen=True)
class Shapes:
    """What the shape files of collect_stats say.

    Attributes:
        files: speech first, then text, as ESPnet takes them.
        speech: samples, or frames of features, of each utterance.
        text: tokens of each utterance.
        feature_size: width of the features, None where speech is waveforms.
        vocabulary_size: as asr.sh writes it beside the tokens, None where it does not.
    """

    files: tuple[str, str]
    speech: Mapping[str, int]
    text: Mapping[str, int]
    feature_size: int | None
    vocabulary_size: int | None


@dataclass(frozen=True)
class Batch:
    """Utterances that go through the model together.

    Attributes:
        speech: samples or frames of features of each.
        labels: tokens of each.
    """

    speech: tuple[int, ...]
    labels: tuple[int, ...]


def read_shapes(files: Sequence[str]) -> Shapes:
    """Read ``speech_shape`` and ``text_shape``.

    Raises:
        ValueError: not two files, one that is missing, empty or no shape file, or two
            that do not list the same utterances.
    """
    if len(files) != 2:
        raise ValueError(
            f"{len(files)} shape files, but two are needed: speech_shape and text_shape"
        )
    speech, text = (_read(file) for file in files)
    differing = speech.keys() ^ text.keys()
    if differing:
        raise ValueError(
            f"{files[0]} and {files[1]} do not list the same utterances: "
            f"{min(differing)} is in one only"
        )
    if all(text[name][0] > row[0] for name, row in speech.items()):
        raise ValueError(
            f"{files[1]} has the longer utterances, all of them, but it should be "
            "text_shape; speech_shape comes first"
        )
    first_speech, first_text = next(iter(speech.values())), next(iter(text.values()))
    return Shapes(
        files=(str(files[0]), str(files[1])),
        speech={name: row[0] for name, row in speech.items()},
        text={name: row[0] for name, row in text.items()},
        feature_size=first_speech[1] if len(first_speech) > 1 else None,
        vocabulary_size=first_text[1] if len(first_text) > 1 else None,
    )


def _read(file: str) -> dict[str, list[int]]:
    if not Path(file).is_file():
        raise ValueError(f"no shape file {file}; ESPnet's collect_stats writes it")
    try:
        rows = load_num_sequence_text(file, loader_type="csv_int")
    except (ValueError, RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no shape file: {error}") from None
    if not rows:
        raise ValueError(f"{file} is empty")
    wrong = next((name for name, row in rows.items() if row[0] < 0), None)
    if wrong is not None:
        raise ValueError(f"{file} gives {wrong} the length {rows[wrong][0]}")
    return rows


def make_batches(
    shapes: Shapes, options: argparse.Namespace, num_gpus: int, size: int | None = None
) -> list[Batch]:
    """The training batches of one GPU and all others, by ESPnet's own samplers.

    Args:
        shapes: of the training set.
        options: ESPnet's, of the configuration.
        num_gpus: that each batch is dealt to.
        size: in the place of the configuration's batch_bins or batch_size.

    Raises:
        ValueError: the sampler refuses what it is given.
    """
    kind = options.batch_type
    if not isinstance(kind, str) or kind not in BATCH_TYPES:
        raise ValueError(f"batch_type is {kind!r}; known: {', '.join(BATCH_TYPES)}")
    binned = kind in BINNED_TYPES
    try:
        sampler = build_batch_sampler(
            type=kind,
            shape_files=list(shapes.files),
            fold_lengths=options.fold_length,
            batch_size=options.batch_size if binned or size is None else size,
            batch_bins=size if binned and size is not None else options.batch_bins,
            sort_in_batch=options.sort_in_batch,
            sort_batch=options.sort_batch,
            drop_last=options.drop_last_iter,
            min_batch_size=num_gpus if num_gpus > 1 else options.min_batch_size,
        )
    except Exception as error:  # whatever the samplers say to wrong options
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"ESPnet makes no batches of this: {reason}") from None
    batches = []
    for keys in sampler:
        for rank in range(num_gpus):
            own = keys[rank::num_gpus]
            if own:
                batches.append(
                    Batch(
                        tuple(shapes.speech[key] for key in own),
                        tuple(shapes.text[key] for key in own),
                    )
                )
    return batches
