"""ESPnet's ASR model, kept safe from single bad utterances.

A recording with NaN in it makes the gradient of its whole batch NaN, so that ESPnet
skips the update, in every epoch; and what batch normalisation remembers, or the
statistics for ``global_mvn``, stays NaN for good. A recording too short for the encoder
ends the training. Here such utterances are left out, each with one message, and what
shares a batch with them is learned.

B utterances, L samples or frames of input, T encoder frames, U labels, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from torch import Tensor

from espnet_sampled_rnnt.espnet_compat import TooShortUttError, shortest_speech

# What stands in for a batch that the encoder cannot take at all: longer than any
# subsampling needs, in samples and in frames.
_SILENT_SAMPLES = 16000
_SILENT_FRAMES = 100


class UnusableUtterances:
    """The utterances of one batch that must not reach a loss.

    Args:
        names: The utterances' names, or None.
        said: What was said already; each message is logged once.
    """

    def __init__(self, names: Sequence[str] | None, said: set[str]) -> None:
        self._names = names
        self._said = said
        self.rows: Tensor | None = None

    def add(self, rows: Tensor, reason: str) -> None:
        """Leave some utterances out from here on.

        Args:
            rows: (B,) bool.
            reason: What is wrong with each of them, to follow its name.
        """
        if not rows.any():  # waits for the device; so does ESPnet, for the lengths
            return
        rows = rows.cpu()
        if self.rows is not None:
            rows, self.rows = rows & ~self.rows, self.rows | rows
        else:
            self.rows = rows
        for row in rows.nonzero().flatten().tolist():
            name = _name_of(row, len(rows), self._names)
            message = f"Utterance {name} is left out: {reason}"
            if message not in self._said:
                self._said.add(message)
                # An error, because ESPnet silences warnings on all ranks but one.
                logging.error(message)

    @property
    def all(self) -> bool:
        """Whether nothing is left of the batch."""
        return self.rows is not None and bool(self.rows.all())

    def drop_from(self, *batched: Tensor) -> tuple[Tensor, ...]:
        """The rows of the other utterances, of tensors whose first axis is B.

        All rows where nothing is left: something must go through the network, that
        each parameter has a gradient, as ``DistributedDataParallel`` wants it.
        """
        if self.rows is None or self.all:
            return batched
        keep = (~self.rows).nonzero().flatten()
        return tuple(tensor[keep.to(tensor.device)] for tensor in batched)


class GuardedASRModel(ESPnetASRModel):
    """``ESPnetASRModel`` that leaves out utterances which cannot be trained on.

    Its losses have to pass what they get through ``self.unusable.drop_from``.
    """

    # Class attributes, because ESPnet's constructor calls nothing that needs them.
    unusable = UnusableUtterances(None, set())
    _guarding = False

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Tensor | None], Tensor]:
        """As ESPnet's, over the usable utterances.

        The weight of the batch, in ESPnet's averages of losses and statistics, is
        their number. Where none is usable the loss is 0, with gradients of 0.

        Raises:
            ValueError: A label that the token list does not have.
        """
        names = kwargs.get("utt_id")
        check_labels(text, text_lengths, self.vocab_size, self.blank_id, names)
        self._start(names)
        try:
            loss, stats, weight = super().forward(
                speech, speech_lengths, text, text_lengths, **kwargs
            )
        finally:
            self._guarding = False
        if self.unusable.all:
            loss = loss * 0.0
            nothing = torch.zeros_like(loss.detach())
            stats = {k: v if v is None else nothing for k, v in stats.items()}
        if self.unusable.rows is not None:
            weight = weight - int(self.unusable.rows.sum())
        return loss, stats, weight

    def _start(self, names: Sequence[str] | None) -> None:
        if not hasattr(self, "_said"):
            self._said: set[str] = set()
        self.unusable = UnusableUtterances(names, self._said)
        self._guarding = True

    def collect_feats(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """As ESPnet's; of an unusable utterance no frame counts."""
        self._start(kwargs.get("utt_id"))
        try:
            collected = super().collect_feats(
                speech, speech_lengths, text, text_lengths, **kwargs
            )
        finally:
            self._guarding = False
        if self.unusable.rows is not None:
            lengths = collected["feats_lengths"]
            rows = self.unusable.rows.to(lengths.device)
            collected["feats_lengths"] = lengths.masked_fill(rows, 0)
        return collected

    def encode(
        self, speech: Tensor, speech_lengths: Tensor
    ) -> tuple[Tensor | tuple, Tensor]:
        """As ESPnet's; in training and validation no length that comes back is 0.

        In inference only the encoder's end comes back, and not the layers under
        intermediate CTC beside it: ESPnet's ``asr_inference`` fails on those where
        the model is a transducer (it takes the token list from the attention model's
        beam search, which is None), and its ``asr_align`` where it is any model.

        Args:
            speech: (B, L, ...)
            speech_lengths: (B,)
        """
        if not self._guarding:
            encoder_out, lengths = super().encode(speech, speech_lengths)
            if isinstance(encoder_out, tuple) and not self.training:
                encoder_out = encoder_out[0]
            return encoder_out, lengths
        try:
            encoder_out, lengths = super().encode(speech, speech_lengths)
        except TooShortUttError as error:
            self.unusable.add(
                torch.ones(len(speech), dtype=torch.bool),
                f"its batch has {error.actual_size} frames, and the encoder needs "
                f"{error.limit}",
            )
            return super().encode(*_silence(speech))
        too_short = lengths < 1
        if too_short.any():
            self.unusable.add(
                too_short, "it is so short that no frame is left behind the encoder"
            )
            # Again with a length for it, as attention over nothing may be NaN.
            speech_lengths = torch.where(
                too_short, speech_lengths.max(), speech_lengths
            )
            encoder_out, lengths = super().encode(speech, speech_lengths)
        return encoder_out, lengths

    def _extract_feats(
        self, speech: Tensor, speech_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As ESPnet's; an utterance with NaN or infinity in it becomes all 0.

        Args:
            speech: (B, L, ...)
            speech_lengths: (B,)
        """
        unusable = self.unusable
        if not self._guarding:
            unusable = UnusableUtterances(None, set())
        # Of padding alone a front end still makes a frame, which some encoders take.
        unusable.add(speech_lengths < 1, "it is empty")
        least = shortest_speech(self.frontend)
        if int(speech_lengths.max()) < least:
            # Zeros behind, and the longest counts as that long: what the front end
            # needs at least, though an encoder will mostly find it too short still.
            missing = max(0, least - speech.size(1))
            behind = [0, 0] * (speech.dim() - 2) + [0, missing]
            speech = torch.nn.functional.pad(speech, behind)
            speech_lengths = speech_lengths.clone()
            speech_lengths[speech_lengths.argmax()] = least
        speech = _without_nonfinite(speech, unusable, "its audio")
        feats, feats_lengths = super()._extract_feats(speech, speech_lengths)
        feats = _without_nonfinite(feats, unusable, "what the front end makes of it")
        return feats, feats_lengths


def _without_nonfinite(values: Tensor, unusable: UnusableUtterances, what: str):
    """(B, L, ...) with the utterances that are not finite set to 0, and left out."""
    if not values.is_floating_point():
        return values
    rows = ~values.isfinite().flatten(1).all(dim=1)
    if not rows.any():
        return values
    unusable.add(rows, f"{what} holds NaN or infinity")
    return values.masked_fill(rows.view(-1, *[1] * (values.dim() - 1)), 0.0)


def _name_of(row: int, count: int, names: Sequence[str] | None) -> str:
    """The name of one of ``count`` utterances.

    ``DataParallel`` splits the tensors of a batch, but not the list of the names.
    """
    if names is None or len(names) != count:
        return f"number {row} of a batch"
    return names[row]


def _silence(speech: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L, ...) zeros in the form of (B, L, ...) ``speech``, and their lengths."""
    length = _SILENT_SAMPLES if speech.dim() == 2 else _SILENT_FRAMES
    silence = speech.new_zeros(len(speech), length, *speech.shape[2:])
    return silence, torch.full((len(speech),), length, device=speech.device)


def check_labels(
    text: Tensor,
    text_lengths: Tensor,
    vocab_size: int,
    blank: int,
    names: Sequence[str] | None,
) -> None:
    """Raise for a label that the model has no output for, or for blank.

    Before the CTC loss sees it, which on a CPU reads beyond its memory for such one.

    Args:
        text: (B, U) int64 token ids, padded behind their length.
        text_lengths: (B,)
        vocab_size: V
        blank: Token id of blank.
        names: The utterances' names, or None.

    Raises:
        ValueError: Naming the utterance, the place, the label and what is allowed.
    """
    places = torch.arange(text.size(1), device=text.device)
    wrong = (text < 0) | (text >= vocab_size) | (text == blank)
    wrong &= places < text_lengths.to(text.device)[:, None]
    if not wrong.any():
        return
    row, place = wrong.nonzero()[0].tolist()
    name = _name_of(row, len(text), names)
    label = int(text[row, place])
    meaning = " (blank)" if label == blank else ""
    raise ValueError(
        f"label {place} of utterance {name} is {label}{meaning}; allowed: 0 to "
        f"{vocab_size - 1}, as the token list has {vocab_size} tokens, without blank, "
        f"which is {blank}"
    )
