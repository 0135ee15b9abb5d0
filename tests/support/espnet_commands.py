"""ESPnet's own commands on a corpus of tones, each in a process of its own.

A few tones with made-up transcripts are the corpus: enough to go through every step
of a recipe, too little to learn anything from.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml

from support.asr_models import TOKENS

SAMPLE_RATE = 16000
TRANSCRIPTS = ("ab", "b ca", "dad", "e", "cab bed")
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
        elif merged["normalize"] == "global_mvn":
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


# Most of a command's time would be imports. So each is forked from a server that has
# them done, torch's autoload of this package's registration included, and then
# starts as `python -m` starts it.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["espnet2.tasks.asr", "espnet2.bin.asr_inference"])


def _as_main(
    command: list[str], printed: str, environment: dict[str, str], folder: str
) -> None:
    with open(printed, "wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # as in a process of its own
    sys.argv[:] = command
    sys.path.insert(0, folder)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def run(
    command: list[str],
    expect_failure: bool = False,
    timeout: float = 300,
    **environment: str,
) -> str:
    """Run a module of ESPnet, and return what it printed.

    Args:
        command: the module and its arguments, as after ``python -m``.
        expect_failure: whether its exit status must not be 0, else must be.
        timeout: seconds after which it is killed, which fails.
        environment: variables beside this process's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        child = _SERVER.Process(
            target=_as_main,
            args=(
                [str(word) for word in command],
                str(printed),
                {**os.environ, "OMP_NUM_THREADS": "1", **environment},
                os.getcwd(),
            ),
        )
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            child.join()
        text = printed.read_text(encoding="utf-8", errors="replace")
    assert (child.exitcode != 0) == expect_failure, text[-4000:]
    return text


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


def make_corpus(folder: Path) -> Corpus:
    """Five tones, their transcripts, and the statistics that ESPnet collects."""
    corpus = Corpus(folder)
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
