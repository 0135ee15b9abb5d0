"""From an experiment folder of asr.sh to a row's figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import editdistance

from espnet_sampled_rnnt.commands.report.experiment import read_experiment

# A validation CER below this means that the early plateau, where the transducer
# answers blank or the commonest token to everything, has been left.
PLATEAU_CER = 50.0

Curves = Mapping[str, Mapping[int, float]]


def read_transcripts(path: Path) -> dict[str, str]:
    """Kaldi's ``text``: what was said by utterance, without spaces."""
    texts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        texts[name] = "".join(words)
    return texts


def error_rates(
    references: Mapping[str, str], hypotheses: Mapping[str, str]
) -> tuple[float, float]:
    """Character and sentence error rate, percent.

    Raises:
        ValueError: an utterance was not decoded, or there is nothing to find.
    """
    missing = sorted(set(references) - set(hypotheses))
    if missing:
        raise ValueError(f"{len(missing)} utterances not decoded, {missing[0]} first")
    characters = sum(map(len, references.values()))
    if characters == 0:
        raise ValueError("the references are empty")
    errors = wrong = 0
    for name, reference in references.items():
        distance = editdistance.eval(reference, hypotheses[name])
        errors += distance
        wrong += distance > 0
    return 100.0 * errors / characters, 100.0 * wrong / len(references)


def make_curve(curves: Curves, updates_per_epoch: int) -> list[dict[str, float | None]]:
    """One entry an epoch; see ``Row.curve``.

    Args:
        curves: of an experiment: "train/loss" and the like, values by epoch.
        updates_per_epoch: updates between two validations.
    """

    def value(name: str, epoch: int, scale: float = 1.0) -> float | None:
        found = curves.get(name, {}).get(epoch)
        # NaN is no JSON, and is how ESPnet shows what was not measured.
        return None if found is None or found != found else round(found * scale, 4)

    curve, seconds = [], 0.0
    for epoch in sorted(curves.get("valid/loss_transducer", {})):
        seconds += (curves["train/train_time"][epoch]) * updates_per_epoch
        curve.append(
            {
                "update": epoch * updates_per_epoch,
                "seconds": round(seconds, 1),
                "cer": value("valid/cer_transducer", epoch, 100.0),
                "cer_ctc": value("valid/cer_ctc", epoch, 100.0),
                "loss": value("valid/loss_transducer", epoch),
                "loss_ctc": value("valid/loss_ctc", epoch),
                "train_loss": value("train/loss_transducer", epoch),
                "coverage": value("train/sampling_coverage", epoch),
            }
        )
    return curve


def updates_until(
    curve: Sequence[Mapping[str, float | None]], level: float, axis: str = "update"
) -> float | None:
    """Where the validation CER first falls below a level; None where it never does.

    Straight lines between validations, from 100 % at the start.
    """
    place, before = 0.0, 100.0
    for entry in curve:
        if entry["cer"] is None:
            continue
        if entry["cer"] < level:
            share = (before - level) / (before - entry["cer"]) if before > level else 0
            return place + share * (entry[axis] - place)
        place, before = entry[axis], entry["cer"]
    return None


def find_decoding(folder: Path, test_set: str) -> Path:
    """The hypotheses of the newest decoding of a set.

    Raises:
        FileNotFoundError: it was not decoded.
    """
    found = list(folder.glob(f"*/{test_set}/text"))
    if not found:
        raise FileNotFoundError(f"{folder} has no decoding of {test_set}")
    return max(found, key=lambda path: path.stat().st_mtime)


def measure(
    folder: Path, reference: Path, test_set: str, updates_per_epoch: int
) -> dict[str, Any]:
    """What a finished run's folder says, by the names of ``Row``.

    Args:
        folder: asr.sh's asr_exp.
        reference: Kaldi's ``text`` of the test set.
        test_set: its name.
        updates_per_epoch: updates between two validations.
    """
    experiment = read_experiment(folder)
    curves = experiment.curves
    curve = make_curve(curves, updates_per_epoch)
    cer, ser = error_rates(
        read_transcripts(reference), read_transcripts(find_decoding(folder, test_set))
    )
    model_conf = experiment.config["model_conf"]
    samples = model_conf["num_samples"]
    sampled = [
        entry["coverage"]
        for entry in curve
        if entry["coverage"] is not None and entry["coverage"] < 1.0
    ]
    coverage = None
    if samples and sampled:
        coverage = statistics.fmean(sampled[-max(1, len(sampled) // 4) :])
    return {
        "distribution": model_conf["sampling_distribution"] if samples else None,
        "scope": model_conf["sampling_scope"],
        "correction": model_conf["logit_correction"],
        "num_samples": samples or 0,
        "uniform_mix": model_conf["sampling_uniform_mix"] if samples else None,
        "vocab_size": experiment.vocabulary_size,
        "cer": cer,
        "ser": ser,
        "valid_loss_full": curve[-1]["loss"],
        "valid_cer": curve[-1]["cer"],
        "curve": curve,
        "updates_to_half": updates_until(curve, PLATEAU_CER),
        "seconds_per_update": statistics.median(curves["train/train_time"].values()),
        "coverage": coverage,
        "loss_peak_bytes": max(curves["train/loss_peak_bytes"].values()),
        "sampled_vocabulary_size": statistics.fmean(
            curves["train/sampled_vocabulary_size"].values()
        ),
    }
