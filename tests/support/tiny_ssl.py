"""Self-supervised models with random weights, written to a folder in milliseconds."""

from __future__ import annotations

from pathlib import Path

import torch

# As small as a transformer gets.
TINY = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def save_wav2vec2(folder: Path) -> Path:
    """A wav2vec 2.0 of 8 channels, one frame each 320 samples, as ``transformers``
    stores it with the feature extractor of 16 kHz audio."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    torch.manual_seed(17)
    config = Wav2Vec2Config(
        hidden_size=8,
        **TINY,
        conv_dim=(8, 8),
        conv_stride=(20, 16),
        conv_kernel=(20, 16),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
    )
    Wav2Vec2Model(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def save_wav2vec2_bert(folder: Path) -> Path:
    """A w2v-BERT of 8 channels, whose feature extractor makes frames of 20 ms."""
    from transformers import (
        SeamlessM4TFeatureExtractor,
        Wav2Vec2BertConfig,
        Wav2Vec2BertModel,
    )

    torch.manual_seed(18)
    config = Wav2Vec2BertConfig(
        hidden_size=8,
        **TINY,
        conv_depthwise_kernel_size=3,
        apply_spec_augment=False,
    )
    Wav2Vec2BertModel(config).save_pretrained(folder)
    SeamlessM4TFeatureExtractor().save_pretrained(folder)
    return folder


def save_bert(folder: Path) -> Path:
    """A BERT of 6 channels: another width than the encoder in front of it has."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(19)
    config = BertConfig(
        hidden_size=6,
        **TINY,
        vocab_size=5,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder
