"""Whatever depends on the ESPnet release that is installed, in one room.

Written against ESPnet 202511 and 202611. The classes used by ``model.py`` and
``decoder.py`` have the same module paths in both, so what is left here is what
is asked of ESPnet at run time: which options its ASR model takes, and what a
joint network must offer.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from espnet_sampled_rnnt.distributions import mean_posterior

try:  # ESPnet 202611 moved what was left of ESPnet1
    from espnet2.legacy.nets.pytorch_backend.transformer.subsampling import (
        TooShortUttError,
    )
except ImportError:
    from espnet.nets.pytorch_backend.transformer.subsampling import TooShortUttError

__all__ = [
    "TooShortUttError",
    "VectorLift",
    "check_distribution",
    "check_encoder_width",
    "check_joint_network",
    "default_distribution",
    "is_transducer_decoder",
    "joint_network_of",
    "merged_signature",
    "output_parameters",
    "posterior_tap",
    "refuse_other_vocabulary",
    "refuse_unknown_options",
    "shortest_speech",
]

# The parts of ESPnet's JointNetwork that the loss reads one by one, because it
# never calls the network as a whole: that would build the (B, T, U, V) logits.
JOINT_NETWORK_PARTS = ("lin_enc", "lin_dec", "lin_out", "joint_activation")


def merged_signature(child: Callable, parent: Callable) -> inspect.Signature:
    """The signature of ``child``, its ``**kwargs`` spelled out from ``parent``.

    ``espnet2.bin.asr_train --print_config`` and our check for misspelt options
    both read signatures; taking the parent's options from the parent keeps them
    right on every ESPnet release.

    Args:
        child: A function whose ``**kwargs`` go on to ``parent``.
        parent: The function that receives them.

    Returns:
        ``child``'s own parameters first, then those of ``parent`` that it does
        not have, all keyword-only; no ``self``, no ``**kwargs``.
    """
    merged: dict[str, inspect.Parameter] = {}
    for function in (child, parent):
        for name, parameter in inspect.signature(function).parameters.items():
            catches_rest = parameter.kind in (
                inspect.Parameter.VAR_KEYWORD,
                inspect.Parameter.VAR_POSITIONAL,
            )
            if name != "self" and not catches_rest:
                merged.setdefault(
                    name, parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                )
    return inspect.Signature(list(merged.values()))


def refuse_unknown_options(
    given: Collection[str], known: Collection[str], section: str
) -> None:
    """Raise for the first option that nobody reads, with the nearest known name.

    Args:
        given: Names found in the configuration.
        known: Names that are read.
        section: The part of the YAML they stand in, e.g. ``"model_conf"``.

    Raises:
        TypeError: A name in ``given`` is not in ``known``.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise TypeError(
                f"{section}.{name} is not an option of model: sampled_transducer."
                f"{hint} Options: {', '.join(sorted(known))}"
            )


def check_joint_network(joint_network: torch.nn.Module) -> None:
    """Raise unless the joint network has the parts that the loss reads.

    Raises:
        ValueError: A part of ESPnet's ``JointNetwork`` is missing.
    """
    missing = [part for part in JOINT_NETWORK_PARTS if not hasattr(joint_network, part)]
    if missing:
        raise ValueError(
            f"joint network {type(joint_network).__name__} has no "
            f"{', '.join(missing)}: the sampled loss computes the logits itself and "
            "needs the parts of espnet2.asr_transducer.joint_network.JointNetwork"
        )


def joint_network_of(
    decoder: object | None, joint_network: torch.nn.Module | None
) -> torch.nn.Module:
    """The joint network, ESPnet's or the one that the decoder brings.

    Raises:
        ValueError: Neither is there, or the decoder is no transducer's.
    """
    if joint_network is None and hasattr(decoder, "release_joint_network"):
        joint_network = decoder.release_joint_network()
    if joint_network is None or not is_transducer_decoder(decoder):
        kind = "none" if decoder is None else type(decoder).__name__
        raise ValueError(
            f"decoder is {kind}, which is no transducer's; allowed with model: "
            "sampled_transducer: decoder: transducer (with joint_net_conf) or "
            "decoder: sampled_transducer"
        )
    check_joint_network(joint_network)
    return joint_network


def check_encoder_width(model: torch.nn.Module) -> None:
    """Raise unless the joint network takes what the encoder side gives.

    ESPnet makes the joint network of ``decoder: transducer`` for the encoder, whatever
    width a postencoder turns that into, and fails at the first batch.

    Args:
        model: An ESPnet ASR model with its joint network.

    Raises:
        ValueError: The widths differ.
    """
    last = getattr(model, "postencoder", None) or model.encoder
    taken = model.joint_network.lin_enc.in_features
    if last is not None and taken != last.output_size():
        raise ValueError(
            f"the joint network takes {taken} features a frame, but "
            f"{last.output_size()} reach it: ESPnet's decoder: transducer does not "
            "reckon with a postencoder of another width; use decoder: "
            "sampled_transducer, with joint_net_conf inside decoder_conf"
        )


class VectorLift:
    """Lets a quantized joint network take single vectors.

    ESPnet's greedy, default and nsc searches hand it vectors of one frame and one
    label, and torch's quantized linear layer refuses an input of one axis. Layers that
    are not quantized are left alone.
    """

    def __init__(self, joint_network: torch.nn.Module) -> None:
        self.lifted = False
        joint_network.register_forward_pre_hook(self.before)
        joint_network.register_forward_hook(self.after)

    def before(self, joint_network: torch.nn.Module, arguments: tuple) -> tuple | None:
        """Give vectors a first axis: (D,) becomes (1, D)."""
        quantized = not isinstance(joint_network.lin_out, torch.nn.Linear)
        self.lifted = quantized and all(one.dim() == 1 for one in arguments[:2])
        if not self.lifted:
            return None
        return (*(one.unsqueeze(0) for one in arguments[:2]), *arguments[2:])

    def after(
        self, joint_network: torch.nn.Module, arguments: tuple, output: torch.Tensor
    ) -> torch.Tensor | None:
        """Take that axis away: (1, V) becomes (V,)."""
        return output.squeeze(0) if self.lifted else None


