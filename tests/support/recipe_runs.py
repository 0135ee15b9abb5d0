"""Recipes run in a copy, so that nobody's data and experiments are touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "egs2_recipes"
# Names of folders that runs make in a recipe, and the unpacked tree.
MADE_BY_RUNS = ("data", "dump", "exp*", "downloads", "report", ".espnet")
NO_TREE = version("espnet").startswith("202511") and not os.environ.get("ESPNET_ROOT")
NO_TREE_REASON = (
    "the recipe tree of ESPnet 202511 is not on PyPI; ESPNET_ROOT is not set"
)


def environment() -> dict[str, str]:
    """This process's, with this Python for the recipes."""
    return {**os.environ, "PYTHON": sys.executable}


def call(command: list[object], folder: Path, timeout: int) -> str:
    """Run a command in a folder; its whole output.

    Raises:
        AssertionError: it failed; with the end of its output.
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds; ended.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # the whole family: asr.sh and what it started go on otherwise
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, output[-6000:]
    return output


def espnet_tree() -> Path:
    """The ESPnet tree of the checkout, downloaded where it is not there yet."""
    output = call([RECIPES / "espnet_tree.sh"], RECIPES, 600)
    return Path(output.splitlines()[-1])


def copy_recipes(folder: Path) -> Path:
    """``folder/egs2_recipes`` without anybody's data, on the checkout's tree."""
    recipes = folder / "egs2_recipes"
    ignored = shutil.ignore_patterns(*MADE_BY_RUNS)
    shutil.copytree(RECIPES, recipes, symlinks=True, ignore=ignored)
    (recipes / ".espnet").symlink_to(RECIPES / ".espnet")
    return recipes


def state_of(tree: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file, by path within the tree."""
    return {
        str(path.relative_to(tree)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in tree.rglob("*")
        if not path.is_dir()
    }
