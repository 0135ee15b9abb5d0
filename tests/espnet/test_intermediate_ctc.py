"""Transducers with intermediate CTC in ESPnet's commands behind the training.

ESPnet's ``encode`` returns the layers under intermediate CTC beside the encoder's end,
and its ``asr_inference`` and ``asr_align`` cannot do with that; see docs/limits.md.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from espnet2.bin.asr_inference import Speech2Text
from support.espnet_commands import CONFIG, SAMPLE_RATE, STOCK_DECODER, run


@pytest.fixture(scope="module")
def experiment(corpus):
    encoder_conf = {**CONFIG["encoder_conf"], "num_blocks": 2}
    encoder_conf |= {"interctc_layer_idx": [1]}
    command, folder = corpus.train(
        "intermediate_ctc",
        encoder_conf=encoder_conf,
        model_conf={
            "ctc_weight": 0.3,
            "interctc_weight": 0.3,
            "num_samples": 2,
            "sampling_distribution": "ctc",
        },
        max_epoch=1,
        **STOCK_DECODER,
    )
    run(command)
    return folder


def tone() -> np.ndarray:
    seconds = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * 300 * seconds)).astype(np.float32)


def test_asr_inference(corpus, experiment):
    command, text = corpus.decode(
        experiment, "1epoch.pth", "intermediate_ctc_decoded", 2, {}
    )
    run(command)
    assert len(text.read_text(encoding="utf-8").splitlines()) == 5


def test_ctc_alignment(experiment):
    pytest.importorskip("ctc_segmentation")
    from espnet2.bin.asr_align import CTCSegmentation

    aligner = CTCSegmentation(experiment / "config.yaml", experiment / "1epoch.pth")
    posteriors = aligner.get_lpz(torch.tensor(tone()))
    assert posteriors.ndim == 2


def test_espnets_own_transducer_cannot_be_decoded(
    experiment, espnets_own_transducer, tmp_path
):
    """The same checkpoint; once ESPnet can, the line in docs/limits.md goes."""
    config = yaml.safe_load((experiment / "config.yaml").read_text(encoding="utf-8"))
    config["model"] = "espnet"
    config["model_conf"] = {"ctc_weight": 0.3, "interctc_weight": 0.3}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    decode = Speech2Text(path, experiment / "1epoch.pth", beam_size=1)
    with pytest.raises(AttributeError, match="token_list"):
        decode(tone())
