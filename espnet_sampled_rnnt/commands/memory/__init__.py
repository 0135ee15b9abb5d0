"""``python -m espnet_sampled_rnnt memory``: what the loss will take, before training.

Reads a training YAML and the shape files of ESPnet's collect_stats, makes the batches
that ESPnet would make, and tells the peak bytes of the transducer loss for the worst of
them: for ESPnet's own loss on whole logits (stock), for ours without sampling (full)
and with it (sampled). See docs/memory.md for what is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet_sampled_rnnt.commands.columns import align_columns

if TYPE_CHECKING:
    from espnet_sampled_rnnt.commands.memory.prediction import Worst

__all__ = ["main"]

GIGABYTE = 10**9
# Left free where a size is suggested: CUDA's context, fragments, passing tensors.
HEADROOM = 0.1
_USAGE_ERROR = 1
# Beyond all tokens, GPUs and their GB; the model of such a vocabulary is built.
_MOST = 10**7


@dataclass(frozen=True)
class Row:
    """One loss of the table.

    Attributes:
        loss: "stock", "full" or "sampled".
        worst: the batch that takes most, as configured.
        suggested: batch_bins or batch_size that fits; None where not even the
            smallest does, or nothing was asked.
    """

    loss: str
    worst: Worst
    suggested: int | None


def main(arguments: list[str]) -> int:
    """Print the table; 0, or 1 with one line on what is wrong."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (ValueError, OSError) as error:
        print(f"memory: {error}", file=sys.stderr)
        return _USAGE_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m espnet_sampled_rnnt memory",
        description="Predict the peak memory of the transducer loss for a "
        "configuration and a training set, and suggest a size of batch.",
    )
    parser.add_argument(
        "--config", required=True, help="a training YAML, or an experiment's"
    )
    parser.add_argument(
        "--shape-file",
        action="append",
        default=[],
        metavar="FILE",
        help="of collect_stats, twice: train/speech_shape, then train/text_shape.*",
    )
    parser.add_argument(
        "--vocabulary-size", type=int, metavar="V", help="where no file tells it"
    )
    parser.add_argument(
        "--gpu-gb", type=float, help="memory of a GPU in GB: suggests a size of batch"
    )
    parser.add_argument(
        "--ngpu", type=int, default=1, help="GPUs that share each batch (default: 1)"
    )
    parser.add_argument(
        "--num-samples", type=int, metavar="S", help="in the place of the YAML's"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda"
    )
    parser.add_argument("--plot", type=Path, help="draw memory over batch size: a file")
    parser.add_argument("--json", action="store_true", help="print JSON, no table")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    for name in ("gpu_gb", "ngpu", "vocabulary_size"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < _MOST:
            option = name.replace("_", "-")
            raise ValueError(
                f"--{option} is {value}, but must be above 0 and below {_MOST:,}"
            )
    from espnet_sampled_rnnt.commands.memory.batches import read_shapes
    from espnet_sampled_rnnt.commands.memory.model import build_model, read_config
    from espnet_sampled_rnnt.commands.memory.prediction import LOSSES
    from espnet_sampled_rnnt.commands.memory.search import Search

    shapes = read_shapes(arguments.shape_file)
    config = read_config(arguments.config, waveforms=shapes.feature_size is None)
    changes = {}
    if arguments.num_samples is not None:
        changes["num_samples"] = arguments.num_samples
    speech = list(shapes.speech.values())
    model = build_model(
        config,
        _vocabulary_size(arguments, config, shapes.vocabulary_size),
        shapes.feature_size,
        speech,
        sum(shapes.text.values()) / max(1, sum(speech)),
        changes,
    )
    search = Search(shapes, config, model, arguments.ngpu, arguments.device)
    budget = None
    if arguments.gpu_gb is not None:
        budget = int((1 - HEADROOM) * arguments.gpu_gb * GIGABYTE)
        budget -= model.training_bytes
    rows = [
        Row(
            loss,
            search.worst(loss, search.configured),
            None if budget is None else search.largest(loss, budget),
        )
        for loss in LOSSES
    ]
    facts = {
        "config": arguments.config,
        "utterances": len(speech),
        "batches": len(search.batches(search.configured)),
        "vocabulary_size": model.vocabulary_size,
        "joint_size": model.joint_size,
        "num_samples": sorted(set(model.options.num_samples_schedule.values)),
        "sampling_scope": model.options.sampling_scope,
        "batch_type": config.batch_type,
        "size_option": search.size_option,
        "size": search.configured,
        "ngpu": arguments.ngpu,
        "device": arguments.device,
        "gpu_gb": arguments.gpu_gb,
        "training_bytes": model.training_bytes,
        "kept_is_known": model.kept is not None,
        "notes": list(model.notes),
    }
    if arguments.plot is not None:
        from espnet_sampled_rnnt.commands.memory.plot import draw

        draw(arguments.plot, search.around(LOSSES), facts)
    if arguments.json:
        print(json.dumps({**facts, "losses": [asdict(row) for row in rows]}))
    else:
        print(_text(facts, rows))
    return 0


def _vocabulary_size(
    arguments: argparse.Namespace, config: argparse.Namespace, in_shapes: int | None
) -> int:
    """V by what was given, what the configuration lists, and what asr.sh wrote."""
    if arguments.vocabulary_size is not None:
        return arguments.vocabulary_size
    if isinstance(config.token_list, (list, tuple)):
        return len(config.token_list)
    if isinstance(config.token_list, str):
        return len(Path(config.token_list).read_text(encoding="utf-8").splitlines())
    if in_shapes is not None:
        return in_shapes
    raise ValueError(
        "the size of the vocabulary is not known: give train/text_shape.* as asr.sh "
        "writes it (length,vocabulary), or --vocabulary-size"
    )


def _gigabytes(value: float) -> str:
    return (
        f"{value / GIGABYTE:.3g} GB" if value >= GIGABYTE else f"{value / 1e6:.3g} MB"
    )


def _text(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    size = facts["size_option"]
    head = ["loss", "worst batch", "peak of the loss", "rest of training", "together"]
    if facts["gpu_gb"] is not None:
        head.append(f"{size} for {facts['gpu_gb']:g} GB")
    table = [head]
    for row in rows:
        worst = row.worst
        rest = facts["training_bytes"] + worst.kept_bytes
        cells = [
            row.loss,
            f"B {worst.utterances}, T {worst.frames}, U {worst.labels}",
            _gigabytes(worst.loss_bytes),
            _gigabytes(rest),
            _gigabytes(rest + worst.loss_bytes),
        ]
        if facts["gpu_gb"] is not None:
            cells.append("none" if row.suggested is None else f"{row.suggested:,}")
        table.append(cells)
    lines = [
        f"{facts['config']}: V {facts['vocabulary_size']}, J {facts['joint_size']}, "
        f"S {' to '.join(f'{x:g}' for x in facts['num_samples'])}, "
        f"scope {facts['sampling_scope']}",
        f"{facts['utterances']:,} utterances in {facts['batches']:,} batches "
        f"(batch_type {facts['batch_type']}, {size} {facts['size']:,}), "
        f"{facts['ngpu']} GPU(s), {facts['device']}",
        "",
    ]
    lines += align_columns(table)
    rest = "parameters, gradients and optimizer"
    if facts["kept_is_known"]:
        rest += ", and what encoder, CTC and prediction network keep for backward"
    lines += [
        "",
        "float32, GB of 10^9 bytes. Rest of training: " + rest + ".",
        "Not counted: passing tensors of the encoder, fragments, CUDA's context"
        + (f"; {HEADROOM:.0%} is left free for them." if facts["gpu_gb"] else "."),
        *facts["notes"],
    ]
    return "\n".join(lines)
