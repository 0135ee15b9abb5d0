"""ESPnet's own commands, unmodified, each in a process of its own.

A few tones with made-up transcripts are the corpus: enough to go through every step
of a recipe, too little to learn anything from.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from support.asr_models import TOKENS, warprnnt_stand_in

SAMPLE_RATE = 16000
TRANSCRIPTS = ("ab", "b ca", "dad", "e", "cab bed")
SEARCHES = {
    "greedy": {},
    "default": {"search_type": "default"},
    "tsd": {"search_type": "tsd", "max_sym_exp": 2},
    "alsd": {"search_type": "alsd", "u_max": 10},
    "nsc": {"search_type": "nsc", "nstep": 2},
    "maes": {"search_type": "maes", "nstep": 2},
}
CONFIG = {
    "frontend_conf": {"n_fft": 256, "hop_length": 128, "n_mels": 16},
    "normalize": "global_mvn",
    "encoder": "transformer",
    "encoder_conf": {
        "output_size": 16,
        "attention_heads": 2,
        "linear_units": 16,
        "num_blocks": 1,
    },
    "model": "sampled_transducer",
    "model_conf": {"ctc_weight": 0.3, "num_samples": 2},
    "optim": "adam",
    "optim_conf": {"lr": 0.001},
    "batch_type": "folded",
    "batch_size": 3,
    "max_epoch": 2,
    "num_workers": 0,
    "keep_nbest_models": 2,
    "best_model_criterion": [["valid", "loss", "min"]],
    "use_tensorboard": False,
    "use_matplotlib": False,
    "seed": 7,
}
OUR_DECODER = {
    "decoder": "sampled_transducer",
    "decoder_conf": {
        "rnn_type": "stateless",
        "hidden_size": 8,
        "context_size": 2,
        "joint_net_conf": {"joint_space_size": 8},
    },
}
STOCK_DECODER = {
    "decoder": "transducer",
    "decoder_conf": {"hidden_size": 8},
    "joint_net_conf": {"joint_space_size": 8},
}


@dataclass(frozen=True)
class Corpus:
    """Where the recordings, the transcripts and the statistics are."""

    folder: Path

    @property
    def stats(self) -> Path:
        return self.folder / "stats"

    def train(
        self, name: str, *options: object, collect_stats: bool = False, **config: object
    ) -> tuple[list[str], Path]:
        """The command ``asr_train`` for ``CONFIG`` with changes, and its folder."""
        output = self.folder / name
        config_file = self.folder / f"{name}.yaml"
        merged = {**CONFIG, **config}
        if collect_stats:
            del merged["normalize"]
        else:
            stats_file = self.stats / "train" / "feats_stats.npz"
            merged["normalize_conf"] = {"stats_file": str(stats_file)}
        config_file.write_text(yaml.safe_dump(merged), encoding="utf-8")
        command = ["espnet2.bin.asr_train", "--config", config_file]
        command += ["--output_dir", output, "--ngpu", 0]
        command += ["--token_type", "char", "--token_list", self.folder / "tokens.txt"]
        for part in ("train", "valid"):
            prefix = f"--{part}_data_path_and_name_and_type"
            command += [prefix, f"{self.folder / 'wav.scp'},speech,sound"]
            command += [prefix, f"{self.folder / 'text'},text,text"]
            if not collect_stats:
                for kind in ("speech_shape", "text_shape"):
                    shapes = self.stats / part / kind
                    command += [f"--{part}_shape_file", shapes]
        if collect_stats:
            command += ["--collect_stats", "true"]
        else:
            command += ["--fold_length", 80000, "--fold_length", 150]
        return [str(word) for word in (*command, *options)], output

    def decode(
        self, experiment: Path, model: str, name: str, beam_size: int, search: dict
    ) -> tuple[list[str], Path]:
        """The command ``asr_inference`` and the file that it writes."""
        output = self.folder / name
        config_file = self.folder / f"{name}.yaml"
        config = {"beam_size": beam_size, "transducer_conf": search}
        config_file.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = ["espnet2.bin.asr_inference", "--output_dir", output, "--ngpu", 0]
        command += ["--asr_train_config", experiment / "config.yaml"]
        command += ["--asr_model_file", experiment / model]
        command += ["--data_path_and_name_and_type"]
        command += [f"{self.folder / 'wav.scp'},speech,sound"]
        command += ["--config", config_file]
        return [str(word) for word in command], output / "1best_recog" / "text"


def run(command: list[str], expect_failure: bool = False) -> str:
    """Run a module of ESPnet, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    printed = done.stdout + done.stderr
    assert (done.returncode != 0) == expect_failure, printed[-4000:]
    return printed


