"""ESPnet's own commands, unmodified, each in a process of its own."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.asr_models import warprnnt_stand_in
from support.espnet_commands import (
    OUR_DECODER,
    STOCK_DECODER,
    TRANSCRIPTS,
    assert_same_parameters,
    load,
    run,
    run_side_by_side,
)

SEARCHES = {
    "greedy": {},
    "default": {"search_type": "default"},
    "tsd": {"search_type": "tsd", "max_sym_exp": 2},
    "alsd": {"search_type": "alsd", "u_max": 10},
    "nsc": {"search_type": "nsc", "nstep": 2},
    "maes": {"search_type": "maes", "nstep": 2},
}


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
