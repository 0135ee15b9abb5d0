"""Carry out runs through a recipe's run.sh, that is through ESPnet's asr.sh."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from benchmarks import machine
from benchmarks.accuracy.measure import measure
from benchmarks.accuracy.rows import Row, add_row, read_rows
from benchmarks.accuracy.study import Run, Task

ROOT = Path(__file__).resolve().parents[2]
# Folder of the study within a recipe's exp.
FOLDER = Path("exp/accuracy")
_PACKAGES = ("espnet", "torchaudio", "espeakng-loader", "wordfreq", "numpy", "scipy")


class RunFailed(RuntimeError):
    """asr.sh failed, or was stopped for taking too long."""


class Study:
    """Trains what is missing and keeps its rows.

    Args:
        results: the rows' file.
        jobs: trainings at once.
        threads: OMP_NUM_THREADS of each.
        minutes_per_run: stop a training that takes longer; None: never. Its
            checkpoint stays, and a later call goes on from there.
        ngpu: GPUs of a training; None: as the task says.
    """

    def __init__(
        self,
        results: Path,
        jobs: int = 1,
        threads: int = 1,
        minutes_per_run: float | None = None,
        ngpu: int | None = None,
    ) -> None:
        self.results = results
        self.jobs = jobs
        self.threads = threads
        self.minutes_per_run = minutes_per_run
        self.ngpu = ngpu
        self._screen = threading.Lock()
        self._children: set[subprocess.Popen] = set()
        self._stopping = False

    def say(self, text: str) -> None:
        """A line on the screen, whole also where several threads write."""
        with self._screen:
            print(f"{datetime.now():%H:%M:%S} {text}", flush=True)

    def run(self, runs: Sequence[Run]) -> list[str]:
        """Carry out runs; those that have a row are left alone.

        Returns:
            Why runs failed, one line each.
        """
        try:
            for task in {run.task.name: run.task for run in runs}.values():
                self._prepare(task)
            missing = [run for run in runs if not self.is_done(run)]
            self.say(
                f"{len(runs)} runs, {len(runs) - len(missing)} of them done before, "
                f"{self.jobs} at a time"
            )
            labels = [f"[{i}/{len(missing)}]" for i in range(1, len(missing) + 1)]
            with ThreadPoolExecutor(self.jobs) as pool:
                try:
                    return list(filter(None, pool.map(self._attempt, missing, labels)))
                except KeyboardInterrupt:
                    self._stop_all()  # before the pool waits for its threads
                    raise
        except KeyboardInterrupt:
            self._stop_all()
            raise

    def _stop_all(self) -> None:
        self._stopping = True
        for child in list(self._children):
            _stop(child)

    def _attempt(self, run: Run, label: str) -> str | None:
        """Carry out a run; why it failed, or None."""
        if self._stopping:
            return None
        label = f"{label} {run.name}"
        try:
            row = self._carry_out(run, label)
        except (RunFailed, OSError, ValueError) as error:
            if not self._stopping:
                self.say(f"{label}: FAILED: {error}")
            return f"{run.name}: {error}"
        self.say(
            f"{label}: CER {row.cer:.2f} %, full-softmax validation loss "
            f"{row.valid_loss_full:.2f}, {row.seconds_per_update:.3f} s/update"
        )
        return None

    def is_done(self, run: Run) -> bool:
        """Whether there is a row of this very run."""
        fingerprint = self._fingerprint(run)
        return any(
            (row.task, row.setting, row.seed, row.updates, row.fingerprint)
            == (*_key(run), fingerprint)
            for row in read_rows(self.results)
        )

    def _prepare(self, task: Task) -> None:
        """Data, tokens and statistics, once for all runs of a task."""
        folder = _recipe(task) / FOLDER / task.name
        base = _base_config(task)
        inputs = [
            _recipe(task) / "run.sh",
            *sorted((_recipe(task) / "local").glob("*")),
        ]
        stamp = hashlib.sha256()
        for path in inputs:
            if path.is_file() and not path.is_symlink():
                stamp.update(path.read_bytes())
        stamp.update(json.dumps([base["frontend_conf"], task.options]).encode())
        done = folder / "prepared"
        if (
            done.exists()
            and done.read_text() == stamp.hexdigest()
            and _tokens(task).exists()
        ):
            return
        self.say(f"{task.name}: data, tokens and statistics (stages 1 to 10)")
        folder.mkdir(parents=True, exist_ok=True)
        self._asr_sh(
            task,
            (
                *("--stage", "1", "--stop_stage", "10"),
                *("--asr_config", task.config, "--asr_stats_dir", str(_stats(task))),
            ),
            folder / "prepare.log",
            label=task.name,
        )
        done.write_text(stamp.hexdigest())

    def _carry_out(self, run: Run, label: str) -> Row:
        task = run.task
        recipe = _recipe(task)
        exp = FOLDER / task.name / run.name
        folder = recipe / exp
        config = yaml.safe_dump(self._config(run), sort_keys=False, allow_unicode=True)
        written = folder / "asr_config.yaml"
        # Another configuration must not go on from this one's checkpoints.
        if folder.exists() and (
            not written.exists() or written.read_text(encoding="utf-8") != config
        ):
            shutil.rmtree(folder)
        resumed = (folder / "checkpoint.pth").exists()
        folder.mkdir(parents=True, exist_ok=True)
        written.write_text(config, encoding="utf-8")
        options = ["--asr_config", str(exp / "asr_config.yaml"), "--asr_exp", str(exp)]
        options += ["--asr_stats_dir", str(_stats(task)), "--nj", "1"]
        options += ["--inference_nj", "1"]
        self.say(f"{label}: {'goes on' if resumed else 'begins'}")
        cpu_seconds = self._asr_sh(
            task,
            ["--stage", "11", "--stop_stage", "11", *options],
            folder / "asr_train.log",
            label,
        )
        for decoding in folder.glob(f"*/{task.test_set}"):
            shutil.rmtree(decoding)  # of a call that was stopped halfway
        self._asr_sh(
            task,
            ["--stage", "12", "--stop_stage", "13", *options],
            folder / "asr_decode.log",
            label,
        )
        commit, dirty = machine.git_state()
        row = Row(
            task=task.name,
            setting=run.setting.name,
            seed=run.seed,
            updates=task.updates,
            cpu_seconds_per_update=None if resumed else cpu_seconds / task.updates,
            command=_command(run),
            config={
                key: value
                for key, value in self._config(run).items()
                if key.endswith("_conf") or key in ("encoder", "decoder", "batch_size")
            },
            fingerprint=self._fingerprint(run),
            jobs=self.jobs,
            load_average=machine.load_average(),
            cpu_name=machine.cpu_name(),
            versions={**machine.versions(), **{p: _version(p) for p in _PACKAGES}},
            commit=commit,
            dirty=dirty,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **measure(
                folder,
                recipe / "dump/raw" / task.test_set / "text",
                task.test_set,
                task.updates_per_epoch,
            ),
        )
        add_row(self.results, row)
        for checkpoint in folder.glob("*.pth"):  # tens of megabytes a run
            checkpoint.unlink()
        return row

    def _config(self, run: Run) -> dict:
        vocabulary = len(_tokens(run.task).read_text(encoding="utf-8").splitlines())
        return run.config(_base_config(run.task), vocabulary)

    def _fingerprint(self, run: Run) -> str:
        made_of = json.dumps(self._config(run), sort_keys=True, default=str).encode()
        tokens = _tokens(run.task).read_bytes()
        return hashlib.sha256(made_of + tokens).hexdigest()[:16]

    def _asr_sh(
        self, task: Task, options: Sequence[str], log: Path, label: str
    ) -> float:
        """One call of run.sh; all output to a log, epochs to the screen.

        Returns:
            Processor seconds of all its processes.

        Raises:
            RunFailed: its exit status was not 0, or it took too long.
        """
        environment = dict(os.environ, OMP_NUM_THREADS=str(self.threads))
        environment["MKL_NUM_THREADS"] = str(self.threads)
        environment["PYTHON"] = sys.executable
        ngpu = task.ngpu if self.ngpu is None else self.ngpu
        command = ["./run.sh", *task.options, *options, "--ngpu", str(ngpu)]
        started = time.monotonic()
        child = subprocess.Popen(
            command,
            cwd=_recipe(task),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that all that it starts can be stopped
        )
        self._children.add(child)
        late = threading.Event()

        def stop() -> None:
            late.set()
            _stop(child)

        timer = None
        if self.minutes_per_run is not None:
            timer = threading.Timer(60 * self.minutes_per_run, stop)
            timer.start()
        try:
            with log.open("a", encoding="utf-8") as stream:
                for line in child.stdout:
                    stream.write(line)
                    if line.startswith("  epoch"):
                        elapsed = time.monotonic() - started
                        self.say(f"{label} {_short(line, task)} {elapsed:.0f} s")
        finally:
            if timer is not None:
                timer.cancel()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self._children.discard(child)
        if late.is_set():
            raise RunFailed(f"stopped after {self.minutes_per_run:g} minutes")
        if child.returncode != 0:
            raise RunFailed(f"run.sh ended with {child.returncode}: see {log}")
        return usage.ru_utime + usage.ru_stime


def _stop(child: subprocess.Popen) -> None:
    try:
        os.killpg(child.pid, signal.SIGTERM)
    except ProcessLookupError:
        return


def _short(line: str, task: Task) -> str:
    """An epoch's line of run.sh with updates in place of epochs."""
    _, epoch, rest = line.strip().split(None, 2)
    update = int(epoch) * task.updates_per_epoch
    return f"{update}/{task.updates} {rest.strip()}"


def _key(run: Run) -> tuple[str, str, int, int]:
    return run.task.name, run.setting.name, run.seed, run.task.updates


def _recipe(task: Task) -> Path:
    return ROOT / "egs2_recipes" / task.recipe


def _stats(task: Task) -> Path:
    return FOLDER / task.name / "stats"


def _tokens(task: Task) -> Path:
    lists = _recipe(task) / f"data/{task.lang}_token_list"
    return lists / task.token_type / "tokens.txt"


def _base_config(task: Task) -> dict:
    text = (_recipe(task) / task.config).read_text(encoding="utf-8")
    return yaml.safe_load(text)


def _command(run: Run) -> str:
    words = ["python", "-m", "benchmarks.accuracy", "run", "--task", run.task.name]
    words += ["--only", run.setting.name, "--seeds", str(run.seed)]
    words += ["--epochs", str(run.task.epochs)]
    return shlex.join(words)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
