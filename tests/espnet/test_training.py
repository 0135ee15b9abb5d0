"""What ESPnet's trainer offers, with this model: its own commands, on tones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.checkpoints import load_checkpoint
from support.espnet_commands import (
    OUR_DECODER,
    STOCK_DECODER,
    load,
    run,
)
from support.sabotage import sabotaged

ONCE = {**OUR_DECODER, "max_epoch": 1}
UNCHANGED = {**ONCE, "optim_conf": {"lr": 0.0}}


def results(printed: str, part: str = "train") -> list[dict[str, float]]:
    """The statistics of each epoch that a command printed."""
    lines = [line for line in printed.splitlines() if "epoch results" in line]
    sections = [re.search(rf"\[{part}\](.*?)(\[valid\]|$)", line)[1] for line in lines]
    return [
        {name: float(value) for name, value in re.findall(r"(\w+)=([^, ]+)", section)}
        for section in sections
    ]


def changed(before: dict, after: dict) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture(scope="module")
def plain(corpus) -> str:
    """What two epochs print with nothing special."""
    return run(corpus.train("plain", **OUR_DECODER)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision(corpus, plain, dtype):
    command, folder = corpus.train(dtype, "--use_amp", "true", **OUR_DECODER)
    printed = run(sabotaged("cpu_amp", dtype, command))
    for epoch, expected in zip(results(printed), results(plain), strict=True):
        for name in ("loss", "loss_transducer", "loss_ctc"):
            assert epoch[name] == pytest.approx(expected[name], rel=0.02), name
        assert epoch["loss_scale"] == 1024.0
    checkpoint = load_checkpoint(folder)
    assert checkpoint["scaler"]["scale"] == 1024.0
    assert checkpoint["scaler"]["_growth_tracker"] == 4  # updates, none of them skipped
    for name, value in load(folder / "2epoch.pth").items():
        assert value.isfinite().all(), name
        # ESPnet 202511 casts what global_mvn keeps to what comes in.
        if not name.startswith("normalize"):
            assert value.dtype == torch.float32, name


def test_accumulation_clipping_anomaly_detection_and_a_schedule(corpus):
    """Two batches an epoch are one update, and the schedule counts updates."""
    schedule = {"points": {0: 2, 2: 0}, "unit": "updates"}
    config = {
        **STOCK_DECODER,
        "model_conf": {"ctc_weight": 0.3, "num_samples": schedule},
        "accum_grad": 2,
        "grad_clip": 0.5,
        "detect_anomaly": True,
        "max_epoch": 3,
    }
    command, folder = corpus.train("accumulated", **config)
    printed = run(command)
    assert "set_detect_anomaly(True)" in printed
    assert int(load(folder / "3epoch.pth")["sampler.updates"]) == 3
    sizes = [epoch["sampled_vocabulary_size"] for epoch in results(printed)]
    assert sizes[0] == sizes[1] < 9.0 == sizes[2]
    assert all(epoch["clip"] == 100.0 for epoch in results(printed))


def test_frozen_parameters(corpus):
    frozen = ("encoder", "joint_network.lin_out")
    command, folder = corpus.train(
        "frozen",
        "--freeze_param",
        *frozen,
        **{
            **OUR_DECODER,
            "model_conf": {
                "ctc_weight": 0.3,
                "num_samples": {"points": {0: 2, 3: 1}, "unit": "updates"},
            },
        },
    )
    printed = run(command)
    assert "joint_network.lin_out.weight.requires_grad = False" in printed
    first, second = load(folder / "1epoch.pth"), load(folder / "2epoch.pth")
    assert int(second["sampler.updates"]) == 4
    moved, constant = changed(first, second), ("frontend", "normalize")
    for name in second:
        assert (name in moved) != name.startswith((*frozen, *constant)), name


def test_parameters_of_a_ctc_model(corpus):
    ctc = {"model": "espnet", "model_conf": {"ctc_weight": 1.0}, "decoder": None}
    command, folder = corpus.train("ctc", **{**ONCE, **ctc, "decoder_conf": {}})
    run(command)
    source = load(folder / "1epoch.pth")
    path = folder / "1epoch.pth"
    parts = [f"{path}:encoder:encoder", f"{path}:ctc:ctc"]
    command, folder = corpus.train("from_parts", "--init_param", *parts, **UNCHANGED)
    run(command)
    assert not changed(source, load(folder / "1epoch.pth"))
    whole = ["--init_param", path, "--ignore_init_mismatch", "true"]
    command, folder = corpus.train("from_whole", *whole, **UNCHANGED)
    run(command)
    assert not changed(source, load(folder / "1epoch.pth"))


def test_an_adapter(corpus):
    pytest.importorskip("loralib")
    command, folder = corpus.train("adapted", **ONCE)
    run(command)
    adapter = {
        "use_adapter": True,
        "adapter": "lora",
        "save_strategy": "adapter_only",
        "adapter_conf": {
            "rank": 2,
            "alpha": 4,
            "target_modules": ["linear_q", "lin_out", "ctc_lo"],
        },
    }
    start = ["--init_param", folder / "1epoch.pth", "--ignore_init_mismatch", "true"]
    command, folder = corpus.train("adapter", *start, **{**OUR_DECODER, **adapter})
    run(command)
    first, second = load(folder / "1epoch.pth"), load(folder / "2epoch.pth")
    assert all("lora_" in name for name in second)
    assert changed(first, second) == set(second)
    assert {name.rsplit(".", 2)[-2] for name in second} == {
        "linear_q",
        "lin_out",
        "ctc_lo",
    }


def test_optimizer_scheduler_and_weight_decay_of_some(corpus):
    config = {
        "optim": "adamw",
        "optim_conf": {"lr": 0.002, "weight_decay": 0.1},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": 10},
        "exclude_weight_decay": True,
    }
    command, folder = corpus.train("scheduled", **{**ONCE, **config})
    run(command)
    checkpoint = load_checkpoint(folder)
    groups = checkpoint["optimizers"][0]["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
    assert checkpoint["schedulers"][0]["last_epoch"] == 2


def test_two_optimizers(corpus):
    config = {
        "optim": "sgd",
        "optim_conf": {"lr": 0.0},
        "optim2": "adam",
        "optim2_conf": {"lr": 0.01},
    }
    command, folder = corpus.train("two_optimizers", **{**OUR_DECODER, **config})
    run(["support.two_optimizers", *command[1:]])
    assert len(load_checkpoint(folder)["optimizers"]) == 2
    moved = changed(load(folder / "1epoch.pth"), load(folder / "2epoch.pth"))
    assert not any(name.startswith("encoder") for name in moved)
    assert any(name.startswith("decoder") for name in moved)
    assert any(name.startswith("joint_network") for name in moved)


def test_tensorboard(corpus):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command, folder = corpus.train("board", **{**ONCE, "use_tensorboard": True})
    [expected] = results(run(command))
    events = EventAccumulator(str(folder / "tensorboard" / "train"))
    events.Reload()
    for name in ("loss_transducer", "sampled_vocabulary_size", "sampling_coverage"):
        [tag] = [tag for tag in events.Tags()["scalars"] if tag.split("/")[-1] == name]
        assert events.Scalars(tag)[-1].value == pytest.approx(expected[name], rel=1e-3)


def test_wandb_offline(corpus):
    pytest.importorskip("wandb")
    command, folder = corpus.train("wandb", **{**ONCE, "use_wandb": True})
    run(command, WANDB_MODE="offline", WANDB_SILENT="true")
    [log] = folder.glob("wandb/offline-run-*/*.wandb")
    written = log.read_bytes()
    for name in (b"loss_transducer", b"sampled_vocabulary_size", b"sampling_coverage"):
        assert name in written


def test_early_stopping(corpus):
    """Validation samples nothing, so without learning its loss stays what it is."""
    config = {"optim_conf": {"lr": 0.0}, "patience": 1, "max_epoch": 9}
    command, folder = corpus.train("patient", **{**OUR_DECODER, **config})
    printed = run(command)
    losses = [epoch["loss"] for epoch in results(printed, "valid")]
    assert len(losses) == 3
    assert len(set(losses)) == 1
    assert not Path(folder / "4epoch.pth").exists()
