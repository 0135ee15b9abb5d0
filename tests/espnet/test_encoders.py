"""Encoders and front ends by YAML: what a stock transducer can have, ours has.

For each YAML ``asr_train`` is run, and its checkpoint is loaded into the model of the
same YAML with ``model: espnet``: it must fit strictly, and its loss must be ours.
"""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.espnet_commands import OUR_DECODER, STOCK_DECODER, Corpus, load, run
from support.tiny_ssl import save_bert, save_wav2vec2, save_wav2vec2_bert

# ESPnet 202511 is the one without ESPnet3. Its Hugging Face frontend takes samples for
# frames where the model is fed waveforms.
IS_202511 = find_spec("espnet3") is None

ATTENTION = {"output_size": 8, "attention_heads": 2, "num_blocks": 2}
FEED_FORWARD = {**ATTENTION, "linear_units": 8}
CONVOLUTIONS = {"cgmlp_linear_units": 8, "cgmlp_conv_kernel": 3}
STREAMING = {"block_size": 8, "hop_size": 4, "look_ahead": 2}
RECURRENT = {"num_layers": 1, "hidden_size": 6, "output_size": 8}
INTERCTC = {"interctc_layer_idx": [1], "interctc_use_conditioning": True}
OF_ANY_FRONTEND = {
    "normalize": None,
    "encoder": "transformer",
    "encoder_conf": {**FEED_FORWARD, "input_layer": "linear"},
}

# What each YAML has instead of what stands in support.espnet_commands.CONFIG.
YAMLS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": "transformer", "encoder_conf": FEED_FORWARD},
    "conformer": {
        "encoder": "conformer",
        "encoder_conf": {**FEED_FORWARD, "cnn_module_kernel": 3},
    },
    "branchformer": {
        "encoder": "branchformer",
        "encoder_conf": {**ATTENTION, **CONVOLUTIONS},
    },
    "e_branchformer": {
        "encoder": "e_branchformer",
        "encoder_conf": {**FEED_FORWARD, **CONVOLUTIONS},
    },
    "contextual_block_transformer": {
        "encoder": "contextual_block_transformer",
        "encoder_conf": {**FEED_FORWARD, **STREAMING},
    },
    "contextual_block_conformer": {
        "encoder": "contextual_block_conformer",
        "encoder_conf": {**FEED_FORWARD, **STREAMING, "cnn_module_kernel": 3},
    },
    "rnn": {"encoder": "rnn", "encoder_conf": RECURRENT},
    "vgg_rnn": {"encoder": "vgg_rnn", "encoder_conf": RECURRENT},
    "self_conditioned": {
        "encoder": "conformer",
        "encoder_conf": {**FEED_FORWARD, "cnn_module_kernel": 3, **INTERCTC},
        "model_conf": {
            "ctc_weight": 0.3,
            "interctc_weight": 0.5,
            "num_samples": 2,
            "sampling_distribution": "interctc",
        },
    },
    "specaug": {
        "specaug": "specaug",
        "specaug_conf": {
            "apply_time_warp": True,
            "apply_freq_mask": True,
            "freq_mask_width_range": [0, 3],
            "apply_time_mask": True,
            "time_mask_width_range": [0, 5],
        },
    },
    "utterance_mvn": {"normalize": "utterance_mvn"},
    "preencoder_linear": {
        "preencoder": "linear",
        "preencoder_conf": {"input_size": 16, "output_size": 8},
    },
    "preencoder_sinc": {
        **OF_ANY_FRONTEND,
        "frontend": "sliding_window",
        "frontend_conf": {"win_length": 400},
        "preencoder": "sinc",
        "preencoder_conf": {"out_channels": 128},
    },
    "wav2vec_cnn": {
        **OF_ANY_FRONTEND,
        "frontend": "wav2vec_cnn",
        "frontend_conf": {
            "norm_mode": "layer_norm",
            "conv_mode": "standard",
            "bias": True,
            "shapes": [[8, 20, 20], [8, 16, 16]],
        },
    },
    "postencoder": {
        "postencoder": "length_adaptor",
        "postencoder_conf": {"length_adaptor_n_layers": 1},
    },
}
WIDER = {
    "postencoder": "length_adaptor",
    "postencoder_conf": {"input_layer": "linear", "output_size": 12},
}


