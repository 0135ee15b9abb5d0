"""The report: what it reads from an ESPnet experiment, and what it says of it."""

from __future__ import annotations

import builtins
import sys

import pytest
import yaml

from espnet_sampled_rnnt.commands import report
from espnet_sampled_rnnt.commands.report.experiment import read_experiment
from espnet_sampled_rnnt.commands.report.memory import MemoryRow, measure

LOG_LINE = (
    "[host] 2026-01-02 03:04:{second:02d},500 (trainer:1) INFO: {epoch}epoch results: "
    "[train] iter_time=0.1, loss_transducer={train}, loss_ctc=2.5, "
    "sampled_vocabulary_size=6.000, loss_peak_bytes=1.049e+06, time=1 minute and 2.5 "
    "seconds, total_count=3, [valid] loss_transducer={valid}, cer_transducer=nan, "
    "time=0.1 seconds, total_count=1\n"
)
STARTED = (
    "[host] 2026-01-02 03:04:{second:02d},000 (trainer:2) INFO: {epoch}/2epoch started"
    "\n"
)
SUM_LINE = "|   Sum/Avg   |    2    8 |  75.0   25.0   0.0   12.5   {rate}  50.0 |\n"
CONFIG = {
    "token_list": ["<blank>", *"abcdefg"],
    "model_conf": {"num_samples": 3},
    "encoder_conf": {"input_layer": "conv2d"},
    "frontend_conf": {"hop_length": 160},
    "joint_net_conf": {"joint_space_size": 4},
    "train_shape_file": ["exp/stats/speech_shape", "exp/stats/text_shape.bpe"],
}


@pytest.fixture
def expdir(tmp_path):
    """Two epochs, one set of two utterances seen in training and one that was not."""
    folder = tmp_path / "exp/asr_x"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "train.log").write_text(
        "".join(
            STARTED.format(second=2 * epoch, epoch=epoch)
            + LOG_LINE.format(second=2 * epoch + 1, epoch=epoch, train=train, valid=9.0)
            for epoch, train in ((1, 8.0), (2, "2.5e-01"))
        )
    )
    stats = tmp_path / "exp/stats"
    stats.mkdir()
    (stats / "speech_shape").write_text("s1-u1 6400\ns1-u2 12800\n")
    (stats / "text_shape.bpe").write_text("s1-u1 2,8\ns1-u2 3,8\n")
    for name, utterances, rate in (
        ("seen", ("s1-u1", "s1-u2"), "0.0"),
        ("test", ("s2-u9",), "37.5"),
    ):
        for kind in ("cer", "wer"):
            scores = folder / f"decode_x/{name}/score_{kind}"
            scores.mkdir(parents=True)
            (scores / "result.txt").write_text(SUM_LINE.format(rate=rate))
            for file in ("ref", "hyp"):
                lines = [f"A <{file}> B\t(s-{u})" for u in utterances]
                (scores / f"{file}.trn").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def fixed_memory(monkeypatch):
    rows = [MemoryRow(loss, 8, 0, 2**20) for loss in ("torchaudio", "full", "sampled")]
    monkeypatch.setattr(report, "measure", lambda *_: rows)


def test_curves_by_section_and_epoch(expdir):
    curves = read_experiment(expdir).curves
    assert curves["train/loss_transducer"] == {1: 8.0, 2: 0.25}
    assert curves["valid/loss_transducer"] == {1: 9.0, 2: 9.0}
    assert curves["train/sampled_vocabulary_size"] == {1: 6.0, 2: 6.0}


def test_an_epoch_done_again_after_resuming_counts_once(expdir):
    (expdir / "train.log").rename(expdir / "train.1.log")
    (expdir / "train.log").write_text(
        STARTED.format(second=10, epoch=2)
        + LOG_LINE.format(second=15, epoch=2, train=0.125, valid=9.0)
    )
    experiment = read_experiment(expdir)
    assert experiment.curves["train/loss_transducer"] == {1: 8.0, 2: 0.125}
    assert experiment.training_seconds == pytest.approx(1.5 + 5.5)


def test_sets_seen_in_training_are_told_from_the_others(expdir):
    decoded = {d.name: d for d in read_experiment(expdir).decoded}
    assert {name: d.seen for name, d in decoded.items()} == {
        "seen": True,
        "test": False,
    }
    assert decoded["test"].error_rates == {"cer": 37.5, "wer": 37.5}
    assert decoded["test"].pairs[0].hypothesis == "A <hyp> B"


