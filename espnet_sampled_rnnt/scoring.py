"""Error rates that ESPnet reports while it trains, over valid frames only.

ESPnet's own transducer scorer decodes the padding of every utterance along with
it, divides by zero where no reference has a character, and does not end on scores
that are not numbers. That is put right here; what a character and a word is stays
ESPnet's, so the numbers compare.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from espnet2.asr.transducer.beam_search_transducer import BeamSearchTransducer
from espnet2.asr.transducer.error_calculator import ErrorCalculatorTransducer

# Steps of the prediction network that one search may take. A trained model needs
# two or three a frame; where blank is unlikely everywhere, ESPnet's default search
# needs exponentially many, and without an end on NaN.
STEPS_PER_FRAME = 20
STEPS_PER_UTTERANCE = 100


class SearchBudgetError(RuntimeError):
    """A search took more steps than it was given."""


class BudgetedDecoder:
    """What ESPnet's default and greedy search ask of a decoder, its steps counted."""

    def __init__(self, decoder: torch.nn.Module) -> None:
        self.decoder = decoder
        self.dunits = decoder.dunits
        self.odim = decoder.odim
        self.blank_id = decoder.blank_id
        self.steps_left = 0

    def set_device(self, device: torch.device) -> None:
        """As the decoder's."""
        self.decoder.set_device(device)

    def init_state(self, batch_size: int) -> Any:
        """As the decoder's."""
        return self.decoder.init_state(batch_size)

    def score(self, *arguments: Any) -> Any:
        """As the decoder's.

        Raises:
            SearchBudgetError: The steps are used up.
        """
        if self.steps_left == 0:
            raise SearchBudgetError
        self.steps_left -= 1
        return self.decoder.score(*arguments)


class ValidFrameErrorCalculator(ErrorCalculatorTransducer):
    """ESPnet's transducer scorer, kept off padding, empty references and hang-ups."""

    def __init__(
        self,
        decoder: torch.nn.Module,
        joint_network: torch.nn.Module,
        token_list: Sequence[str],
        sym_space: str,
        sym_blank: str,
        report_cer: bool,
        report_wer: bool,
        blank: int,
    ) -> None:
        super().__init__(
            decoder,
            joint_network,
            list(token_list),
            sym_space,
            sym_blank,
            report_cer=report_cer,
            report_wer=report_wer,
        )
        self.budgeted_decoder = BudgetedDecoder(decoder)
        self.beam_search.decoder = self.budgeted_decoder
        self.greedy_search = BeamSearchTransducer(
            decoder=self.budgeted_decoder, joint_network=joint_network, beam_size=1
        )
        if blank != 0:
            # ESPnet's beam searches expand tokens 1 to V - 1 and take token 0 for
            # blank; only the greedy search asks which one it is.
            self.beam_search = self.greedy_search

    @torch.no_grad()
    def __call__(
        self,
        encoder_out: torch.Tensor,
        target: torch.Tensor,
        encoder_lengths: torch.Tensor | None = None,
    ) -> tuple[float | None, float | None]:
        """Decode and score one batch.

        Args:
            encoder_out: (B, T, D) encoder output.
            target: (B, U) reference token ids, padded with blank.
            encoder_lengths: (B,) valid frames; None: every frame is valid.

        Returns:
            Character and word error rate of the batch (0 to 1, or more with many
            insertions); None for one that is not to be reported.
        """
        parameter = next(self.decoder.parameters())
        encoder_out = encoder_out.to(parameter)
        num_frames = [encoder_out.size(1)] * encoder_out.size(0)
        if encoder_lengths is not None:
            num_frames = encoder_lengths.tolist()
        hypotheses = self._decode(encoder_out, num_frames)
        hypothesis_text, reference_text = self.convert_to_char(hypotheses, target)
        cer = wer = None
        if self.report_cer:
            cer = self.calculate_cer(hypothesis_text, reference_text)
        if self.report_wer:
            wer = self.calculate_wer(hypothesis_text, reference_text)
        return cer, wer

    def _decode(
        self, encoder_out: torch.Tensor, num_frames: Sequence[int]
    ) -> list[list[int]]:
        """The best token ids of each utterance, from (B, T, D) and its lengths."""
        search = self.beam_search
        hypotheses = []
        for frames, length in zip(encoder_out, num_frames, strict=True):
            valid = frames[:length]
            budget = STEPS_PER_UTTERANCE + STEPS_PER_FRAME * length
            self.budgeted_decoder.steps_left = budget
            try:
                best = search(valid)[0]
            except SearchBudgetError:
                logging.warning(
                    "A beam search of the validation found no end (blank is unlikely "
                    "everywhere, or the model holds NaN): this batch is scored by "
                    "greedy search"
                )
                search = self.greedy_search  # one step a frame at most
                self.budgeted_decoder.steps_left = budget
                best = search(valid)[0]
            hypotheses.append(best.yseq[1:])
        return hypotheses

    def calculate_cer(
        self, char_pred: Sequence[str], char_target: Sequence[str]
    ) -> float:
        """Character errors over reference characters, blanks between words aside.

        Where no reference has a character, the hypotheses' characters (all of them
        insertions) over one: a number in every batch, 0 for silence kept silent.
        """
        if any(text.replace(" ", "") for text in char_target):
            return super().calculate_cer(char_pred, char_target)
        return float(sum(len(text.replace(" ", "")) for text in char_pred))

    def calculate_wer(
        self, char_pred: Sequence[str], char_target: Sequence[str]
    ) -> float:
        """Word errors over reference words; without any, as ``calculate_cer``."""
        if any(text.split() for text in char_target):
            return super().calculate_wer(char_pred, char_target)
        return float(sum(len(text.split()) for text in char_pred))


def ctc_character_error_rate(
    best_path: torch.Tensor,
    encoder_lengths: torch.Tensor,
    labels: torch.Tensor,
    token_list: Sequence[str],
    skipped_ids: frozenset[int],
) -> float:
    """Character error rate of the CTC head's best path.

    Args:
        best_path: (B, T) most probable token of each frame.
        encoder_lengths: (B,) valid frames.
        labels: (B, U) references, padded with a negative id.
        token_list: The tokens' texts.
        skipped_ids: Tokens that are not characters: blank, and the space between
            words.

    Returns:
        Edit operations over reference characters; where there are none, over one.
    """
    import editdistance

    edits = num_characters = 0
    rows = zip(
        best_path.tolist(), encoder_lengths.tolist(), labels.tolist(), strict=True
    )
    for path, num_frames, reference in rows:
        tokens = [token for token, _ in groupby(path[:num_frames])]
        hypothesis_text = _text(tokens, token_list, skipped_ids)
        reference_text = _text(reference, token_list, skipped_ids)
        edits += editdistance.eval(hypothesis_text, reference_text)
        num_characters += len(reference_text)
    return edits / max(num_characters, 1)


def _text(
    token_ids: Sequence[int], token_list: Sequence[str], skipped_ids: frozenset[int]
) -> str:
    return "".join(
        token_list[token]
        for token in token_ids
        if token >= 0 and token not in skipped_ids
    )
