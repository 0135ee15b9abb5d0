"""The accuracy study: plans, configurations, measures, rows, tables, plots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.accuracy.__main__ import DOCUMENT, RESULTS, main
from benchmarks.accuracy.measure import (
    error_rates,
    make_curve,
    measure,
    read_transcripts,
    updates_until,
)
from benchmarks.accuracy.plots import draw
from benchmarks.accuracy.rows import Row, add_row, read_rows
from benchmarks.accuracy.study import SETTINGS, TASKS, Run, plan
from benchmarks.accuracy.tables import (
    fill,
    findings,
    length_table,
    longer,
    of_task,
    schedule,
    setting_table,
    spread,
)
from espnet_sampled_rnnt.schedules import Schedule

RECIPES = Path(__file__).parents[1] / "egs2_recipes"


def make_row(setting: str = "full", seed: int = 1, **changes: object) -> Row:
    """A row with made-up figures; the validation CER falls 100, 60, 40, 20."""
    values = {
        "task": "mandarin",
        "setting": setting,
        "seed": seed,
        "updates": 300,
        "distribution": None if setting == "full" else "ctc",
        "scope": "example",
        "correction": 0.0,
        "num_samples": 0 if setting == "full" else 25,
        "uniform_mix": None if setting == "full" else 0.1,
        "vocab_size": 403,
        "cer": 20.0,
        "ser": 50.0,
        "valid_loss_full": 2.0,
        "valid_cer": 20.0,
        "curve": [
            {"update": 100 * i, "seconds": 10.0 * i, "cer": cer, "loss": 4.0 - i}
            for i, cer in enumerate((60.0, 40.0, 20.0), start=1)
        ],
        "updates_to_half": 150.0,
        "seconds_per_update": 0.1,
        "cpu_seconds_per_update": 0.1,
        "coverage": None if setting == "full" else 0.9,
        "loss_peak_bytes": 5e6,
        "sampled_vocabulary_size": 403.0,
        "command": "python -m benchmarks.accuracy run",
        "config": {},
        "fingerprint": "0",
        "jobs": 1,
        "load_average": 1.0,
        "cpu_name": "a processor",
        "versions": {"torch": "2.0"},
        "commit": "0123456789abcdef",
        "dirty": False,
        "date": "2026-01-01T00:00:00+00:00",
    }
    return Row(**{**values, **changes})


def test_main_settings_have_three_seeds_and_side_settings_one() -> None:
    """Seed by seed, the main settings first."""
    runs = plan(TASKS["mandarin"], ["full", "ctc", "unigram"], [1, 2], [1])
    assert [(run.setting.name, run.seed) for run in runs] == [
        ("full", 1),
        ("ctc", 1),
        ("unigram", 1),
        ("full", 2),
        ("ctc", 2),
    ]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_is_a_configuration_that_the_model_takes(task, setting) -> None:
    """Options known and in range; only what was asked differs from the base."""
    from espnet_sampled_rnnt.options import SampledSoftmaxOptions

    base = yaml.safe_load((RECIPES / task.recipe / task.config).read_text("utf-8"))
    before = json.dumps(base)
    config = Run(task, setting, seed=3).config(base, vocab_size=403)
    assert json.dumps(base) == before, "the base is shared between runs"
    model_conf = config["model_conf"]
    SampledSoftmaxOptions(
        num_samples=model_conf["num_samples"],
        sampling_scope=model_conf["sampling_scope"],
        sampling_distribution=model_conf["sampling_distribution"],
        sampling_uniform_mix=model_conf["sampling_uniform_mix"],
        sampling_counts=None,
        logit_correction=model_conf["logit_correction"],
        loss_backend="auto",
        loss_chunk_bytes=None,
        fastemit_lambda=0.0,
    )
    assert "requires" not in model_conf
    assert config["seed"] == 3
    assert config["max_epoch"] * config["num_iters_per_epoch"] == task.updates


def test_schedules_turn_where_they_should() -> None:
    """60 % of the updates sampled, then full; a correction that ends at 1."""
    turning = SETTINGS["ctc-then-full"].model_conf(400, 1000)["num_samples"]
    samples = Schedule.parse("num_samples", turning)
    assert [samples.at(update) for update in (0, 599, 600, 999)] == [25, 25, 0, 0]
    rising = SETTINGS["ctc-a0to1"].model_conf(400, 1000)["logit_correction"]
    strength = Schedule.parse("logit_correction", rising)
    assert [strength.at(update) for update in (0, 500, 1000)] == [0.0, 0.5, 1.0]


def test_samples_follow_the_vocabulary() -> None:
    """V / 16 in main settings, another share where the name says so."""
    for name, samples in {"uniform": 25, "ctc-v/64": 6, "ctc-v/4": 100}.items():
        assert SETTINGS[name].model_conf(403, 1000)["num_samples"] == samples


def test_error_rates_by_hand() -> None:
    """Two errors in five characters, one of two utterances wrong."""
    assert error_rates(
        {"a": "天地人", "b": "大小"}, {"a": "天人人口", "b": "大小"}
    ) == (
        40.0,
        50.0,
    )
    with pytest.raises(ValueError, match="1 utterances not decoded, b first"):
        error_rates({"a": "天", "b": "地"}, {"a": "天"})
    with pytest.raises(ValueError, match="empty"):
        error_rates({"a": ""}, {"a": "天"})


def test_transcripts_have_no_spaces_and_may_be_empty(tmp_path: Path) -> None:
    """An utterance to which a model says nothing still counts."""
    (tmp_path / "text").write_text("a 12 34\nb\n", encoding="utf-8")
    assert read_transcripts(tmp_path / "text") == {"a": "1234", "b": ""}


def test_updates_until_a_level_by_hand() -> None:
    """100 at 0, 60 at 100, 40 at 200, 20 at 300: straight lines."""
    curve = make_row().curve
    assert updates_until(curve, 50.0) == 150.0
    assert updates_until(curve, 80.0) == 50.0
    assert updates_until(curve, 50.0, axis="seconds") == 15.0
    assert updates_until(curve, 10.0) is None


def test_a_curve_leaves_out_what_was_not_measured() -> None:
    """NaN, which ESPnet writes, is no JSON."""
    curves = {
        "valid/loss_transducer": {1: 3.0, 2: 2.0},
        "valid/cer_transducer": {1: 0.9, 2: float("nan")},
        "train/train_time": {1: 0.1, 2: 0.3},
        "train/sampling_coverage": {1: 0.5},
    }
    curve = make_curve(curves, updates_per_epoch=10)
    assert [entry["update"] for entry in curve] == [10, 20]
    assert [entry["seconds"] for entry in curve] == [1.0, 4.0]
    assert [entry["cer"] for entry in curve] == [90.0, None]
    assert [entry["coverage"] for entry in curve] == [0.5, None]
    json.dumps(curve, allow_nan=False)


def test_measuring_an_experiment_folder(tmp_path: Path) -> None:
    """A folder as ESPnet leaves it, of two epochs."""
    config = {
        "token_list": ["<blank>", "<unk>", "天", "<sos/eos>"],
        "model_conf": {
            "num_samples": 2,
            "sampling_distribution": "ctc",
            "sampling_scope": "example",
            "sampling_uniform_mix": 0.1,
            "logit_correction": 0.0,
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    line = (
        "{0}epoch results: [train] loss_transducer=5.0, sampling_coverage=0.{0}, "
        "sampled_vocabulary_size=3.000, loss_peak_bytes=1.5e+06, train_time=0.2, "
        "time=9 seconds, [valid] loss_transducer=1.{0}, cer_transducer=0.2, "
        "cer_ctc=0.1, time=1 second\n"
    )
    (tmp_path / "train.log").write_text("".join(line.format(i) for i in (1, 2)))
    decoded = tmp_path / "decode/test"
    decoded.mkdir(parents=True)
    (decoded / "text").write_text("a 天\n", encoding="utf-8")
    reference = tmp_path / "reference"
    reference.write_text("a 天天\n", encoding="utf-8")
    found = measure(tmp_path, reference, "test", updates_per_epoch=10)
    assert (found["cer"], found["ser"], found["vocab_size"]) == (50.0, 100.0, 4)
    assert (found["valid_loss_full"], found["valid_cer"]) == (1.2, 20.0)
    assert (found["coverage"], found["loss_peak_bytes"]) == (0.2, 1.5e6)
    with pytest.raises(FileNotFoundError, match="no decoding of other"):
        measure(tmp_path, reference, "other", updates_per_epoch=10)


def test_a_row_replaces_the_one_of_the_same_run(tmp_path: Path) -> None:
    """By task, setting, seed and updates."""
    path = tmp_path / "rows.json"
    for row in (make_row(cer=9.0), make_row(seed=2), make_row(cer=8.0)):
        add_row(path, row)
    assert [(row.seed, row.cer) for row in read_rows(path)] == [(1, 8.0), (2, 20.0)]
    path.write_text('[{"task": "mandarin"}]')
    with pytest.raises(ValueError, match="no rows of this study"):
        read_rows(path)


def test_the_tables_hold_the_usual_length_and_longer_ones_stand_apart() -> None:
    """Shorter ones are trials; a longer one is shown beside its own seed."""
    usual = [make_row(), make_row(seed=2)]
    long = make_row(updates=600, cer=19.0)
    rows = [*usual, make_row(updates=100), long, make_row(task="digits")]
    assert of_task(rows, "mandarin") == usual
    assert longer(rows, "mandarin") == [long]
    lines = length_table(usual, [long]).splitlines()
    cells = [[c.strip() for c in line.split("|")[1:5]] for line in lines[2:]]
    assert cells == [["full", "1", "300", "20.00"], ["full", "1", "600", "19.00"]]
    assert length_table(usual, []) == ""


def test_the_table_has_means_spreads_and_the_twins_level() -> None:
    """The full softmax ends at 20 %: ctc gets there after 250 of its updates."""
    fast = [
        {**e, "cer": c} for e, c in zip(make_row().curve, (50, 30, 10), strict=True)
    ]
    rows = [
        make_row(cer=20.0),
        make_row(seed=2, cer=24.0),
        make_row("ctc", cer=10.5, curve=fast),
    ]
    lines = setting_table(rows, ["full", "ctc", "unigram"]).splitlines()
    assert len(lines) == 4, "a setting without rows has no line"
    full, ctc = ([c.strip() for c in line.split("|")[1:-1]] for line in lines[2:])
    assert full[:5] == ["full", "V", "", "2", "22.00 (20.00 – 24.00)"]
    assert full[7] == "300 (300 – 300)"
    assert ctc[:5] == ["ctc", "25", "0", "1", "10.50"]
    assert ctc[7] == "250"
    assert ctc[-1] == "0.90"


def test_findings_say_where_a_setting_stands() -> None:
    """Below, inside the seeds' spread, outside it."""
    full = [make_row(cer=20.0), make_row(seed=2, cer=24.0)]
    for cer, words in (
        (21.0, "below the full softmax's"),
        (23.0, "inside its spread"),
        (25.0, "outside its spread"),
    ):
        assert words in findings([*full, make_row("ctc", cer=cer)])
    slow = replace(make_row("ctc"), curve=make_row().curve[:1])
    assert "1 of 1 seeds never reached" in findings([*full, slow])


