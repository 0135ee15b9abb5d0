"""ESPnet's own transducers, trained with nothing but our drop-in's variable set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.espnet_commands import STOCK_DECODER, load, run

from espnet_sampled_rnnt.registration import WARPRNNT_SWITCH

ON = {WARPRNNT_SWITCH: "1"}
STOCK = {**STOCK_DECODER, "max_epoch": 1, "keep_nbest_models": 1}
TRANSDUCER_ENCODER = {
    "input_conf": {"vgg_like": False, "conv_size": 16, "subsampling_factor": 4},
    "body_conf": [
        {
            "block_type": "conformer",
            "linear_size": 16,
            "hidden_size": 16,
            "heads": 2,
            "conv_mod_kernel_size": 3,
        }
    ],
}
# Of each task: what differs from the asr task's configuration, None taking it out.
TASKS = {
    "asr": {"model": "espnet", "model_conf": {"ctc_weight": 0.3}},
    "slu": {"model": "espnet", "model_conf": {"ctc_weight": 0.3}},
    "st": {
        "model": None,
        "model_conf": {"asr_weight": 0.0, "report_bleu": False},
        "joint_net_conf": None,
        "st_joint_net_conf": {"joint_space_size": 8},
    },
    "asr_transducer": {
        "model": None,
        "model_conf": {"fastemit_lambda": 0.01},
        "joint_net_conf": None,
        "joint_network_conf": {"joint_space_size": 8},
        "decoder": "rnn",
        "decoder_conf": {"embed_size": 8, "hidden_size": 8},
        "encoder": None,
        "encoder_conf": TRANSDUCER_ENCODER,
    },
}


def command_of(corpus, task: str, name: str | None = None):
    """``<task>_train`` for its stock transducer, and the experiment's folder."""
    name = name or f"stock_{task}"
    command, folder = corpus.train(name, **{**STOCK, **TASKS[task]})
    command[0] = f"espnet2.bin.{task}_train"
    config_file = Path(command[command.index("--config") + 1])
    config = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    config = {name: value for name, value in config.items() if value is not None}
    config_file.write_text(yaml.safe_dump(config), encoding="utf-8")
    if task == "st":  # wants the source language's tokens even where it has no use
        command += ["--src_token_type", "char"]
        command += ["--src_token_list", str(corpus.folder / "tokens.txt")]
    return command, folder


def assert_trained(printed: str, folder) -> None:
    for part in ("train", "valid"):
        name = r"loss_(?:st_)?trans(?:ducer)?"
        losses = re.findall(rf"\[{part}\].*?\b{name}=([\d.e+-]+)", printed)
        assert losses, printed[-3000:]
        assert 0 < float(losses[-1]) < 1000
    parameters = load(folder / "1epoch.pth")
    assert all(x.isfinite().all() for x in parameters.values() if x.is_floating_point())


@pytest.mark.parametrize("task", TASKS)
def test_a_stock_transducer_trains(corpus, task):
    command, folder = command_of(corpus, task)
    assert_trained(run(command, **ON), folder)


def test_in_an_interpreter_of_its_own(corpus):
    """As a recipe starts it; `import torch` brings the drop-in."""
    command, folder = command_of(corpus, "asr", name="fresh")
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **ON},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_trained(done.stdout + done.stderr, folder)


def test_without_the_variable_there_is_none(corpus):
    command, _ = command_of(corpus, "asr", name="without")
    printed = run(command, expect_failure=True, **{WARPRNNT_SWITCH: "0"})
    assert "No module named 'warprnnt_pytorch'" in printed