def train(corpus: Corpus, name: str, **changes: object) -> Path:
    """Train for one epoch; the folder of the experiment."""
    command, folder = corpus.train(
        f"encoder_{name}", **{**STOCK_DECODER, "max_epoch": 1, **changes}
    )
    # Whoever would load a model by its name on a hub shall fail, not download.
    printed = run(command, HF_HUB_OFFLINE="1")
    (results,) = (line for line in printed.splitlines() if "epoch results" in line)
    for part in re.split(r"\[(?:train|valid)\]", results)[1:3]:
        for stat in ("loss_transducer", "loss_ctc", "sampled_vocabulary_size"):
            assert re.search(rf"\b{stat}=\d", part), (stat, part)
    return folder


def build(folder: Path, **changes: object) -> torch.nn.Module:
    """The model of an experiment's YAML with changes, its last checkpoint in it."""
    from espnet2.tasks.asr import ASRTask

    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config.update(changes, init=None)
    model = ASRTask.build_model(argparse.Namespace(**config))
    model.load_state_dict(load(folder / "1epoch.pth"), strict=True)
    return model.eval()


def losses(model: torch.nn.Module) -> dict[str, float]:
    """What it says of two utterances of noise, the second of them shorter."""
    generator = torch.Generator().manual_seed(23)
    with torch.no_grad():
        _, stats, _ = model(
            speech=0.1 * torch.randn(2, 12000, generator=generator),
            speech_lengths=torch.tensor([12000, 9000]),
            text=torch.tensor([[3, 4, 5, 3], [6, 7, -1, -1]]),
            text_lengths=torch.tensor([4, 2]),
        )
    return {
        name: value.item()
        for name, value in stats.items()
        if name.startswith("loss") and name != "loss_peak_bytes"
    }


def assert_espnets_own_agrees(folder: Path) -> None:
    ours = losses(build(folder))
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    interctc = config["model_conf"].get("interctc_weight", 0.0)
    stock = build(
        folder,
        model="espnet",
        model_conf={
            "ctc_weight": 0.3,
            "interctc_weight": interctc,
            "report_cer": False,
            "report_wer": False,
        },
    )
    assert losses(stock) == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize("name", YAMLS)
def test_yaml(corpus, espnets_own_transducer, name):
    assert_espnets_own_agrees(train(corpus, name, **YAMLS[name]))


def test_postencoder_of_another_width(corpus):
    """ESPnet sizes its joint network for the encoder; our decoder's is right."""
    folder = train(corpus, "wider", **OUR_DECODER, **WIDER)
    assert build(folder).joint_network.lin_enc.in_features == 12
    command, _ = corpus.train("narrow", **{**STOCK_DECODER, **WIDER})
    printed = run(command, expect_failure=True)
    assert "the joint network takes 16 features a frame, but 12 reach it" in printed
    assert "decoder: sampled_transducer" in printed


def needs(library: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(library) is None, reason=f"pip install {extra} to run this"
    )


@needs("transformers", "transformers")
def test_hugging_face(corpus, espnets_own_transducer, tmp_path):
    """Frontends fed by frames and by waveforms, and a postencoder of another width."""
    savers = {"frames": save_wav2vec2_bert}
    if not IS_202511:
        savers["waveform"] = save_wav2vec2
    for name, save in savers.items():
        frontend = {
            "frontend": "huggingface",
            "frontend_conf": {"model": str(save(tmp_path / name))},
        }
        folder = train(corpus, f"hugging_face_{name}", **OF_ANY_FRONTEND, **frontend)
        assert_espnets_own_agrees(folder)
    postencoder = {
        "postencoder": "hugging_face_transformers",
        "postencoder_conf": {"model_name_or_path": str(save_bert(tmp_path / "bert"))},
    }
    folder = train(corpus, "hugging_face_post", **OUR_DECODER, **postencoder)
    assert build(folder).joint_network.lin_enc.in_features == 6


@pytest.mark.slow
@needs("s3prl", "espnet-s3prl")
def test_s3prl(corpus, espnets_own_transducer, tmp_path):
    frontend = {
        "frontend": "s3prl",
        "frontend_conf": {
            "frontend_conf": {
                "upstream": "hf_wav2vec2_custom",
                "path_or_url": str(save_wav2vec2(tmp_path / "wav2vec2")),
            },
            "multilayer_feature": True,
        },
        "freeze_param": ["frontend.upstream"],
    }
    folder = train(corpus, "s3prl", **OF_ANY_FRONTEND, **frontend)
    assert_espnets_own_agrees(folder)