def output_parameters(
    layer: torch.nn.Linear,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of the joint network's output layer, an adapter included.

    The loss multiplies by the weight itself and never calls the layer, so what
    ESPnet's LoRA adapter (``--use_adapter``) adds in the layer's forward is added here.

    Returns:
        (V, J) and (V,) or None.

    Raises:
        ValueError: An adapter with dropout, which drops inputs, not weights.
    """
    weight = layer.weight
    if not hasattr(layer, "lora_A") or layer.merged:
        return weight, layer.bias
    if getattr(layer.lora_dropout, "p", 0.0) > 0.0:
        raise ValueError(
            f"adapter_conf.dropout_rate is {layer.lora_dropout.p}, and the adapter is "
            "at the joint network's lin_out; allowed there: 0"
        )
    return weight + layer.lora_B @ layer.lora_A * layer.scaling, layer.bias


def shortest_speech(frontend: torch.nn.Module | None) -> int:
    """Samples below which ESPnet's front end raises an error: it mirrors half a window.

    Args:
        frontend: Of the model; None where features come in.
    """
    stft = getattr(frontend, "stft", None)
    return stft.n_fft // 2 + 1 if getattr(stft, "center", False) else 1


def refuse_other_vocabulary(
    model: torch.nn.Module, state_dict: dict, prefix: str, *_: object
) -> None:
    """Raise where a checkpoint has another number of tokens than the model.

    A hook for ``register_load_state_dict_pre_hook``: torch's own message is one for
    each of the parameters, none of which mentions the token list.

    Raises:
        RuntimeError: As torch raises it for a shape that does not fit.
    """
    theirs = state_dict.get(f"{prefix}joint_network.lin_out.weight")
    ours = model.joint_network.lin_out.weight
    if theirs is None or len(theirs) == len(ours):
        return
    raise RuntimeError(
        f"the checkpoint was trained with {len(theirs)} tokens, but the token list of "
        f"this model has {len(ours)}: give the token list of the checkpoint, or, to "
        "keep only what fits, --ignore_init_mismatch true with --init_param"
    )


def is_transducer_decoder(decoder: object) -> bool:
    """Whether ESPnet's transducer beam searches can drive this decoder."""
    return all(
        hasattr(decoder, name)
        for name in ("score", "batch_score", "select_state", "init_state", "dunits")
    )


# The kinds of ESPnet's CTC that hand log posteriors to a loss module.
_TAPPED_CTC_TYPES = ("builtin", "builtin2")


def default_distribution(ctc: torch.nn.Module, ctc_weight: float) -> str:
    """What is drawn from where the configuration does not say: "ctc" if it can be.

    Args:
        ctc: ESPnet's CTC module.
        ctc_weight: Of the model; at 0 the CTC head is not trained.
    """
    usable = ctc_weight > 0.0 and ctc.ctc_type in _TAPPED_CTC_TYPES
    return "ctc" if usable else "uniform"


def check_distribution(source: str | None, name: str, model: torch.nn.Module) -> None:
    """Raise where the model has not what its sampling distribution is made from.

    Args:
        source: "final" or "intermediate" CTC posteriors; anything else passes.
        name: Of the distribution, for the message.
        model: An ESPnet ASR model.

    Raises:
        ValueError: No CTC head, one of a kind that hides its posteriors, or no
            intermediate CTC.
    """
    if source not in ("final", "intermediate"):
        return
    option = f"model_conf.sampling_distribution is {name!r}"
    if model.ctc is None:
        raise ValueError(f"{option}, but model_conf.ctc_weight is 0; allowed: above 0")
    if model.ctc.ctc_type not in _TAPPED_CTC_TYPES:
        raise ValueError(
            f"{option}, but ctc_conf.ctc_type is {model.ctc.ctc_type!r}; allowed: "
            f"{', '.join(_TAPPED_CTC_TYPES)}"
        )
    if source == "intermediate":
        if model.interctc_weight == 0.0:
            raise ValueError(
                f"{option}, but model_conf.interctc_weight is 0; allowed: above 0"
            )
        if not getattr(model.encoder, "interctc_layer_idx", None):
            raise ValueError(
                f"{option}, but encoder_conf.interctc_layer_idx is empty; allowed: "
                "layers of an encoder with intermediate CTC"
            )


@contextmanager
def posterior_tap(
    ctc: torch.nn.Module, posteriors: list[torch.Tensor], wanted: bool
) -> Iterator[None]:
    """Collect the mean posterior of the CTC loss that is taken inside.

    The log posteriors are those that ESPnet's CTC hands to its loss: nothing is
    computed twice, and nothing larger than (B, V) is kept.

    Args:
        ctc: ESPnet's CTC module.
        posteriors: The (B, V) posterior is appended to it.
        wanted: If false nothing happens.
    """
    if not wanted:
        yield
        return
    found: list[torch.Tensor] = []

    def look(module: torch.nn.Module, arguments: tuple) -> None:
        # "builtin2" may call again for a part of the batch.
        if not found:
            log_probs, _, lengths = arguments[:3]
            found.append(mean_posterior(log_probs, lengths))

    handle = ctc.ctc_loss.register_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
    posteriors.extend(found)
