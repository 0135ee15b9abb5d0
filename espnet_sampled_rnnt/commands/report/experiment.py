"""Read what an ESPnet training and its decodings left in an experiment folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from espnet_sampled_rnnt.schedules import Schedule

# "12epoch results: [train] loss=1.5, ..., time=3.1 seconds, ..., [valid] loss=..."
_RESULTS = re.compile(r"(\d+)epoch results: (.*)")
_STARTED = re.compile(r"\d+/\d+epoch started")
_SECTION = re.compile(r"\[(train|valid)\] ([^\[]*)")
_VALUE = re.compile(r"(\w+)=([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")
_TRN = re.compile(r"^(.*?)\s*\(([^()\s]+)\)\s*$")

# Encoder frames for each feature frame, by ESPnet's encoder_conf.input_layer.
_SUBSAMPLING = {
    "conv2d": 4,
    "conv2d1": 1,
    "conv2d2": 2,
    "conv2d6": 6,
    "conv2d8": 8,
    "conv1d2": 2,
    "conv1d3": 3,
    "linear": 1,
    "embed": 1,
}
_DEFAULT_HOP = 128  # samples; espnet2's DefaultFrontend


@dataclass(frozen=True)
class Pair:
    """One utterance: its id, what was said, and what was recognised."""

    utterance: str
    reference: str
    hypothesis: str


@dataclass(frozen=True)
class Decoded:
    """One decoded set.

    Attributes:
        name: of the set; behind its decoding's folder where there are several.
        seen: whether training used all of its utterances; None where that cannot be
            told.
        error_rates: percent, by "cer", "wer", "ter".
        scorer: "sclite", or the line with which another scorer names itself.
        pairs: every utterance, in words.
    """

    name: str
    seen: bool | None
    error_rates: dict[str, float]
    scorer: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Experiment:
    """A training run and its decodings.

    Attributes:
        folder: what asr.sh calls asr_exp.
        config: its config.yaml.
        curves: by "train/loss_ctc" and the like, the value of each epoch.
        training_seconds: time from each epoch's start to its end, summed.
        decoded: the sets decoded and scored so far.
        workload: (frames, labels) of each training utterance; frames are encoder
            frames, worked out from the audio's length. Empty where unknown.
    """

    folder: Path
    config: dict[str, Any]
    curves: dict[str, dict[int, float]]
    training_seconds: float
    decoded: tuple[Decoded, ...]
    workload: tuple[tuple[int, int], ...] = field(default=())

    @property
    def vocabulary_size(self) -> int:
        """V, blank included."""
        return len(self.config.get("token_list") or ())

    @property
    def num_samples(self) -> int:
        """S, the largest of a schedule; 0 for the full softmax.

        Raises:
            ValueError: config.yaml holds no number and no schedule there.
        """
        value = (self.config.get("model_conf") or {}).get("num_samples")
        return int(max(Schedule.parse("model_conf.num_samples", value).values))

    @property
    def last_epoch(self) -> int:
        """The last epoch that has results; 0 if none has."""
        return max((max(curve) for curve in self.curves.values() if curve), default=0)


def read_experiment(folder: Path) -> Experiment:
    """Read an experiment folder of ESPnet's asr.sh.

    Raises:
        FileNotFoundError: it has no config.yaml, so nothing was trained there.
        ValueError: config.yaml or a shape file is not what ESPnet writes.
    """
    if not (folder / "config.yaml").is_file():
        raise FileNotFoundError(
            f"{folder} has no config.yaml: nothing was trained there"
        )
    config = _read_config(folder / "config.yaml")
    curves, seconds = _read_logs(folder)
    samples = _read_shapes(folder, config, "speech_shape")
    labels = _read_shapes(folder, config, "text_shape")
    return Experiment(
        folder=folder,
        config=config,
        curves=curves,
        training_seconds=seconds,
        decoded=_read_decoded(folder, frozenset(samples)),
        workload=_workload(config, samples, labels),
    )


def _read_config(path: Path) -> dict[str, Any]:
    """config.yaml as ESPnet writes it.

    Raises:
        ValueError: naming the file: no YAML, or not a mapping of that kind.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not YAML: {reason}") from error
    for name, part in (("", config), ("model_conf", _part(config, "model_conf"))):
        if not isinstance(part, dict):
            raise ValueError(f"{path}: {name or 'the whole'} is no mapping: {part!r}")
    return config


def _part(config: Any, name: str) -> Any:
    if not isinstance(config, dict) or config.get(name) is None:
        return {}
    return config[name]


