"""Drawing the vocabulary of a training step, and what it must remember for that.

A module, so that what a schedule or the unigram counts need goes into ESPnet's
checkpoint and comes back from it; without them it adds no key.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.distributions import (
    add_counts,
    average,
    mix_with_uniform,
    read_counts,
)
from espnet_sampled_rnnt.options import SampledSoftmaxOptions
from espnet_sampled_rnnt.vocabulary import SampledVocabulary, sample_vocabulary

# Odd, so that no two ranks' seeds meet modulo 2**32; large, so that neighbouring
# ranks do not get neighbouring seeds.
_RANK_STRIDE = 0x9E3779B1


class VocabularySampler(torch.nn.Module):
    """Draws the tokens that the softmax of a training batch runs over.

    Buffers, each only where it is needed: ``updates`` and ``epochs``, () int64, for
    schedules in those units; ``counts``, (V,) float64, for ``unigram``.

    Args:
        options: the checked options.
        token_list: the V tokens.
        blank: token id of blank.

    Raises:
        ValueError: a counts file that cannot be read.
    """

    def __init__(
        self, options: SampledSoftmaxOptions, token_list: Sequence[str], blank: int
    ) -> None:
        super().__init__()
        self.options = options
        self.vocab_size = len(token_list)
        self.blank = blank
        self._version: int | None = None
        self._trained = False
        units = {s.unit for s in options.schedules if not s.is_constant}
        for unit in sorted(units):
            self.register_buffer(unit, torch.zeros((), dtype=torch.int64))
        if options.distribution.source == "counts" and options.samples:
            counts = torch.zeros(self.vocab_size, dtype=torch.float64)
            if options.sampling_counts is not None:
                counts = read_counts(options.sampling_counts, token_list)
            self.register_buffer("counts", counts)

    def step(self, parameter: Tensor) -> None:
        """To be called once for each training batch, before the draw.

        Args:
            parameter: one that the optimizer changes. That it has changed is how an
                update is told from a batch whose gradient is only accumulated, or
                was skipped for not being finite.
        """
        self._trained = True
        version = parameter._version
        if self._version not in (None, version) and hasattr(self, "updates"):
            self.updates += 1
        self._version = version

    def end_epoch(self, parameter: Tensor) -> None:
        """To be called when training turns to validation, before a checkpoint.

        Args:
            parameter: as for :meth:`step`.
        """
        if self._trained:
            self.step(parameter)  # the last update of the epoch
            self._trained = False
            if hasattr(self, "epochs"):
                self.epochs += 1

    def _now(self, schedule) -> float:
        if schedule.is_constant:
            return schedule.values[0]
        return schedule.at(int(getattr(self, schedule.unit)))

    @property
    def num_samples(self) -> int:
        """S at this point of training; 0 for the full softmax."""
        number = self._now(self.options.num_samples_schedule)
        # On the way to or from 0 a line passes fractions: 0 alone is the full softmax.
        return max(1, round(number)) if number > 0 else 0

    @property
    def correction(self) -> float:
        """The strength a of the correction at this point of training."""
        return float(self._now(self.options.correction_schedule))

    def draw(
        self, targets: Tensor, num_labels: Tensor, posteriors: Sequence[Tensor]
    ) -> SampledVocabulary | None:
        """Draw for one batch; None for the full softmax.

        ESPnet seeds torch alike on every rank and again at every epoch. So the seed
        of a draw comes from torch's generator, which makes ``--seed`` and resuming
        reproduce it, and is moved by the rank, so that ranks draw differently.

        Args:
            targets: (B, U) int labels.
            num_labels: (B,) int.
            posteriors: (B, V) mean CTC posteriors that the distribution is made of;
                empty for the others.
        """
        if hasattr(self, "counts") and self.options.sampling_counts is None:
            add_counts(self.counts, targets, num_labels)
        num_samples = self.num_samples
        if num_samples == 0:
            return None
        seed = int(torch.randint(2**32, (), device="cpu"))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            seed += torch.distributed.get_rank() * _RANK_STRIDE
        # A CPU generator, so that a run draws the same on every kind of device; it
        # reads the lowest 32 bits of its seed only.
        generator = torch.Generator().manual_seed(seed % 2**32)
        return sample_vocabulary(
            targets,
            num_labels,
            vocab_size=self.vocab_size,
            num_samples=num_samples,
            scope=self.options.sampling_scope,
            probs=self._weights(posteriors),
            blank=self.blank,
            generator=generator,
        )

    def _weights(self, posteriors: Sequence[Tensor]) -> Tensor | None:
        source = self.options.distribution.source
        if source is None:
            return None
        weights = self.counts if source == "counts" else average(posteriors)
        return mix_with_uniform(weights, self.options.sampling_uniform_mix)
