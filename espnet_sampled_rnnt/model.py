"""``model: sampled_transducer``: ESPnet's transducer, trained by sampled softmax.

B utterances, T encoder frames, U labels, V vocabulary, J joint width.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.decoder.abs_decoder import AbsDecoder
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.asr_transducer.utils import get_transducer_task_io
from espnet2.torch_utils.device_funcs import force_gatherable
from typeguard import typechecked

from espnet_sampled_rnnt import __version__
from espnet_sampled_rnnt.espnet_compat import (
    VectorLift,
    check_distribution,
    check_encoder_width,
    default_distribution,
    joint_network_of,
    merged_signature,
    output_parameters,
    posterior_tap,
    refuse_other_vocabulary,
    refuse_unknown_options,
)
from espnet_sampled_rnnt.loss.transducer import transducer_loss
from espnet_sampled_rnnt.options import SampledSoftmaxOptions
from espnet_sampled_rnnt.requirement import check_requirement
from espnet_sampled_rnnt.safe_saving import install_if_asked
from espnet_sampled_rnnt.sampling import VocabularySampler
from espnet_sampled_rnnt.scoring import (
    ValidFrameErrorCalculator,
    ctc_character_error_rate,
)
from espnet_sampled_rnnt.statistics import CoverageMeter, describe_loss
from espnet_sampled_rnnt.utterances import GuardedASRModel


class SampledTransducerModel(GuardedASRModel):
    """ESPnet's ASR model with a transducer loss that never holds the logits whole.

    In training the softmax runs over blank, the labels at hand and ``num_samples``
    drawn tokens; in validation and inference over the whole vocabulary. Modules and
    parameters have the names that they have in ESPnet's own transducer, so that a
    checkpoint of either loads into the other.

    Takes all options of ``ESPnetASRModel`` but the multi-blank ones, and:

    Args:
        num_samples: Drawn tokens for each vocabulary, or a schedule of it; 0 or None:
            the full softmax.
        sampling_scope: "example" or "batch": what shares a vocabulary.
        sampling_distribution: What is drawn from: "uniform", "unigram", "ctc" or
            "interctc". None: "ctc" where the model trains a CTC head, else "uniform".
        sampling_uniform_mix: Share of uniform mass in what is drawn from, 0 to 1.
        sampling_counts: File of token counts for "unigram"; None: count on the way.
        logit_correction: Strength of the inclusion-probability correction, 0 to 1,
            or a schedule of it.
        loss_backend: Lattice implementation, or "auto".
        loss_chunk_bytes: Size of the loss's workspace; None: its default.
        fastemit_lambda: FastEmit's strength, >= 0.
        requires: This package, as pip is asked for it: for whoever opens the model
            where it is not installed.

    Raises:
        TypeError: An option that nobody reads.
        ValueError: An option out of range, another version of this package required,
            or a decoder that is no transducer's.
    """

    @typechecked
    def __init__(
        self,
        *,
        decoder: AbsDecoder | None,
        ctc: CTC,
        joint_network: torch.nn.Module | None,
        ctc_weight: float = 0.5,
        report_cer: bool = True,
        report_wer: bool = True,
        sym_space: str = "<space>",
        sym_blank: str = "<blank>",
        num_samples: int | dict[str, Any] | None = 256,
        sampling_scope: str = "example",
        sampling_distribution: str | None = None,
        sampling_uniform_mix: float = 0.1,
        sampling_counts: str | None = None,
        logit_correction: float | dict[str, Any] = 0.0,
        loss_backend: str = "auto",
        loss_chunk_bytes: int | None = None,
        fastemit_lambda: float = 0.0,
        requires: str | None = None,
        **espnet_options: Any,
    ) -> None:
        install_if_asked()  # here, because each rank's process makes a model
        check_requirement(requires, __version__)
        refuse_unknown_options(
            espnet_options,
            inspect.signature(type(self)).parameters,
            section="model_conf",
        )
        if sampling_distribution is None:
            sampling_distribution = default_distribution(ctc, ctc_weight)
        options = SampledSoftmaxOptions(
            num_samples=num_samples,
            sampling_scope=sampling_scope,
            sampling_distribution=sampling_distribution,
            sampling_uniform_mix=sampling_uniform_mix,
            sampling_counts=sampling_counts,
            logit_correction=logit_correction,
            loss_backend=loss_backend,
            loss_chunk_bytes=loss_chunk_bytes,
            fastemit_lambda=fastemit_lambda,
        )
        if espnet_options.get("transducer_multi_blank_durations"):
            raise ValueError(
                "model_conf.transducer_multi_blank_durations is "
                f"{espnet_options['transducer_multi_blank_durations']!r}; allowed: "
                "none (the sampled loss has one blank, which lasts one frame)"
            )
        if not 0.0 <= ctc_weight <= 1.0:
            raise ValueError(
                f"model_conf.ctc_weight is {ctc_weight!r}; allowed: a number from 0 "
                "to 1"
            )
        joint_network = joint_network_of(decoder, joint_network)
        # Given a joint network, the parent imports warprnnt_pytorch, which cannot
        # be installed; so it is made without one, as an attention model, and what
        # makes it a transducer is set after. With a CTC weight of 1 an attention
        # model drops its decoder and says so, and without one it drops the CTC
        # head: hence 0.5 here, and the true weight after.
        super().__init__(
            decoder=decoder,
            ctc=ctc,
            joint_network=None,
            ctc_weight=0.5,
            report_cer=False,
            report_wer=False,
            sym_space=sym_space,
            sym_blank=sym_blank,
            **espnet_options,
        )
        del self.criterion_att
        self.ctc_weight = ctc_weight
        if ctc_weight == 0.0:
            self.ctc = None
        self.use_transducer_decoder = True
        self.joint_network = joint_network
        check_encoder_width(self)
        VectorLift(joint_network)
        self.options = options
        if self.blank_id != 0:
            self.decoder.blank_id = self.blank_id
            logging.warning(
                f"{sym_blank} is token {self.blank_id}. ESPnet's CTC and its beam "
                "searches take token 0 for blank: put it first in the token list, or "
                "decode with beam_size 1 and without CTC"
            )
        self.error_calculator_trans = None
        if report_cer or report_wer:
            self.error_calculator_trans = ValidFrameErrorCalculator(
                decoder,
                joint_network,
                self.token_list,
                sym_space,
                sym_blank,
                report_cer,
                report_wer,
                self.blank_id,
            )
        # Tokens that no character error rate of the CTC head counts.
        self.not_characters = frozenset(
            index
            for index, token in enumerate(self.token_list)
            if index == self.blank_id or token in (sym_space, sym_blank)
        )
        check_distribution(
            options.distribution.source, options.sampling_distribution, self
        )
        self.sampler = VocabularySampler(options, self.token_list, self.blank_id)
        self.register_load_state_dict_pre_hook(refuse_other_vocabulary)
        self._posteriors: list[torch.Tensor] = []
        self.coverage = CoverageMeter()
        self._loss_stats: dict[str, float | torch.Tensor] = {}

    def train(self, mode: bool = True) -> SampledTransducerModel:
        """As of any module; turning to validation ends an epoch of the schedules."""
        if not mode:
            self.sampler.end_epoch(self._changing_parameter())
        return super().train(mode)

    def _changing_parameter(self) -> torch.Tensor:
        """A parameter that every update changes: the output layer, unless frozen."""
        weight = self.joint_network.lin_out.weight
        if weight.requires_grad:
            return weight
        return next((p for p in self.parameters() if p.requires_grad), weight)

    def forward(
        self,
        speech: torch.Tensor,
        speech_lengths: torch.Tensor,
        text: torch.Tensor,
        text_lengths: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None], torch.Tensor]:
        """The loss of one batch, with ESPnet's statistics and ours.

        Args:
            speech: (B, L, ...) waveforms or features.
            speech_lengths: (B,)
            text: (B, U) int64 token ids, padded with ``ignore_id``.
            text_lengths: (B,)
            kwargs: What else ESPnet's data loader holds, e.g. ``utt_id``.

        Returns:
            (1,) loss, statistics by name, (1,) batch size.
        """
        self._posteriors = []
        loss, stats, weight = super().forward(
            speech, speech_lengths, text, text_lengths, **kwargs
        )
        stats.update(force_gatherable(self._loss_stats, loss.device))
        self._loss_stats = {}
        return loss, stats, weight

    def _calc_transducer_loss(
        self,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        labels: torch.Tensor,
    ) -> tuple[torch.Tensor, float | None, float | None]:
        """Transducer loss, and in validation the error rates of a narrow beam search.

        Args:
            encoder_out: (B, T, D_enc)
            encoder_out_lens: (B,)
            labels: (B, U) token ids, padded with ``ignore_id``.

        Returns:
            Loss, the mean over utterances; character and word error rate or None.
        """
        encoder_out, encoder_out_lens, labels = self.unusable.drop_from(
            encoder_out, encoder_out_lens, labels
        )
        decoder_in, targets, num_frames, num_labels = get_transducer_task_io(
            labels,
            encoder_out_lens,
            ignore_id=self.ignore_id,
            blank_id=self.blank_id,
        )
        self.decoder.set_device(encoder_out.device)
        decoder_out = self.decoder(decoder_in)

        options = self.options
        output_layer = self.joint_network.lin_out
        weight, bias = output_parameters(output_layer)
        vocabulary = None
        if self.training:
            self.sampler.step(self._changing_parameter())
            vocabulary = self.sampler.draw(
                targets, num_labels, self._posteriors_to_draw_from()
            )
        enc = self.joint_network.lin_enc(encoder_out)
        dec = self.joint_network.lin_dec(decoder_out)
        loss = transducer_loss(
            enc,
            dec,
            weight,
            bias,
            targets,
            num_frames,
            num_labels,
            vocabulary=vocabulary,
            correction=self.sampler.correction if vocabulary is not None else 0.0,
            activation=self.joint_network.joint_activation,
            blank=self.blank_id,
            reduction="mean",
            fastemit_lambda=options.fastemit_lambda,
            backend=options.loss_backend,
            chunk_bytes=options.loss_chunk_bytes,
        )
        self._loss_stats = describe_loss(
            options,
            num_frames.tolist(),
            num_labels.tolist(),
            enc.device.type,
            output_layer,
            vocabulary,
        )
        if self.training and options.samples:
            self._loss_stats["sampling_coverage"] = self.coverage(
                self.joint_network, enc, dec, num_frames, num_labels, vocabulary
            )

        cer = wer = None
        if not self.training and self.error_calculator_trans is not None:
            cer, wer = self.error_calculator_trans(
                encoder_out, targets, encoder_out_lens
            )
        return loss, cer, wer

    @property
    def _taps_posteriors(self) -> bool:
        source = self.options.distribution.source
        return (
            self.training
            and source in ("final", "intermediate")
            and self.sampler.num_samples > 0
        )

    def _posteriors_to_draw_from(self) -> list[torch.Tensor]:
        """The (B, V) posteriors that the distribution is made of.

        ESPnet takes the CTC loss of the encoder's end first, then those of its
        layers.
        """
        source = self.options.distribution.source
        if source == "final":
            return self._posteriors[:1]
        if source == "intermediate":
            return self._posteriors[1:]
        return []

    def _calc_ctc_loss(
        self,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        ys_pad: torch.Tensor,
        ys_pad_lens: torch.Tensor,
    ) -> tuple[torch.Tensor, float | None]:
        """CTC loss, and in validation the character error rate of its best path.

        Args:
            encoder_out: (B, T, D_enc)
            encoder_out_lens: (B,)
            ys_pad: (B, U) token ids, padded with ``ignore_id``.
            ys_pad_lens: (B,)

        Returns:
            Loss; character error rate or None.
        """
        encoder_out, encoder_out_lens, ys_pad, ys_pad_lens = self.unusable.drop_from(
            encoder_out, encoder_out_lens, ys_pad, ys_pad_lens
        )
        with posterior_tap(self.ctc, self._posteriors, self._taps_posteriors):
            loss, _ = super()._calc_ctc_loss(
                encoder_out, encoder_out_lens, ys_pad, ys_pad_lens
            )
        if self.training or self.error_calculator_trans is None:
            return loss, None
        # `ignore_id` may be any number; the scorer takes every negative for padding.
        cer = ctc_character_error_rate(
            self.ctc.argmax(encoder_out),
            encoder_out_lens,
            ys_pad.masked_fill(ys_pad == self.ignore_id, -1),
            self.token_list,
            self.not_characters,
        )
        return loss, cer


# `--print_config` and the check for misspelt options read this.
SampledTransducerModel.__signature__ = merged_signature(
    SampledTransducerModel.__init__, ESPnetASRModel.__init__
)