def _read_logs(folder: Path) -> tuple[dict[str, dict[int, float]], float]:
    """The curves, and the seconds spent in epochs.

    A resumed training moves the log of the earlier part to train.1.log and so on:
    all are read, the newest last, so that an epoch done again counts once.
    """
    curves: dict[str, dict[int, float]] = {}
    seconds: dict[int, float] = {}

    def age(log: Path) -> int:
        middle = log.name.split(".")[1]
        return int(middle) if middle.isdigit() else 0

    for log in sorted(folder.glob("train*.log"), key=age, reverse=True):
        began: datetime | None = None
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if _STARTED.search(line):
                began = _time_of(line)
            found = _RESULTS.search(line)
            if found is None:
                continue
            epoch = int(found[1])
            ended = _time_of(line)
            if began is not None and ended is not None:
                seconds[epoch] = (ended - began).total_seconds()
            for section, values in _SECTION.findall(found[2]):
                for key, value in _VALUE.findall(values):
                    curves.setdefault(f"{section}/{key}", {})[epoch] = float(value)
    return curves, sum(seconds.values())


def _time_of(line: str) -> datetime | None:
    found = _TIMESTAMP.search(line)
    return datetime.strptime(found[0], "%Y-%m-%d %H:%M:%S,%f") if found else None


def _read_shapes(folder: Path, config: dict[str, Any], name: str) -> dict[str, int]:
    """The first dimension of each training utterance, by id; empty if not found.

    The paths in config.yaml are relative to the recipe's folder, which is the
    working directory or one of the experiment's parents.
    """
    for listed in config.get("train_shape_file") or ():
        if not Path(listed).name.startswith(name):
            continue
        for base in (Path.cwd(), *folder.resolve().parents):
            if (base / listed).is_file():
                lines = (base / listed).read_text(encoding="utf-8").splitlines()
                fields = (line.split() for line in lines if line.strip())
                return {key: int(shape.split(",")[0]) for key, shape in fields}
    return {}


def _workload(
    config: dict[str, Any], samples: dict[str, int], labels: dict[str, int]
) -> tuple[tuple[int, int], ...]:
    """(encoder frames, labels) of each training utterance."""
    hop = 1
    if config.get("input_size") is None:
        hop = (config.get("frontend_conf") or {}).get("hop_length", _DEFAULT_HOP)
    layer = (config.get("encoder_conf") or {}).get("input_layer", "conv2d")
    step = hop * _SUBSAMPLING.get(layer, 4)
    return tuple(
        (max(samples[key] // step, 1), labels[key])
        for key in sorted(samples)
        if key in labels
    )


def _read_decoded(folder: Path, trained_on: frozenset[str]) -> tuple[Decoded, ...]:
    decoded = []
    found = sorted(folder.glob("**/score_wer"))
    several = len({scores.relative_to(folder).parts[0] for scores in found}) > 1
    for scores in found:
        pairs = _read_pairs(scores)
        rates, scorer = {}, "sclite"
        for result in sorted(scores.parent.glob("score_*/result.txt")):
            lines = result.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines and lines[0].startswith("Scored by"):
                scorer = lines[0]
            rate = _error_rate(lines)
            if rate is not None:
                rates[result.parent.name.removeprefix("score_")] = rate
        if pairs and rates:
            parts = scores.parent.relative_to(folder).parts
            # asr.sh puts the validation set one folder deeper, in "org"
            name = f"{parts[0]}/{parts[-1]}" if several else parts[-1]
            decoded.append(
                Decoded(
                    name=name,
                    seen=_is_subset(pairs, trained_on),
                    error_rates=rates,
                    scorer=scorer,
                    pairs=pairs,
                )
            )
    return tuple(decoded)


def _read_trn(path: Path) -> dict[str, str]:
    found = map(_TRN.match, path.read_text(encoding="utf-8").splitlines())
    return {match[2]: " ".join(match[1].split()) for match in found if match}


def _read_pairs(scores: Path) -> tuple[Pair, ...]:
    if not ((scores / "ref.trn").is_file() and (scores / "hyp.trn").is_file()):
        return ()
    references = _read_trn(scores / "ref.trn")
    hypotheses = _read_trn(scores / "hyp.trn")
    return tuple(
        Pair(key, reference, hypotheses.get(key, ""))
        for key, reference in references.items()
    )


def _error_rate(lines: list[str]) -> float | None:
    """The Err column, in percent, of sclite's "Sum/Avg" line."""
    for line in lines:
        if "Sum/Avg" in line:
            columns = line.replace("|", " ").split()
            return float(columns[-2])
    return None


def _is_subset(pairs: tuple[Pair, ...], trained_on: frozenset[str]) -> bool | None:
    """Whether all utterances were trained on. A trn id is "speaker-utterance"."""
    if not trained_on:
        return None

    def seen(name: str) -> bool:
        parts = name.split("-")
        return any("-".join(parts[i:]) in trained_on for i in range(len(parts)))

    return all(seen(pair.utterance) for pair in pairs)
