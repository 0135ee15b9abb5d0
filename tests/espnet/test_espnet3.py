"""ESPnet3's recipe for AN4, as the 202611 wheel has it, with our model's name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[2]
RECIPE = "mini_an4/esp2_asr"
NEEDED = ("lightning", "dask", "distributed", "dask_jobqueue", "tensorboard")
MISSING = [name for name in NEEDED if find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("espnet3") is None, reason="ESPnet 202511 has no ESPnet3"
    ),
    pytest.mark.skipif(
        bool(MISSING),
        reason="pip install lightning 'dask[distributed]' dask-jobqueue tensorboard",
    ),
]

# Put beside the recipe's own modules: what each process has in the end, and what each
# draws for the same labels where torch's generator stands alike.
RECORDER = """
import lightning
import torch


class Recorder(lightning.Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        torch.manual_seed(1)
        label, length = torch.tensor([[5]]), torch.tensor([1])
        drawn = pl_module.model.sampler.draw(label, length, []).token_ids
        torch.save(
            {"drawn": drawn, "state": pl_module.model.state_dict()},
            f"{self.folder}/rank{trainer.global_rank}.pth",
        )
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """A copy of the recipe; nothing of it is changed, one config is added."""
    (package,) = find_spec("egs3").submodule_search_locations
    folder = tmp_path_factory.mktemp("egs3") / "esp2_asr"
    shutil.copytree(Path(package) / RECIPE, folder)
    text = (folder / "conf" / "training_asr_transducer.yaml").read_text("utf-8")
    assert text.count("  model: espnet\n") == 1
    text = text.replace("  model: espnet\n", "  model: sampled_transducer\n")
    ours = "    num_samples: 8\n    sampling_distribution: uniform\n"
    text = text.replace("  model_conf:\n", f"  model_conf:\n{ours}")
    (folder / "conf" / "training_sampled.yaml").write_text(text, encoding="utf-8")
    run(
        folder,
        *("create_dataset", "train_tokenizer", "collect_stats"),
        training_config="training_sampled",
    )
    return folder


def run(folder: Path, *stages: str, **configs: str) -> str:
    """`run.py` of the recipe; what it printed."""
    command = [sys.executable, "run.py", "--stages", *stages]
    for role, name in configs.items():
        command += [f"--{role}", f"conf/{name}.yaml"]
    tools = ROOT / "egs2_recipes" / "tools"
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_stages_from_training_to_measuring(recipe):
    printed = run(
        recipe,
        *("train", "infer", "measure"),
        training_config="training_sampled",
        inference_config="inference",
        metrics_config="metrics",
    )
    assert "SampledTransducerModel" in printed
    experiment = recipe / "exp" / "training_sampled"
    config = yaml.safe_load((experiment / "config.yaml").read_text("utf-8"))
    assert config["model"] == "sampled_transducer"
    (path,) = experiment.glob("epoch*valid.loss.ckpt")
    checkpoint = torch.load(path, weights_only=False)
    assert "joint_network.lin_out.weight" in checkpoint["state_dict"]
    for part in ("valid", "test"):
        lines = (experiment / "inference" / part / "text.scp").read_text("utf-8")
        assert lines.strip(), part
    metrics = json.loads((experiment / "inference" / "metrics.json").read_text("utf-8"))
    assert {name.rpartition(".")[2] for name in metrics} == {"WER", "CER"}


def test_two_processes(recipe):
    """Lightning's DDP with gloo: one set of parameters, each rank its own draws."""
    (recipe / "src" / "recorder.py").write_text(RECORDER, encoding="utf-8")
    path = recipe / "conf" / "training_sampled.yaml"
    config = yaml.safe_load(path.read_text("utf-8"))
    config["num_device"] = 2
    config["seed"] = 5
    config["trainer"] |= {
        "accelerator": "cpu",
        "max_epochs": 2,
        "callbacks": [
            {"_target_": "src.recorder.Recorder", "folder": str(recipe)},
        ],
        "strategy": {
            "_target_": "lightning.pytorch.strategies.DDPStrategy",
            "process_group_backend": "gloo",
        },
    }
    two = recipe / "conf" / "training_two.yaml"
    two.write_text(yaml.safe_dump(config), encoding="utf-8")
    run(recipe, "train", training_config="training_two")
    first, second = (
        torch.load(recipe / f"rank{rank}.pth", weights_only=False) for rank in (0, 1)
    )
    for name, value in first["state"].items():
        torch.testing.assert_close(second["state"][name], value, rtol=0, atol=0)
    assert first["drawn"].shape == second["drawn"].shape == (1, 10)
    assert first["drawn"].tolist() != second["drawn"].tolist()
