"""``python -m espnet_sampled_rnnt report``: what a training learned, on one page.

Reads a folder that ESPnet's asr.sh trained and decoded in (asr_exp), prints a summary
and writes it, with loss curves, as one HTML file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_sampled_rnnt.commands.report.experiment import (
    Decoded,
    Experiment,
    read_experiment,
)
from espnet_sampled_rnnt.commands.report.memory import MemoryRow, measure
from espnet_sampled_rnnt.commands.report.page import (
    LOSS_NAMES,
    Table,
    draw_curves,
    draw_memory,
    write_page,
)

__all__ = ["main"]

# Of the batch that the memory is measured on: enough to be one, small enough that the
# logits of a large vocabulary fit whole.
_MOST_UTTERANCES = 4
_MOST_NODES = 20_000
# A vocabulary of the size that the method is for, beside the experiment's own.
_LARGE_VOCABULARY = (5000, 256)
# Fewer words of reference than this, and an error rate is an anecdote.
_MEANINGFUL_WORDS = 1000
_SHOWN_PAIRS = 4


def main(arguments: list[str] | None = None) -> int:
    """Write and print the report.

    Returns:
        0; 1 where there is nothing to report on, or ``--max_train_cer`` is exceeded.
    """
    parser = argparse.ArgumentParser(
        prog="python -m espnet_sampled_rnnt report", description=__doc__
    )
    parser.add_argument(
        "--expdir", type=Path, required=True, help="the experiment: asr.sh's asr_exp"
    )
    parser.add_argument(
        "--compare", type=Path, help="another experiment, drawn beside it"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("report"), help="folder for the files"
    )
    parser.add_argument(
        "--max_train_cer",
        type=float,
        metavar="PERCENT",
        help="fail unless the utterances seen in training reach this CER",
    )
    options = parser.parse_args(arguments)

    try:
        experiments = [(_label(e), e) for e in _read(options.expdir, options.compare)]
        options.output.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    experiment = experiments[0][1]
    if not experiment.curves:
        print(f"report: no epoch is finished in {options.expdir}", file=sys.stderr)
        return 1

    memory, memory_note = _measure_memory(experiment)
    tables = [
        _training_table(experiments),
        _errors_table(experiments),
        _pairs_table(experiment),
    ]
    if memory:
        tables.append(_memory_table(experiment, memory))
    summary = [f"{experiment.folder}: epoch {experiment.last_epoch}."]
    warnings = [*_size_warnings(experiment), *memory_note]

    pictures, picture_note = _draw(experiments, memory, options.output)
    warnings += picture_note
    page = options.output / "report.html"
    title = f"Sampled-softmax transducer: {experiment.folder.name}"
    write_page(page, title, summary, warnings, pictures, tables)

    print(f"\n== {title}\n")
    print("\n\n".join([*summary, *(table.text() for table in tables), *warnings]))
    files = ", ".join(str(path) for path in (page, *(p for p, _ in pictures)))
    print(f"\nwritten: {files}")
    return _check_train_cer(experiment, options.max_train_cer)


def _read(expdir: Path, compare: Path | None) -> list[Experiment]:
    return [read_experiment(folder) for folder in (expdir, compare) if folder]


def _label(experiment: Experiment) -> str:
    samples = experiment.num_samples
    return f"{samples} sampled" if samples else "full softmax"


def _number(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else format(value, form)


def _mebibytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:.3g} MiB"


def _training_table(experiments: Sequence[tuple[str, Experiment]]) -> Table:
    rows = []
    for label, experiment in experiments:
        last = experiment.last_epoch

        def at(key: str, epoch: int, curves=experiment.curves) -> float | None:
            return curves.get(key, {}).get(epoch)

        first_loss, last_loss = (at("train/loss_transducer", n) for n in (1, last))
        rows.append(
            (
                label,
                str(last),
                f"{experiment.training_seconds:.0f} s",
                f"{_number(first_loss)} -> {_number(last_loss)}",
                _number(at("valid/loss_transducer", last)),
                f"{_number(at('train/sampled_vocabulary_size', last))}"
                f" of {experiment.vocabulary_size}",
                _mebibytes(at("train/loss_peak_bytes", last)),
            )
        )
    notes = ["The loss memory is what the model works out for its training batches."]
    if len(experiments) > 1:
        notes.append(
            "A sampled training loss has fewer rivals in its softmax and is smaller "
            "by construction; the validation losses compare."
        )
    head = (
        "softmax",
        "epochs",
        "training",
        "transducer loss in training",
        "in validation",
        "tokens in the softmax",
        "loss memory",
    )
    return Table("Training", head, tuple(rows), tuple(notes))


def _errors_table(experiments: Sequence[tuple[str, Experiment]]) -> Table:
    seen_words = {True: "yes", False: "no", None: "unknown"}
    rows, scorers = [], set()
    for label, experiment in experiments:
        for decoded in experiment.decoded:
            scorers.add(decoded.scorer)
            rows.append(
                (
                    label,
                    decoded.name,
                    seen_words[decoded.seen],
                    str(len(decoded.pairs)),
                    f"{_number(decoded.error_rates.get('cer'), '.1f')} %",
                    f"{_number(decoded.error_rates.get('wer'), '.1f')} %",
                )
            )
    head = ("softmax", "decoded", "seen in training", "utterances", "CER", "WER")
    notes = tuple(f"Scored by {s}." if s == "sclite" else s for s in sorted(scorers))
    return Table("Error rates", head, tuple(rows), notes)


def _pairs_table(experiment: Experiment) -> Table:
    rows = []
    # what was trained on first, then the sets not seen
    for decoded in sorted(experiment.decoded, key=lambda d: d.seen is not True):
        for pair in decoded.pairs[:_SHOWN_PAIRS]:
            kind = "seen" if decoded.seen else "not seen"
            rows.append((pair.utterance, kind, pair.reference, pair.hypothesis))
    head = ("utterance", "in training", "reference", "hypothesis")
    return Table(f"Recognised ({_label(experiment)})", head, tuple(rows))


def _batch(experiment: Experiment) -> tuple[tuple[int, int], ...]:
    """A few of the training utterances, the largest that fit the measurement."""
    batch: list[tuple[int, int]] = []
    for frames, labels in sorted(
        experiment.workload, key=lambda pair: pair[0] * (pair[1] + 1), reverse=True
    ):
        longest = max([frames, *(f for f, _ in batch)])
        most = max([labels, *(u for _, u in batch)])
        nodes = (len(batch) + 1) * longest * (most + 1)
        if nodes <= _MOST_NODES and len(batch) < _MOST_UTTERANCES:
            batch.append((frames, labels))
    return tuple(batch)


def _joint_size(experiment: Experiment) -> int:
    """J; ESPnet's default where the configuration is silent."""
    own = experiment.config.get("joint_net_conf") or {}
    decoders = experiment.config.get("decoder_conf") or {}
    joint = own or decoders.get("joint_net_conf") or decoders
    return int(joint.get("joint_space_size", 256))