def run_side_by_side(*commands: list[str]) -> list[str]:
    """Run several commands, two at a time: most of their time is imports."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, commands))


def load(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, map_location="cpu")


def assert_same_parameters(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name].to(value.dtype)), name


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Five tones, their transcripts, and the statistics that ESPnet collects."""
    corpus = Corpus(tmp_path_factory.mktemp("corpus"))
    noise = np.random.default_rng(0)
    wav_scp, text = [], []
    for index, transcript in enumerate(TRANSCRIPTS):
        seconds = np.arange(int((0.4 + 0.05 * index) * SAMPLE_RATE)) / SAMPLE_RATE
        tone = 0.3 * np.sin(2 * np.pi * (200 + 150 * index) * seconds)
        tone += 0.01 * noise.standard_normal(len(tone))
        path = corpus.folder / f"utt{index}.wav"
        soundfile.write(path, tone, SAMPLE_RATE)
        wav_scp.append(f"utt{index} {path}\n")
        text.append(f"utt{index} {transcript}\n")
    (corpus.folder / "wav.scp").write_text("".join(wav_scp), encoding="utf-8")
    (corpus.folder / "text").write_text("".join(text), encoding="utf-8")
    (corpus.folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n", "utf-8")
    run(corpus.train("stats", collect_stats=True, **OUR_DECODER)[0])
    return corpus


@dataclass(frozen=True)
class Trained:
    """An experiment folder, and what ESPnet printed while it trained."""

    folder: Path
    printed: str


@pytest.fixture(scope="module")
def trained(corpus) -> Trained:
    """Two epochs in one go; beside it, in folder "half", the first of them alone."""
    whole, folder = corpus.train("whole", **OUR_DECODER)
    half, _ = corpus.train("half", **{**OUR_DECODER, "max_epoch": 1})
    printed, _ = run_side_by_side(whole, half)
    return Trained(folder, printed)


def test_collect_stats_writes_what_training_reads(corpus):
    for part in ("train", "valid"):
        for kind in ("speech_shape", "text_shape"):
            lines = (corpus.stats / part / kind).read_text().splitlines()
            assert len(lines) == len(TRANSCRIPTS)
    assert (corpus.stats / "train" / "feats_stats.npz").exists()


def test_training_reports_numbers(trained):
    lines = trained.printed.splitlines()
    results = [line for line in lines if "epoch results" in line]
    assert len(results) == 2
    _, train, valid = re.split(r"\[(?:train|valid)\]", results[1])
    for name in ("loss_transducer", "loss_ctc", "loss_peak_bytes"):
        assert re.search(rf"\b{name}=\d", train), name
        assert re.search(rf"\b{name}=\d", valid), name
    for name in ("cer_transducer", "wer_transducer", "cer_ctc"):
        assert re.search(rf"\b{name}=\d", valid), name


def test_stop_and_resume_is_going_through(corpus, trained):
    resume, folder = corpus.train("half", "--resume", "true", **OUR_DECODER)
    assert not (folder / "2epoch.pth").exists()
    run(resume)
    assert_same_parameters(
        load(folder / "2epoch.pth"), load(trained.folder / "2epoch.pth")
    )


def test_average_of_n_best(trained):
    folder = trained.folder
    average = load(folder / "valid.loss.ave_2best.pth")
    epochs = [load(folder / f"{epoch}epoch.pth") for epoch in (1, 2)]
    for name, value in average.items():
        if value.is_floating_point():
            mean = (epochs[0][name] + epochs[1][name]) / 2
            torch.testing.assert_close(value, mean, msg=name)


def test_inference_with_every_beam_search(corpus, trained):
    outputs, commands = {}, []
    for name, search in SEARCHES.items():
        command, outputs[name] = corpus.decode(
            trained.folder,
            "valid.loss.ave_2best.pth",
            f"decode_{name}",
            beam_size=1 if name == "greedy" else 3,
            search=search,
        )
        commands.append(command)
    run_side_by_side(*commands)
    for name, path in outputs.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(TRANSCRIPTS), name


def test_checkpoints_of_espnets_own_transducer(corpus, monkeypatch):
    """One of its checkpoints loads through --init_param, and ours loads into it."""
    monkeypatch.setitem(sys.modules, "warprnnt_pytorch", warprnnt_stand_in())
    from espnet2.tasks.asr import ASRTask

    stock_config = {**STOCK_DECODER, "model": "espnet", "model_conf": {}}
    command, _ = corpus.train("stock", **stock_config)
    torch.manual_seed(11)
    stock = ASRTask.build_model(ASRTask.get_parser().parse_args(command[1:]))
    checkpoint = corpus.folder / "stock.pth"
    torch.save(stock.state_dict(), checkpoint)

    # With a learning rate of 0 the parameters stay what was loaded.
    frozen = {**STOCK_DECODER, "optim_conf": {"lr": 0.0}, "max_epoch": 1}
    command, folder = corpus.train("init", "--init_param", checkpoint, **frozen)
    run(command)
    ours = load(folder / "1epoch.pth")
    assert_same_parameters(ours, stock.state_dict())
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.zero_()
    stock.load_state_dict(ours, strict=True)


def test_misspelt_option_is_named(corpus):
    misspelt = {**OUR_DECODER, "model_conf": {"num_sample": 2}}
    command, _ = corpus.train("misspelt", **misspelt)
    printed = run(command, expect_failure=True)
    assert "model_conf.num_sample is not an option" in printed
    assert "Did you mean num_samples?" in printed
