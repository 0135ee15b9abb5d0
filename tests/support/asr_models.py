"""ESPnet ASR models that build in milliseconds, ESPnet's own transducer included."""

from __future__ import annotations

import argparse
import types

import torch

TOKENS = ("<blank>", "<unk>", "<space>", "a", "b", "c", "d", "e", "<sos/eos>")
NUM_FEATURES = 6


def tiny_asr_config(**changes: object) -> dict[str, object]:
    """The configuration of a transducer over ``NUM_FEATURES`` features, no dropout."""
    config: dict[str, object] = {
        "token_list": list(TOKENS),
        "input_size": NUM_FEATURES,
        "specaug": None,
        "normalize": None,
        "encoder": "transformer",
        "encoder_conf": {
            "output_size": 8,
            "attention_heads": 2,
            "linear_units": 8,
            "num_blocks": 2,
            "dropout_rate": 0.0,
            "positional_dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            "input_layer": "linear",
        },
        "decoder": "transducer",
        "decoder_conf": {"rnn_type": "gru", "num_layers": 1, "hidden_size": 7},
        "joint_net_conf": {"joint_space_size": 5},
        "ctc_conf": {},
        "model": "sampled_transducer",
        "model_conf": {"ctc_weight": 0.3, "num_samples": 3},
        "init": None,
    }
    config.update(changes)
    return config


def build_asr_model(seed: int = 0, **changes: object) -> torch.nn.Module:
    """ESPnet's model for ``tiny_asr_config(**changes)``, its parameters seeded."""
    from espnet2.tasks.asr import ASRTask

    import espnet_sampled_rnnt  # noqa: F401 - registers

    torch.manual_seed(seed)
    return ASRTask.build_model(argparse.Namespace(**tiny_asr_config(**changes)))


def make_batch(num_labels=(4, 2, 0), num_frames=(12, 9, 5), seed=1) -> dict:
    """Keyword arguments of the model: random features and labels, padded."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.full((len(num_labels), max(num_labels)), -1)
    for row, length in enumerate(num_labels):
        text[row, :length] = torch.randint(
            2, len(TOKENS) - 1, (length,), generator=generator
        )
    return {
        "speech": torch.randn(
            len(num_frames), max(num_frames), NUM_FEATURES, generator=generator
        ),
        "speech_lengths": torch.tensor(num_frames),
        "text": text,
        "text_lengths": torch.tensor(num_labels),
    }


def warprnnt_stand_in() -> types.ModuleType:
    """A ``warprnnt_pytorch``, in no registry today, with torchaudio's loss in it."""
    from torchaudio.functional import rnnt_loss

    class RNNTLoss(torch.nn.Module):
        def __init__(self, blank: int = 0, fastemit_lambda: float = 0.0) -> None:
            super().__init__()
            self.blank = blank

        def forward(self, logits, targets, frames, labels):
            return rnnt_loss(logits, targets, frames, labels, blank=self.blank)

    module = types.ModuleType("warprnnt_pytorch")
    module.RNNTLoss = RNNTLoss
    return module