def test_numbers_and_schedules_in_words() -> None:
    """As they stand in the tables."""
    assert schedule(0.5) == "0.5"
    assert schedule({"points": {"0": 25, "600": 0}}) == "25, then 0"
    rising = {"interpolate": "linear", "points": {"0": 0.0, "9": 1.0}}
    assert schedule(rising) == "0 → 1"
    assert spread([None]) == "–"
    assert spread([1.0, 3.0]) == "2.00 (1.00 – 3.00)"


def test_a_document_is_filled_and_filling_again_changes_nothing(tmp_path: Path) -> None:
    """Also through the command, which refuses names that it does not know."""
    document, results = tmp_path / "accuracy.md", tmp_path / "rows.json"
    block = "<!-- accuracy:begin {0} -->\nold\n<!-- accuracy:end {0} -->\n"
    names = (
        "machine",
        "short",
        "main mandarin",
        "side mandarin",
        "found mandarin",
        "main digits",
    )
    document.write_text("".join(block.format(name) for name in names))
    for row in (make_row(), make_row("ctc"), make_row("ctc-a1")):
        add_row(results, row)
    options = ["report", "--results", str(results), "--document", str(document)]
    assert main([*options, "--check"]) == 1
    assert main(options) == 0
    assert main([*options, "--check"]) == 0
    text = document.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| ctc-a1 | 25 | 0 |" in text
    assert "0123456" in text
    assert "| setting | mandarin, 1 seed: test CER (%) | full-softmax loss |" in text
    assert "Not measured yet." in text, "the digits have no rows"
    assert (tmp_path / "images/accuracy-mandarin-main.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="block 'main bird' is not known"):
        fill(block.format("main bird"), [make_row()])


def test_plots_do_not_depend_on_the_date(tmp_path: Path) -> None:
    """The same rows, the same bytes."""
    rows = [make_row(), make_row(seed=2), make_row("ctc")]
    first, again = draw(rows, tmp_path / "a"), draw(rows, tmp_path / "b")
    kinds = ["accuracy-mandarin-main.png", "accuracy-mandarin-trade.png"]
    assert sorted(path.name for path in first) == kinds
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]


def test_the_page_says_what_the_committed_rows_say() -> None:
    """docs/accuracy.md was written from docs/results/accuracy.json."""
    if not RESULTS.exists():
        assert "| full |" not in DOCUMENT.read_text(encoding="utf-8")
        return
    assert main(["report", "--check"]) == 0


def test_a_setting_that_is_not_there_is_named(capsys: pytest.CaptureFixture) -> None:
    """With those that are."""
    with pytest.raises(SystemExit):
        main(["plan", "--task", "mandarin", "--only", "cct"])
    assert (
        "--only cct: main, side, all, or one of full, uniform"
        in capsys.readouterr().err
    )
