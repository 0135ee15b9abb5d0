"""What egs2_recipes brings beside ESPnet's own scripts: stand-ins, filter, tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest
import soundfile

RECIPES = Path(__file__).parents[1] / "egs2_recipes"
TOOLS = RECIPES / "tools"
REFERENCE = "A B C D\t(s1-s1-u1)\nE F\t(s1-s1-u2)\nG\t(s2-s2-u3)\n"
HYPOTHESIS = "A X C\t(s1-s1-u1)\ne f\t(s1-s1-u2)\nG H I\t(s2-s2-u3)\n"


def run_tool(*command, text: bool = True) -> subprocess.CompletedProcess:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=text, check=False)


def load_tool(name: str):
    loader = SourceFileLoader(name.removesuffix(".py"), str(TOOLS / name))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def trn_files(tmp_path):
    paths = tmp_path / "ref.trn", tmp_path / "hyp.trn"
    for path, text in zip(paths, (REFERENCE, HYPOTHESIS), strict=True):
        path.write_text(text)
    return paths


def sclite_command(program, reference, hypothesis):
    """The command line as asr.sh writes it."""
    return (
        *program,
        *("-r", reference, "trn", "-h", hypothesis, "trn"),
        *("-i", "rm", "-o", "all", "stdout"),
    )


def sum_columns(result: str) -> list[float]:
    line = next(line for line in result.splitlines() if "Avg" in line)
    return [float(word) for word in line.replace("|", " ").split()[1:]]


STAND_IN = (sys.executable, TOOLS / "sclite")


def test_sclite_stand_in_counts_a_hand_worked_case(trn_files):
    pytest.importorskip("jiwer")
    done = run_tool(*sclite_command(STAND_IN, *trn_files))
    assert done.returncode == 0, done.stderr
    # 7 words: 5 right, B -> X, D lost, H and I too many; 2 of 3 sentences wrong
    expected = [3, 7, *(100 * n / 7 for n in (5, 1, 1, 2, 4)), 200 / 3]
    assert sum_columns(done.stdout) == pytest.approx(expected, abs=0.05)
    # what asr.sh looks for: the head, then the sum, in this order
    assert done.stdout.index("SPKR") < done.stdout.index("Sum/Avg")


def test_sclite_stand_in_names_itself(trn_files):
    pytest.importorskip("jiwer")
    done = run_tool(*sclite_command(STAND_IN, *trn_files))
    assert done.stdout.startswith("Scored by jiwer")
    assert "not by NIST sclite" in done.stderr


def test_sclite_stand_in_agrees_with_sclite(trn_files):
    pytest.importorskip("jiwer")
    real = shutil.which("sclite") or shutil.which("sclite", path="/usr/lib/sctk/bin")
    if real is None:
        pytest.skip("sclite is not installed")
    results = [
        run_tool(*sclite_command(program, *trn_files)).stdout
        for program in (STAND_IN, (real,))
    ]
    assert sum_columns(results[0]) == sum_columns(results[1])


def test_sclite_stand_in_takes_an_empty_reference(tmp_path):
    pytest.importorskip("jiwer")
    (tmp_path / "r").write_text("\t(s-s-u)\nA\t(s-s-v)\n")
    (tmp_path / "h").write_text("X\t(s-s-u)\nA\t(s-s-v)\n")
    done = run_tool(*sclite_command(STAND_IN, tmp_path / "r", tmp_path / "h"))
    assert sum_columns(done.stdout) == [2, 1, 100, 0, 0, 100, 100, 50]


@pytest.mark.parametrize(
    ("reference", "extra", "message"),
    [
        ("A { B / C } \t(s-u)\n", (), "alternatives in braces"),
        ("A\n", (), "no '(speaker-utterance)'"),
        ("A\t(s-other)\n", (), "in only one of REF and HYP"),
        ("A\t(s-u)\n", ("-F",), "option -F is not supported"),
    ],
)
def test_sclite_stand_in_refuses_what_it_cannot_do(tmp_path, reference, extra, message):
    pytest.importorskip("jiwer")
    (tmp_path / "r").write_text(reference)
    (tmp_path / "h").write_text("A\t(s-u)\n")
    command = sclite_command(STAND_IN, tmp_path / "r", tmp_path / "h")
    done = run_tool(*command, *extra)
    assert done.returncode == 1
    assert done.stderr.startswith("sclite stand-in: ")
    assert message in done.stderr
    assert done.stdout == ""


@pytest.fixture
def sphere_file(tmp_path):
    samples = np.arange(-40, 40, dtype=np.int16).reshape(40, 2) * 7
    path = tmp_path / "a.sph"
    soundfile.write(path, samples, 16000, format="NIST", subtype="PCM_16")
    return path, samples


def test_sph2pipe_stand_in_writes_the_same_samples_to_a_pipe(sphere_file, tmp_path):
    path, samples = sphere_file
    command = (sys.executable, TOOLS / "sph2pipe", "-f", "wav", "-p", "-c", "2", path)
    done = run_tool(*command, text=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "a.wav").write_bytes(done.stdout)
    written, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert rate == 16000
    np.testing.assert_array_equal(written, samples[:, 1])


def test_sph2pipe_stand_in_refuses_a_channel_that_is_not_there(sphere_file):
    done = run_tool(sys.executable, TOOLS / "sph2pipe", "-c", "3", sphere_file[0])
    assert done.returncode == 1
    assert "channel 3 asked of" in done.stderr


def test_sph2pipe_stand_in_names_the_real_one_for_what_it_cannot_read(tmp_path):
    (tmp_path / "a.sph").write_bytes(b"NIST_1A\n   1024\nshorten\n")
    done = run_tool(sys.executable, TOOLS / "sph2pipe", tmp_path / "a.sph")
    assert done.returncode == 1
    assert "install the real sph2pipe" in done.stderr


def test_an_epoch_is_one_short_line():
    follow = load_tool("follow_training.py")
    line = (
        "... 3epoch results: [train] iter_time=0.1, loss_ctc=2.5, loss=1.0e-02, "
        "loss_scale=1.000, loss_peak_bytes=2.0e+06, [valid] loss=4.0, cer_ctc=nan, "
        "cer=0.5, [att_plot] time=2 seconds"
    )
    expected = "  epoch   3  train: loss_ctc=2.5 loss=1.0e-02   valid: loss=4.0 cer=0.5"
    assert follow.epoch_line(line) == expected
    assert follow.epoch_line("... 3/9epoch started") is None


def test_epochs_are_shown_before_what_asr_sh_says_next(tmp_path):
    """A log of an earlier run is skipped; the new one's epochs come in their place."""
    log = tmp_path / "train.log"
    log.write_text("1epoch results: [train] loss=9.0\n")
    said = f"asr.sh: ASR training started... log: '{log}'\n"
    process = subprocess.Popen(
        [sys.executable, str(TOOLS / "follow_training.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdin.write(said)
    process.stdin.flush()
    assert process.stdout.readline() == said
    # as espnet2.bin.launch does when training resumes
    log.rename(tmp_path / "train.1.log")
    log.write_text("2epoch results: [train] loss=3.0\n")
    rest, _ = process.communicate("asr.sh: Stage 12: Decoding\n", timeout=60)
    assert rest.splitlines() == [
        "  epoch   2  train: loss=3.0",
        "asr.sh: Stage 12: Decoding",
    ]
    assert process.returncode == 0


def tree_command(**variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": sys.executable, "NO_APT": "1", **variables}
    return subprocess.run(
        [RECIPES / "espnet_tree.sh"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("place", ["version.txt", "espnet/version.txt"])
def test_a_checkout_of_another_release_is_refused(tmp_path, place):
    (tmp_path / "egs2/TEMPLATE/asr1").mkdir(parents=True)
    (tmp_path / "egs2/TEMPLATE/asr1/asr.sh").touch()
    (tmp_path / "espnet").mkdir()
    (tmp_path / place).write_text("190001\n")
    done = tree_command(ESPNET_ROOT=str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path} is ESPnet '190001', but" in done.stderr


def test_a_folder_that_is_no_espnet_tree_is_refused(tmp_path):
    done = tree_command(ESPNET_ROOT=str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path} has no egs2/TEMPLATE/asr1/asr.sh" in done.stderr


def test_a_checkout_of_the_installed_release_is_taken(tmp_path):
    from importlib.metadata import version

    (tmp_path / "egs2/TEMPLATE/asr1").mkdir(parents=True)
    (tmp_path / "egs2/TEMPLATE/asr1/asr.sh").touch()
    (tmp_path / "version.txt").write_text(version("espnet"))
    before = sorted(tmp_path.rglob("*"))
    done = tree_command(ESPNET_ROOT=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n")
    assert sorted(tmp_path.rglob("*")) == before, "a user's checkout is only read"
