"""Checks of arguments that more than one module needs. All raise ValueError."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.uint8, torch.int8)


def check_is_plain_tensor(name: str, value: Tensor) -> None:
    """``value`` is a tensor whose numbers are one after the other."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, but is {type(value).__name__}")
    if value.is_nested:
        raise ValueError(f"{name} is nested, but must be padded, with lengths")
    if value.layout != torch.strided:
        raise ValueError(f"{name} must be dense, but is {value.layout}")


def check_integer_tensor(name: str, value: Tensor, axes: int | None = None) -> None:
    """``value`` is a tensor of integers, of ``axes`` axes where given."""
    check_is_plain_tensor(name, value)
    if value.dtype not in _INTEGERS:
        raise ValueError(f"{name} must hold integers, but is {value.dtype}")
    if axes is not None and value.dim() != axes:
        raise ValueError(
            f"{name} must have {axes} axes, but has shape {tuple(value.shape)}"
        )


def check_same_device(**tensors: Tensor) -> None:
    """All tensors are on the device of the first."""
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != first.device:
            raise ValueError(
                f"{name} is on {tensor.device}, but {first_name} is on {first.device}"
            )


def check_same_size(name: str, value: int, other: str, reference: int) -> None:
    """``value`` is ``reference``; both are named."""
    if value != reference:
        raise ValueError(f"{name} is {value}, but {other} is {reference}")


def check_holds_numbers(name: str, tensor: Tensor) -> None:
    """``tensor`` is not on the meta device."""
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device, which holds no numbers")


def to_host(name: str, integers: Tensor) -> np.ndarray:
    """The numbers of a tensor as an int64 array on the host.

    Raises:
        ValueError: it is on the meta device.
    """
    check_holds_numbers(name, integers)
    return integers.detach().cpu().numpy().astype(np.int64)


def check_lengths(
    name: str, lengths: Tensor, utterances: int, axis: int, least: int
) -> np.ndarray:
    """``lengths`` is (B,) with values in [least, axis]; returned as a host array."""
    if lengths.size(0) != utterances:
        raise ValueError(
            f"{name} has {lengths.size(0)} utterances, but the batch has {utterances}"
        )
    host = to_host(name, lengths)
    wrong = np.flatnonzero((host < least) | (host > axis))
    if len(wrong):
        utterance = int(wrong[0])
        raise ValueError(
            f"{name} of utterance {utterance} is {host[utterance]}, "
            f"but must be in [{least}, {axis}], the length of its axis"
        )
    return host


def check_blank(blank: int, vocab_size: int) -> None:
    """``blank`` is a token id."""
    if isinstance(blank, bool) or not isinstance(blank, int):
        raise ValueError(f"blank must be an int, but is {blank!r}")
    if not 0 <= blank < vocab_size:
        raise ValueError(
            f"blank must be in [0, {vocab_size}), the vocabulary, but is {blank}"
        )


def check_targets(
    targets: Tensor, lengths: np.ndarray, vocab_size: int, blank: int
) -> np.ndarray:
    """Every label is in [0, V) and not blank; returned as a host array (B, U)."""
    check_blank(blank, vocab_size)
    host = to_host("targets", targets)
    valid = np.arange(host.shape[1])[None, :] < lengths[:, None]
    outside = valid & ((host < 0) | (host >= vocab_size))
    if outside.any():
        utterance, position = (int(x[0]) for x in np.nonzero(outside))
        raise ValueError(
            f"targets of utterance {utterance} holds {host[utterance, position]} at "
            f"position {position}, but token ids must be in [0, {vocab_size}), "
            f"the vocabulary"
        )
    is_blank = valid & (host == blank)
    if is_blank.any():
        utterance, position = (int(x[0]) for x in np.nonzero(is_blank))
        raise ValueError(
            f"targets of utterance {utterance} holds {host[utterance, position]} at "
            f"position {position}, which is blank ({blank}); labels must not be blank"
        )
    return host
