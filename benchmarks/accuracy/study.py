"""What is compared: tasks, settings, seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# When sampling comes first and the full softmax after: the share of updates.
SAMPLED_SHARE = 0.6
# S of the main settings is V over this.
MAIN_DIVISOR = 16
# What a setting does not say. Written into every configuration, so that the study
# stays what it is when the model's defaults change.
PLAIN = {
    "num_samples": 0,
    "sampling_scope": "example",
    "sampling_distribution": "uniform",
    "sampling_uniform_mix": 0.1,
    "logit_correction": 0.0,
}


@dataclass(frozen=True)
class Task:
    """A corpus, a model, and how long it is trained.

    Attributes:
        name: on the command line and in rows.
        recipe: folder under ``egs2_recipes``.
        options: of the recipe's run.sh, before those of asr.sh.
        lang: what run.sh gives asr.sh as --lang; names tokens and statistics.
        token_type: what run.sh gives asr.sh.
        test_set: name of the set that is decoded.
        config: training configuration in the recipe, of the full softmax.
        changes: to that configuration.
        updates_per_epoch, epochs: the training's length; an "epoch" is the time
            between two validations.
        ngpu: GPUs of a run.
    """

    name: str
    recipe: str
    options: tuple[str, ...]
    lang: str
    token_type: str
    test_set: str
    config: str = "conf/train_asr_transducer_full.yaml"
    changes: tuple[tuple[str, Any], ...] = ()
    updates_per_epoch: int = 250
    epochs: int = 14
    ngpu: int = 0

    @property
    def updates(self) -> int:
        """Of a whole training."""
        return self.updates_per_epoch * self.epochs


TASKS = {
    task.name: task
    for task in (
        Task(
            name="mandarin",
            recipe="tts_mandarin/asr1",
            options=("--size", "study"),
            lang="zh_study",
            token_type="char",
            test_set="test_study",
        ),
        Task(
            name="mandarin-large",
            recipe="tts_mandarin/asr1",
            options=("--size", "large"),
            lang="zh_large",
            token_type="char",
            test_set="test_large",
            changes=(
                ("encoder_conf.output_size", 256),
                ("encoder_conf.linear_units", 1024),
                ("encoder_conf.num_blocks", 8),
                ("decoder_conf.hidden_size", 256),
                ("joint_net_conf.joint_space_size", 256),
                ("batch_size", 64),
                ("optim_conf.lr", 0.001),
                ("scheduler_conf.warmup_steps", 2000),
            ),
            updates_per_epoch=625,
            epochs=24,
            ngpu=1,
        ),
        Task(
            name="digits",
            recipe="spoken_digits/asr1",
            options=("--digits", "2"),
            lang="digits2",
            token_type="word",
            test_set="test_digits2",
        ),
        Task(
            name="digits3",
            recipe="spoken_digits/asr1",
            options=("--digits", "3"),
            lang="digits3",
            token_type="word",
            test_set="test_digits3",
        ),
    )
}


@dataclass(frozen=True)
class Setting:
    """A way to train.

    Attributes:
        name: on the command line and in rows.
        model_conf: from the task's V and number of updates to what is put into
            ``model_conf``.
        group: "main" or "side".
        changes: to the rest of the configuration, by dotted name.
        twin: the setting of the full softmax that it compares with.
    """

    name: str
    model_conf: Callable[[int, int], dict[str, Any]]
    group: str = "side"
    changes: tuple[tuple[str, Any], ...] = ()
    twin: str = "full"


def _sampled(
    distribution: str,
    correction: float | Callable[[int], Any] = 0.0,
    divisor: int = MAIN_DIVISOR,
    then_full: bool = False,
    **more: Any,
) -> Callable[[int, int], dict[str, Any]]:
    def model_conf(vocab_size: int, updates: int) -> dict[str, Any]:
        samples: Any = max(1, vocab_size // divisor)
        if then_full:
            turn = round(SAMPLED_SHARE * updates)
            samples = {"unit": "updates", "points": {0: samples, turn: 0}}
        strength = correction(updates) if callable(correction) else correction
        return {
            "sampling_distribution": distribution,
            "num_samples": samples,
            "logit_correction": strength,
            **more,
        }

    return model_conf


def _rising(updates: int) -> dict[str, Any]:
    points = {0: 0.0, updates: 1.0}
    return {"unit": "updates", "interpolate": "linear", "points": points}


def _full(vocab_size: int, updates: int) -> dict[str, Any]:
    return {"num_samples": 0}


# Two layers' CTC losses beside the last one's, as arXiv 2102.03216 has them.
_INTERCTC = (
    ("encoder_conf.interctc_layer_idx", [2]),
    ("model_conf.interctc_weight", 0.3),
)

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("full", _full, "main"),
        Setting("uniform", _sampled("uniform"), "main"),
        Setting("ctc", _sampled("ctc"), "main"),
        Setting("ctc-then-full", _sampled("ctc", then_full=True), "main"),
        Setting("uniform-then-full", _sampled("uniform", then_full=True)),
        Setting("unigram", _sampled("unigram")),
        Setting("ctc-a0.5", _sampled("ctc", 0.5)),
        Setting("ctc-a1", _sampled("ctc", 1.0)),
        Setting("ctc-a0to1", _sampled("ctc", _rising)),
        Setting("uniform-a1", _sampled("uniform", 1.0)),
        Setting("ctc-batch", _sampled("ctc", sampling_scope="batch")),
        Setting("ctc-mix0", _sampled("ctc", sampling_uniform_mix=0.0)),
        Setting("ctc-mix0.5", _sampled("ctc", sampling_uniform_mix=0.5)),
        *(
            Setting(f"ctc-v/{divisor}", _sampled("ctc", divisor=divisor))
            for divisor in (64, 32, 8, 4)
        ),
        Setting("full-interctc", _full, changes=_INTERCTC),
        Setting(
            "interctc", _sampled("interctc"), changes=_INTERCTC, twin="full-interctc"
        ),
    )
}


def main_settings() -> tuple[str, ...]:
    """Names of the main rows' settings."""
    return tuple(name for name, s in SETTINGS.items() if s.group == "main")


