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


def is_transducer_decoder(decoder: object) -> bool:
    """Whether ESPnet's transducer beam searches can drive this decoder."""
    return all(
        hasattr(decoder, name)
        for name in ("score", "batch_score", "select_state", "init_state", "dunits")
    )


# The kinds of ESPnet's CTC that hand log posteriors to a loss module.
_TAPPED_CTC_TYPES = ("builtin", "builtin2")


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
