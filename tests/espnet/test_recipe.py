"""mini_an4 through ESPnet's own, unmodified asr.sh, stages 1 to 13.

The recipes are copied, so that nobody's data and experiments in the checkout are
touched; the ESPnet tree is shared with the checkout, which downloads it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support.recipe_runs import (
    NO_TREE,
    NO_TREE_REASON,
    call,
    copy_recipes,
    espnet_tree,
    state_of,
)

from espnet_sampled_rnnt.commands.report import main as report
from espnet_sampled_rnnt.commands.report.experiment import read_experiment

OPTIONS = (
    ("--stage", "1"),
    ("--stop_stage", "13"),
    ("--expdir", "exp"),
    ("--asr_tag", "test"),
    ("--asr_args", "--max_epoch 2 --num_iters_per_epoch 2"),
    ("--inference_args", "--beam_size 1"),
)

pytestmark = pytest.mark.skipif(NO_TREE, reason=NO_TREE_REASON)


@dataclass(frozen=True)
class Run:
    """What a run of the recipe left: its folder, its output, its experiment."""

    recipe: Path
    output: str
    experiment: Path


@pytest.fixture(scope="module")
def tree() -> Path:
    return espnet_tree()


@pytest.fixture(scope="module")
def run(tmp_path_factory, tree) -> Run:
    recipe = copy_recipes(tmp_path_factory.mktemp("checkout")) / "mini_an4/asr1"
    before = state_of(tree)
    options = [word for option in OPTIONS for word in option]
    output = call(["./run.sh", *options], recipe, 1200)
    assert state_of(tree) == before, "the ESPnet tree is only to be read"
    return Run(recipe, output, recipe / "exp/asr_test")


def test_the_runner_is_the_trees_own_asr_sh(run, tree):
    assert (run.recipe / "asr.sh").resolve().is_relative_to(tree.resolve())


def test_options_of_asr_sh_win_over_the_recipes(run):
    config = yaml.safe_load((run.experiment / "config.yaml").read_text())
    assert config["model"] == "sampled_transducer"
    assert config["max_epoch"] == 2


def test_each_epoch_is_shown_while_it_trains(run):
    stages = run.output.index("Stage 11:"), run.output.index("Stage 12:")
    shown = run.output[slice(*stages)]
    assert shown.index("epoch   1  train:") < shown.index("epoch   2  train:")


def test_training_samples_and_validation_does_not(run):
    experiment = read_experiment(run.experiment)
    sizes = {
        section: experiment.curves[f"{section}/sampled_vocabulary_size"][2]
        for section in ("train", "valid")
    }
    assert sizes["train"] < experiment.vocabulary_size == sizes["valid"]


def test_both_sets_are_decoded_and_scored(run):
    decoded = {d.name: d for d in read_experiment(run.experiment).decoded}
    assert {name: d.seen for name, d in decoded.items()} == {
        "test": False,
        "train_seen": True,
    }
    for one in decoded.values():
        assert set(one.error_rates) == {"cer", "wer", "ter"}


def test_report_reads_the_run(run, tmp_path, capsys):
    assert report(["--expdir", str(run.experiment), "--output", str(tmp_path)]) == 0
    assert "mean nothing at the size of test (2 utt" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 0
