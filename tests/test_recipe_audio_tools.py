"""The stand-ins for sox and flac, and where a recipe learns where its corpus is."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

RECIPES = Path(__file__).parents[1] / "egs2_recipes"
TOOLS = RECIPES / "tools"
RATE = 16000
ON_CORPORA = {
    "librispeech": "LIBRISPEECH",
    "librispeech_100": "LIBRISPEECH",
    "aishell": "AISHELL",
    "csj": "CSJDATATOP",
}


def run_tool(*words: object, data: bytes = b"") -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, input=data, capture_output=True, check=False)


def read(data: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == RATE
    return samples


def loudest_frequency(samples: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * RATE / len(samples))


@pytest.fixture
def tone(tmp_path) -> Path:
    """One second of 400 Hz as FLAC."""
    path = tmp_path / "tone.flac"
    seconds = np.arange(RATE) / RATE
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * 400 * seconds), RATE, "PCM_16")
    return path


@pytest.mark.parametrize("factor", ["0.9", "1.1"])
def test_sox_stand_in_changes_length_and_pitch(tone, factor):
    """From a file, as asr.sh calls it for LibriSpeech and AISHELL-1."""
    done = run_tool(TOOLS / "sox", tone, "-t", "wav", "-", "speed", factor)
    assert done.returncode == 0, done.stderr
    samples = read(done.stdout)
    assert len(samples) == pytest.approx(RATE / float(factor), abs=1)
    assert loudest_frequency(samples) == pytest.approx(400 * float(factor), abs=2)
    inner = samples[1000:-1000].astype(float)
    assert np.sqrt(np.mean(inner**2)) == pytest.approx(
        0.5 * 32768 / np.sqrt(2), rel=0.01
    )


def test_sox_stand_in_reads_a_pipe(tone):
    """As asr.sh calls it where wav.scp holds commands, as CSJ's does."""
    wave = run_tool(TOOLS / "flac", "-c", "-d", "-s", tone).stdout
    words = ("-t", "wav", "-", "-t", "wav", "-", "speed", "0.9")
    piped = run_tool(TOOLS / "sox", *words, data=wave)
    direct = run_tool(TOOLS / "sox", tone, "-t", "wav", "-", "speed", "0.9")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == direct.stdout


def test_flac_stand_in_gives_the_same_samples(tone):
    done = run_tool(TOOLS / "flac", "-c", "-d", "-s", tone)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(
        read(done.stdout), soundfile.read(tone, dtype="int16")[0]
    )


@pytest.mark.parametrize(
    "words",
    [
        ("sox", "{tone}", "-t", "wav", "-", "tempo", "0.9"),
        ("sox", "-r", "8000", "{tone}", "-", "speed", "0.9"),
        ("sox", "{tone}", "-", "speed", "fast"),
        ("sox", "{tone}", "-", "speed", "0"),
        ("sox", "no-such.wav", "-", "speed", "0.9"),
        ("flac", "-c", "-d", "no-such.flac"),
    ],
)
def test_stand_ins_refuse_what_they_cannot_do(tone, words):
    name, *rest = (word.format(tone=tone) for word in words)
    done = run_tool(TOOLS / name, *rest)
    assert done.returncode == 1
    assert done.stdout == b""
    message = done.stderr.decode()
    assert message.count("\n") == 1
    assert f"install the real one (Debian package {name})" in message


@pytest.fixture
def recipes(tmp_path) -> Path:
    """The recipes' own scripts around a run_asr.sh that only says how it is called."""
    folder = tmp_path / "egs2_recipes"
    for name in ON_CORPORA:
        (folder / name / "asr1").mkdir(parents=True)
        shutil.copy(RECIPES / name / "asr1/run.sh", folder / name / "asr1")
    shutil.copy(RECIPES / "corpus_option.sh", folder)
    runner = folder / "run_asr.sh"
    runner.write_text(
        "#!/usr/bin/env bash\n"
        'echo "corpus=${LIBRISPEECH:-}${AISHELL:-}${CSJDATATOP:-}"; pwd\n'
        "printf '%s\\n' \"$@\"\n"
    )
    runner.chmod(0o755)
    return folder


def run_recipe(recipes: Path, name: str, *options: str) -> subprocess.CompletedProcess:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ON_CORPORA.values()
    }
    return subprocess.run(
        [recipes / name / "asr1/run.sh", *options],
        cwd=recipes.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ON_CORPORA)
def test_a_recipe_hands_the_corpus_and_every_option_on(recipes, name):
    (recipes.parent / "my corpus").mkdir()
    options = ("--stage", "3", "--asr_args", "--max_epoch 2 --seed 1", "--lm_tag", "")
    done = run_recipe(
        recipes, name, *options[:2], "--corpus", "my corpus", *options[2:]
    )
    assert done.returncode == 0, done.stderr
    corpus, folder, *received = done.stdout.split("\n")[:-1]
    assert corpus == f"corpus={recipes.parent / 'my corpus'}"
    assert folder == str(recipes / name / "asr1")
    # last, so that they win over the recipe's own
    assert tuple(received[-len(options) :]) == options
    assert "conf/train_asr_transducer_sampled.yaml" in received


def test_a_recipe_refuses_a_corpus_that_is_not_there(recipes):
    done = run_recipe(recipes, "aishell", "--corpus", "nowhere")
    assert done.returncode == 2
    assert done.stderr == "run.sh: --corpus 'nowhere' is no folder\n"


@pytest.mark.parametrize(("subset", "train_set"), [("aps", "_aps"), ("all", "")])
def test_csj_trains_on_academic_speech_or_on_all(recipes, subset, train_set):
    words = run_recipe(recipes, "csj", "--subset", subset).stdout.split("\n")
    assert words[words.index("--train_set") + 1] == f"train_nodup{train_set}"


def test_csj_refuses_another_subset(recipes):
    done = run_recipe(recipes, "csj", "--subset", "sps")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_environment_wins_over_the_trees_db_sh(tmp_path):
    """And what the environment does not name stays as the tree has it."""
    tree, recipe = tmp_path / "tree", tmp_path / "recipe"
    tree.mkdir()
    recipe.mkdir()
    (tree / "asr.sh").touch()
    (tree / "db.sh").write_text("LIBRISPEECH=downloads AISHELL=downloads CSJVER=dvd\n")
    (recipe / "asr.sh").symlink_to(tree / "asr.sh")
    (recipe / "db.sh").symlink_to(RECIPES / "db.sh")
    script = 'set -eu; . ./db.sh; echo "${LIBRISPEECH}:${AISHELL}:${CSJVER}"'
    environment = {"PATH": os.environ["PATH"], "LIBRISPEECH": "/my corpora"}
    for given, expected in (
        (environment, "/my corpora:downloads:dvd"),
        ({"PATH": os.environ["PATH"]}, "downloads:downloads:dvd"),
    ):
        command = ["bash", "-c", script]
        output = subprocess.check_output(command, cwd=recipe, env=given, text=True)
        assert output.strip() == expected
