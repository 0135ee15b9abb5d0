"""The numbers that the sampled loss adds to ESPnet's training log.

B utterances, T encoder frames, U labels, V vocabulary, K tokens of a softmax, J joint
width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from espnet_sampled_rnnt.espnet_compat import output_parameters
from espnet_sampled_rnnt.loss.memory import peak_bytes
from espnet_sampled_rnnt.options import SampledSoftmaxOptions
from espnet_sampled_rnnt.vocabulary import SampledVocabulary

# The coverage of the softmax is measured on this many nodes of every so-many-th batch.
COVERAGE_NODES = 32
COVERAGE_INTERVAL = 10


def describe_loss(
    options: SampledSoftmaxOptions,
    frames: Sequence[int],
    labels: Sequence[int],
    device_type: str,
    output_layer: torch.nn.Linear,
    vocabulary: SampledVocabulary | None,
) -> dict[str, float | Tensor]:
    """Size of the softmax and memory of the loss, in training and validation.

    Args:
        options: of the loss.
        frames: T_b of each utterance.
        labels: U_b of each utterance.
        device_type: "cpu" or "cuda".
        output_layer: of the joint network.
        vocabulary: what was drawn, None for the full softmax.

    Returns:
        ``sampled_vocabulary_size``, the mean over utterances of the tokens in the
        softmax; ``loss_peak_bytes``, what the loss takes beside its inputs.
    """
    size: float | Tensor = float(output_layer.out_features)
    widest = None
    if vocabulary is not None:
        size = vocabulary.sizes.float().mean()
        widest = vocabulary.token_ids.size(1)
    bytes_at_peak = peak_bytes(
        frames,
        labels,
        joint_size=output_layer.in_features,
        vocab_size=output_layer.out_features,
        sampled_size=widest,
        shared=options.sampling_scope == "batch",
        chunk_bytes=options.loss_chunk_bytes,
        device_type=device_type,
        bias=output_layer.bias is not None,
    )
    return {
        "sampled_vocabulary_size": size,
        "loss_peak_bytes": float(bytes_at_peak),
    }


class CoverageMeter:
    """How much of the full softmax's mass the sampled vocabularies hold.

    Measured at some nodes of every ``COVERAGE_INTERVAL``-th batch; the others repeat
    what was found last, because Lightning, unlike ESPnet's reporter, would let a NaN
    into its averages. The nodes are picked without random numbers, so that measuring
    changes no run.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._last: float | Tensor = float("nan")

    @torch.no_grad()
    def __call__(
        self,
        joint_network: torch.nn.Module,
        enc: Tensor,
        dec: Tensor,
        num_frames: Tensor,
        num_labels: Tensor,
        vocabulary: SampledVocabulary | None,
    ) -> float | Tensor:
        """Count one batch, and measure where it is its turn.

        Args:
            joint_network: ESPnet's.
            enc: (B, T, J) projected encoder output.
            dec: (B, U + 1, J) projected prediction network output.
            num_frames: (B,)
            num_labels: (B,)
            vocabulary: what was drawn, None for the full softmax, which covers all.
        """
        if vocabulary is None:
            return 1.0
        self._batches += 1
        if self._batches % COVERAGE_INTERVAL != 1:
            return self._last
        pick = torch.arange(COVERAGE_NODES, device=enc.device)
        utterance = pick % enc.size(0)
        spread = pick * 7919 + self._batches  # a prime: far from any period
        frame = spread % num_frames.to(enc.device)[utterance]
        label = spread % (num_labels.to(enc.device)[utterance] + 1)
        hidden = joint_network.joint_activation(
            enc[utterance, frame] + dec[utterance, label]
        )
        self._last = softmax_coverage(
            hidden,
            *output_parameters(joint_network.lin_out),
            vocabulary.token_ids[utterance],
            vocabulary.mask[utterance],
        )
        return self._last


@torch.no_grad()
def softmax_coverage(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, mask: Tensor
) -> Tensor:
    """The share of the full softmax's mass that a sampled vocabulary holds.

    Args:
        hidden: (n, J) joint network outputs before the output layer, one node a row.
        weight: (V, J) of the output layer.
        bias: (V,) or None.
        token_ids: (n, K) int64, the vocabulary of each node's utterance.
        mask: (n, K) bool, false on padding.

    Returns:
        () mean over the nodes, in [0, 1].
    """
    logits = torch.nn.functional.linear(
        hidden.float(), weight.float(), None if bias is None else bias.float()
    )
    inside = logits.softmax(dim=-1).gather(1, token_ids)
    return inside.masked_fill(~mask, 0.0).sum(dim=1).mean()