def _measure_memory(experiment: Experiment) -> tuple[list[MemoryRow], list[str]]:
    """Rows, or none and a sentence that says why."""
    batch = _batch(experiment)
    if not batch:
        return [], ["The memory was not measured: the training shapes were not found."]
    own = experiment.vocabulary_size
    cases = ((own, experiment.num_samples or max(own // 4, 1)), _LARGE_VOCABULARY)
    try:
        return measure(batch, _joint_size(experiment), cases), []
    except RuntimeError as error:
        return [], [f"The memory was not measured: {error}"]


def _memory_table(experiment: Experiment, memory: Sequence[MemoryRow]) -> Table:
    rows = tuple(
        (
            str(row.vocabulary_size),
            LOSS_NAMES[row.loss],
            str(row.num_samples) if row.num_samples else "all",
            _mebibytes(row.peak_bytes),
        )
        for row in memory
    )
    batch = _batch(experiment)
    shape = ", ".join(f"{frames} x {labels}" for frames, labels in batch)
    head = ("vocabulary", "loss", "sampled tokens", "peak")
    notes = (
        f"Measured just now on a CPU: forward and backward, gradients included, "
        f"float32, J = {_joint_size(experiment)}, random values, {len(batch)} "
        f"utterances of the training set's sizes (frames x labels: {shape}).",
        "The saving grows with the vocabulary: a small one has little to sample from.",
    )
    return Table("Memory of the loss", head, rows, notes)


def _size_warnings(experiment: Experiment) -> list[str]:
    """One sentence on the sets that are too small for an error rate to mean much."""
    small = []
    for decoded in experiment.decoded:
        words = sum(len(pair.reference.split()) for pair in decoded.pairs)
        if not decoded.seen and words < _MEANINGFUL_WORDS:
            small.append(
                f"{decoded.name} ({len(decoded.pairs)} utt., {words} reference words)"
            )
    if not small:
        return []
    return [
        f"Error rates mean nothing at the size of {', '.join(small)}. That utterances "
        "seen in training are recognised shows that training and decoding work, no "
        "more."
    ]


def _draw(
    experiments: Sequence[tuple[str, Experiment]],
    memory: Sequence[MemoryRow],
    output: Path,
) -> tuple[list[tuple[Path, str]], list[str]]:
    """PNG files with captions; none, and a sentence, without matplotlib."""
    try:
        pictures = [(output / "loss.png", "Loss by epoch")]
        draw_curves(experiments, pictures[0][0])
        if memory:
            pictures.append((output / "memory.png", "Memory of the loss, measured"))
            draw_memory(memory, pictures[1][0])
    except ImportError:
        sentence = "No pictures: matplotlib is missing (pip install matplotlib)."
        return [], [sentence]
    return pictures, []


def _check_train_cer(experiment: Experiment, most: float | None) -> int:
    """0 if the CER on what was trained on is at most ``most`` percent, else 1."""
    if most is None:
        return 0
    seen: list[Decoded] = [d for d in experiment.decoded if d.seen]
    rates = [d.error_rates["cer"] for d in seen if "cer" in d.error_rates]
    if not rates:
        print("report: no set seen in training is decoded and scored", file=sys.stderr)
        return 1
    verdict = "at most" if max(rates) <= most else "MORE THAN"
    print(f"CER on the training utterances: {max(rates):.1f} %, {verdict} {most:g} %")
    return int(max(rates) > most)


if __name__ == "__main__":
    sys.exit(main())