def test_whether_a_set_was_seen_is_unknown_without_the_shapes(expdir):
    (expdir.parent / "stats/speech_shape").unlink()
    assert {d.seen for d in read_experiment(expdir).decoded} == {None}


def test_workload_is_in_encoder_frames(expdir):
    # 6400 and 12800 samples, 160 a frame, 4 frames an encoder frame
    assert read_experiment(expdir).workload == ((10, 2), (20, 3))


def test_report_says_that_small_sets_mean_nothing(
    expdir, tmp_path, capsys, fixed_memory
):
    output = tmp_path / "out"
    assert report.main(["--expdir", str(expdir), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "mean nothing at the size of test (1 utt., 3 reference words)" in printed
    page = (output / "report.html").read_text()
    assert "mean nothing at the size of test" in page
    # what was recognised is text, not markup
    assert "A &lt;hyp&gt; B" in page
    assert "<hyp>" not in page


def test_pictures_are_in_the_page(expdir, tmp_path, fixed_memory):
    pytest.importorskip("matplotlib")
    report.main(["--expdir", str(expdir), "--output", str(tmp_path)])
    assert (tmp_path / "report.html").read_text().count("data:image/png;base64,") == 2
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_page_has_no_pictures(
    expdir, tmp_path, capsys, fixed_memory, monkeypatch
):
    real_import = builtins.__import__

    def no_matplotlib(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *rest)

    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    assert report.main(["--expdir", str(expdir), "--output", str(tmp_path)]) == 0
    assert "matplotlib is missing" in capsys.readouterr().out
    assert "data:image" not in (tmp_path / "report.html").read_text()


def test_a_failed_measurement_is_told_not_made_up(
    expdir, tmp_path, capsys, monkeypatch
):
    def fail(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(report, "measure", fail)
    assert report.main(["--expdir", str(expdir), "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "The memory was not measured: out of luck" in printed
    assert "Memory of the loss" not in printed


@pytest.mark.parametrize(("most", "code"), [("0", 0), ("5", 0)])
def test_train_cer_within_the_limit(expdir, tmp_path, fixed_memory, most, code):
    arguments = ["--expdir", str(expdir), "--output", str(tmp_path)]
    assert report.main([*arguments, "--max_train_cer", most]) == code


def test_train_cer_above_the_limit_fails(expdir, tmp_path, capsys, fixed_memory):
    result = expdir / "decode_x/seen/score_cer/result.txt"
    result.write_text(SUM_LINE.format(rate="6.0"))
    arguments = ["--expdir", str(expdir), "--output", str(tmp_path)]
    assert report.main([*arguments, "--max_train_cer", "5"]) == 1
    assert "6.0 %, MORE THAN 5 %" in capsys.readouterr().out


def test_a_folder_without_a_training_is_an_error(tmp_path, capsys):
    assert report.main(["--expdir", str(tmp_path), "--output", str(tmp_path)]) == 1
    assert f"{tmp_path} has no config.yaml" in capsys.readouterr().err


def test_measured_memory_orders_the_losses():
    rows = measure(((30, 9), (20, 4)), joint_size=8, cases=((2000, 20),))
    peaks = {row.loss: row.peak_bytes for row in rows}
    logits = 2 * 30 * (9 + 1) * 2000 * 4
    assert peaks["torchaudio"] >= 2 * logits  # the logits and their gradient
    assert 0 < peaks["sampled"] < peaks["full"] < logits * 2


def test_a_measurement_that_fails_gives_its_last_words():
    with pytest.raises(RuntimeError, match=r"\S"):
        measure(((0, 1),), joint_size=8, cases=((10, 2),))


def test_a_schedule_of_samples_counts_by_its_largest(expdir):
    config = yaml.safe_load((expdir / "config.yaml").read_text(encoding="utf-8"))
    config["model_conf"]["num_samples"] = {"points": {0: 2, 100: 6, 200: 0}}
    (expdir / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert read_experiment(expdir).num_samples == 6


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", "a: [", "model_conf: 3", "\ufeff:"]
)
def test_a_config_that_is_none_is_one_line(expdir, tmp_path, capsys, text):
    (expdir / "config.yaml").write_text(text, encoding="utf-8")
    assert report.main(["--expdir", str(expdir), "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"report: {expdir / 'config.yaml'}")
    assert printed.count("\n") == 1


def test_an_output_that_cannot_be_made_is_one_line(expdir, tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    arguments = ["--expdir", str(expdir), "--output", str(tmp_path / "file/x")]
    assert report.main(arguments) == 1
    assert capsys.readouterr().err.startswith("report: ")
