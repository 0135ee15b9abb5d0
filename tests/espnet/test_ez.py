"""ESPnet-EZ, which comes with ESPnet 202511: the script in the docs, as it stands."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from support.espnet_commands import load, run

DOCS = Path(__file__).parents[2] / "docs" / "espnet3-and-ez.md"

pytestmark = [
    pytest.mark.skipif(
        find_spec("espnetez") is None, reason="ESPnet 202611 has no ESPnet-EZ any more"
    ),
    pytest.mark.skipif(find_spec("six") is None, reason="pip install six to run this"),
]


def blocks(language: str, start: str) -> list[str]:
    """The code blocks of the docs in a language that begin in a certain way."""
    parts = DOCS.read_text(encoding="utf-8").split(f"```{language}\n")[1:]
    return [part.split("```")[0] for part in parts if part.startswith(start)]


def test_ten_line_script(corpus, tmp_path, monkeypatch):
    (config,) = blocks("yaml", "token_type")
    (script,) = blocks("python", "# ESPnet-EZ")
    code = script.replace("# ESPnet-EZ", "").strip().splitlines()
    assert sum(bool(line.strip()) for line in code) <= 10
    (tmp_path / "train.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "train_ez.py").write_text(script, encoding="utf-8")
    shutil.copy(corpus.folder / "tokens.txt", tmp_path)
    for part in ("train", "valid"):
        data = tmp_path / "data" / part
        data.mkdir(parents=True)
        for name in ("wav.scp", "text"):
            shutil.copy(corpus.folder / name, data)
    monkeypatch.chdir(tmp_path)
    printed = run(["train_ez"])
    assert "sampled_vocabulary_size=" in printed
    trained = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text("utf-8"))
    assert trained["model"] == "sampled_transducer"
    names = load(tmp_path / "exp" / "valid.loss.best.pth")
    assert "joint_network.lin_out.weight" in names
