"""One row a run, in a JSON file that several runs may add to at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """What a training came to. Error rates are in percent, losses in nats.

    Attributes:
        task, setting, seed, updates: identify the row.
        distribution, scope, correction, num_samples, uniform_mix: of the sampling;
            numbers or schedules as in ``model_conf``; ``num_samples`` 0 is the full
            softmax.
        vocab_size: V, blank included.
        cer: character error rate on the test set; digits for spoken digits. Of the
            average of the models that were best on the validation set.
        ser: share of test utterances with any error.
        valid_loss_full: full-softmax transducer loss a validation utterance, after
            the last update.
        valid_cer: after the last update.
        curve: one entry a validation: update, seconds of training until then, cer,
            loss (full softmax), loss_ctc on the validation set, train_loss (the
            sampled one), coverage.
        updates_to_half: updates until the validation CER fell below 50 %, by a
            straight line between validations: when the plateau was left. None: it
            never did.
        seconds_per_update: wall time, the median over epochs; of everything but
            validation.
        cpu_seconds_per_update: processor time of the whole training, validation and
            start included; None for a training that was resumed.
        coverage: share of the full softmax's mass on the sampled tokens, mean over
            the last quarter of the epochs that sampled; None for the full softmax.
        loss_peak_bytes: what the loss takes beside its inputs, largest epoch mean.
        sampled_vocabulary_size: tokens in the softmax, mean over training.
        command, config: how it was trained.
        fingerprint: of what the result depends on: configuration and token list.
        jobs, load_average: trainings at once, running processes at the end.
        cpu_name, versions, commit, dirty, date: where and with what.
    """

    task: str
    setting: str
    seed: int
    updates: int
    distribution: str | None
    scope: str
    correction: float | dict[str, Any]
    num_samples: int | dict[str, Any]
    uniform_mix: float | None
    vocab_size: int
    cer: float
    ser: float
    valid_loss_full: float
    valid_cer: float
    curve: list[dict[str, float | None]]
    updates_to_half: float | None
    seconds_per_update: float
    cpu_seconds_per_update: float | None
    coverage: float | None
    loss_peak_bytes: float
    sampled_vocabulary_size: float
    command: str
    config: dict[str, Any]
    fingerprint: str
    jobs: int
    load_average: float | None
    cpu_name: str
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool | None
    date: str

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What there is one row of."""
        return self.task, self.setting, self.seed, self.updates


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none where it is not there.

    Raises:
        ValueError: it holds something else.
    """
    if not path.exists():
        return []
    names = {f.name for f in fields(Row)}
    rows = []
    for value in json.loads(path.read_text(encoding="utf-8")):
        if set(value) != names:
            raise ValueError(
                f"{path} holds no rows of this study: {sorted(set(value) ^ names)}"
            )
        rows.append(Row(**value))
    return rows


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write them, one a line, whole or not at all."""
    lines = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    partial.replace(path)


def add_row(path: Path, row: Row) -> None:
    """Put a row in, in place of one with its key; safe beside other processes."""
    with _locked(path):
        rows = [other for other in read_rows(path) if other.key != row.key]
        write_rows(path, sorted([*rows, row], key=lambda one: one.key))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Elsewhere than the rows: their file is replaced at every write, so a lock on it
    # would be on a file that is gone, and one beside it would be in git's way.
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    lock = Path(tempfile.gettempdir()) / f"accuracy-rows-{name}.lock"
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
