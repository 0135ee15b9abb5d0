"""What the configuration's model makes of an utterance, asked of the model itself."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from espnet_sampled_rnnt.options import SampledSoftmaxOptions

__all__ = ["LengthMap", "Model", "build_model", "read_config"]

OUR_MODEL = "sampled_transducer"
DECODERS = ("transducer", "sampled_transducer")
# asr.sh's, for waveforms, for features and for text.
_FOLD_LENGTHS = {"samples": 80000, "features": 800, "text": 150}
# Lengths that the encoder is run at; between them encoder frames follow a line.
_NUM_PROBES = 6
# Shares of the longest utterance at which kept bytes are counted, for a parabola.
_KEPT_AT = (0.125, 0.25, 0.5)


@dataclass(frozen=True)
class LengthMap:
    """Encoder frames of an utterance, from some lengths that were tried.

    Attributes:
        inputs: samples or frames of features, rising.
        frames: T of each.
    """

    inputs: tuple[int, ...]
    frames: tuple[int, ...]

    def __call__(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """T of each length; within a frame where the encoder subsamples evenly."""
        between = np.interp(lengths, self.inputs, self.frames)
        return tuple(max(1, int(x)) for x in np.floor(between + 0.5))


@dataclass(frozen=True)
class Model:
    """What is known of the model.

    Attributes:
        joint_size: J.
        vocabulary_size: V.
        has_bias: whether the output layer has one.
        options: of the sampled loss.
        frames: from input lengths to T.
        parameter_bytes: of the parameters.
        training_bytes: of parameters, their gradients and the optimizer's state.
        kept: polynomial over an utterance's input length, highest power first, of the
            bytes that autograd keeps of everything but the transducer loss; None
            where it could not be counted.
        notes: sentences for the reader.
    """

    joint_size: int
    vocabulary_size: int
    has_bias: bool
    options: SampledSoftmaxOptions
    frames: LengthMap
    parameter_bytes: int
    training_bytes: int
    kept: tuple[float, ...] | None
    notes: tuple[str, ...] = field(default=())

    def kept_bytes(self, speech: Sequence[int]) -> int:
        """Kept bytes of a batch that is padded to its longest; 0 where unknown."""
        if self.kept is None:
            return 0
        return int(len(speech) * max(0.0, np.polyval(self.kept, max(speech))))


def read_config(path: str, waveforms: bool) -> argparse.Namespace:
    """ESPnet's options: its defaults, changed by a training YAML.

    Args:
        path: a recipe's conf/train_*.yaml, or an experiment's config.yaml.
        waveforms: whether the speech shapes are in samples.

    Raises:
        ValueError: a file that cannot be read, an option that ESPnet does not have,
            or a decoder that is no transducer's.
    """
    from espnet2.tasks.asr import ASRTask

    from espnet_sampled_rnnt.registration import register

    register()
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read {path}: {_one_line(error)}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no configuration: it holds no mapping")
    defaults = vars(ASRTask.get_parser().parse_args([]))
    # What a training wrote down also holds what ESPnet worked out meanwhile.
    unknown = (
        [] if "version" in config else sorted(config.keys() - defaults.keys(), key=str)
    )
    if unknown:
        raise ValueError(f"{path}: {unknown[0]} is no option of ESPnet's asr_train")
    options = argparse.Namespace(**{**defaults, **config})
    if options.decoder not in DECODERS:
        raise ValueError(
            f"{path}: decoder is {options.decoder!r}, no transducer's; this command "
            f"knows decoder: {' and '.join(DECODERS)}"
        )
    if not isinstance(options.model_conf, dict):
        raise ValueError(f"{path}: model_conf is {options.model_conf!r}, no mapping")
    if options.iterator_type != "sequence":
        raise ValueError(
            f"{path}: iterator_type is {options.iterator_type!r}; this command knows "
            "'sequence'"
        )
    if not options.fold_length:
        speech = _FOLD_LENGTHS["samples" if waveforms else "features"]
        options.fold_length = [speech, _FOLD_LENGTHS["text"]]
    return options


def build_model(
    options: argparse.Namespace,
    vocabulary_size: int,
    feature_size: int | None,
    speech: Sequence[int],
    tokens_per_input: float,
    changes: Mapping[str, Any],
) -> Model:
    """Build the model by ESPnet's own code, and ask it.

    Args:
        options: see :func:`read_config`.
        vocabulary_size: V.
        feature_size: width of the features, None for waveforms.
        speech: lengths of the utterances, samples or frames of features.
        tokens_per_input: labels per sample or frame, about.
        changes: of ``model_conf``.

    Raises:
        ValueError: ESPnet cannot build it, or it takes none of the utterances.
    """
    from espnet2.tasks.asr import ASRTask

    notes = []
    options = copy.deepcopy(options)
    options.input_size = options.input_size or feature_size
    # Not what memory depends on, and files that need not be here yet.
    options.token_list = _tokens(vocabulary_size)
    options.normalize = options.specaug = options.init = None
    options.model_conf = {**options.model_conf, **changes}
    options.model_conf.pop("sampling_counts", None)
    if options.model != OUR_MODEL:
        notes.append(
            f"model is {options.model!r}: full and sampled are what model: "
            f"{OUR_MODEL} would take with the same options."
        )
        options.model = OUR_MODEL
    try:
        torch.manual_seed(0)
        model = ASRTask.build_model(options)
    except (Exception, SystemExit) as error:  # whatever the model's parts raise
        raise ValueError(f"ESPnet cannot build the model: {_one_line(error)}") from None
    output_layer = model.joint_network.lin_out
    frames = _probe_lengths(model, speech, options.input_size)
    parameter_bytes = _bytes_of(model.parameters())
    training_bytes = 2 * parameter_bytes
    state = _optimizer_bytes(ASRTask, options, model)
    if state is None:
        notes.append("The optimizer's state could not be counted and is left out.")
    kept = _kept_polynomial(model, max(speech), tokens_per_input, options.input_size)
    if kept is None:
        notes.append("What the encoder keeps for backward could not be counted.")
    return Model(
        joint_size=output_layer.in_features,
        vocabulary_size=output_layer.out_features,
        has_bias=output_layer.bias is not None,
        options=model.options,
        frames=frames,
        parameter_bytes=parameter_bytes,
        training_bytes=training_bytes + (state or 0),
        kept=kept,
        notes=tuple(notes),
    )


def _tokens(size: int) -> list[str]:
    middle = [str(index) for index in range(1, size - 1)]
    return ["<blank>", *middle, "<sos/eos>"][:size]


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)[:300]}"


def _bytes_of(tensors) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _speech(length: int, feature_size: int | None) -> dict[str, torch.Tensor]:
    """One utterance of noise: silence would be a case of its own to some front ends."""
    generator = torch.Generator().manual_seed(length)
    shape = (1, length) if feature_size is None else (1, length, feature_size)
    return {
        "speech": 0.1 * torch.randn(shape, generator=generator),
        "speech_lengths": torch.tensor([length]),
    }


def _probe_lengths(
    model: torch.nn.Module, speech: Sequence[int], feature_size: int | None
) -> LengthMap:
    """Run the encoder on a few lengths between the shortest and the longest."""
    longest = max(speech)
    if longest < 1:
        raise ValueError("all utterances have length 0")
    tried = np.geomspace(max(1, min(speech)), longest, _NUM_PROBES).astype(int)
    inputs, frames, reason = [], [], ""
    model.eval()
    for length in sorted({*tried.tolist(), longest}):
        try:
            with torch.no_grad():
                _, lengths = model.encode(**_speech(length, feature_size))
        except Exception as error:
            # An utterance too short for the encoder, which training drops or fails
            # on; ESPnet's encoders say so in several ways.
            reason = _one_line(error)
            continue
        inputs.append(length)
        frames.append(int(lengths[0]))
    if not inputs or inputs[-1] != longest:
        raise ValueError(f"the encoder does not take these utterances: {reason}")
    return LengthMap(tuple(inputs), tuple(frames))


def _optimizer_bytes(task, options: argparse.Namespace, model) -> int | None:
    """Bytes of the optimizer's state after a step; None where it cannot be told.

    The step is done on the meta device, which holds shapes and no numbers.
    """
    try:
        shapes = copy.deepcopy(model).to("meta")
        for parameter in shapes.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        total = 0
        for optimizer in task.build_optimizers(options, shapes):
            optimizer.step()
            total += sum(
                _bytes_of(x for x in state.values() if isinstance(x, torch.Tensor))
                for state in optimizer.state.values()
            )
    except Exception:  # an optimizer that needs numbers, or a package that is absent
        return None
    return total


def _kept_polynomial(
    model: torch.nn.Module,
    longest: int,
    tokens_per_input: float,
    feature_size: int | None,
) -> tuple[float, ...] | None:
    """Bytes kept for backward, as a parabola over the length of an utterance."""
    model.train()
    lengths, kept = [], []
    try:
        for share in _KEPT_AT:
            length = max(1, int(share * longest))
            labels = max(1, int(length * tokens_per_input))
            lengths.append(length)
            kept.append(_kept_bytes(model, length, labels, feature_size))
        if len(set(lengths)) < len(_KEPT_AT):
            return None
    except Exception:  # as in _probe_lengths
        return None
    return tuple(float(x) for x in np.polyfit(lengths, kept, 2))


def _kept_bytes(
    model: torch.nn.Module, length: int, labels: int, feature_size: int | None
) -> int:
    """What one utterance leaves in memory between forward and backward.

    Of the transducer loss, which keeps no more than its inputs, that is those.
    """
    own = {x.untyped_storage().data_ptr() for x in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    text = torch.arange(labels)[None] % max(1, model.vocab_size - 2) + 1
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(
            **_speech(length, feature_size),
            text=text,
            text_lengths=torch.tensor([labels]),
        )
    total = sum(storage.nbytes() for storage in storages.values())
    del result
    return total