@dataclass(frozen=True)
class Run:
    """One training: a task, a setting, a seed, a length."""

    task: Task
    setting: Setting
    seed: int

    @property
    def name(self) -> str:
        """Names its folder and its lines on the screen."""
        setting = self.setting.name.replace("/", "")
        return f"{self.task.name}-{setting}-s{self.seed}-u{self.task.updates}"

    def config(self, base: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
        """The configuration for asr_train.

        Args:
            base: the task's, see ``Task.config``.
            vocab_size: V, blank included.
        """
        config = copy.deepcopy(dict(base))
        for key, value in (*self.task.changes, *self.setting.changes):
            place = config
            *parents, last = key.split(".")
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        # Says who can load the model, not how it is trained: rows stay valid when it
        # changes.
        config["model_conf"].pop("requires", None)
        sampling = self.setting.model_conf(vocab_size, self.task.updates)
        config["model_conf"].update({**PLAIN, **sampling})
        config["num_iters_per_epoch"] = self.task.updates_per_epoch
        config["max_epoch"] = self.task.epochs
        config["seed"] = self.seed
        return config


def plan(
    task: Task, settings: list[str], seeds: list[int], side_seeds: list[int]
) -> list[Run]:
    """The runs, seed by seed, so that a plan cut short has whole comparisons."""
    runs = []
    for seed in sorted({*seeds, *side_seeds}):
        for group, wanted in (("main", seeds), ("side", side_seeds)):
            for name in settings:
                setting = SETTINGS[name]
                if setting.group == group and seed in wanted:
                    runs.append(Run(task, setting, seed))
    return runs
