"""Checkpoints that a kill, a full disk or a second run does not spoil; opt-in.

ESPnet writes ``checkpoint.pth`` over the one from the epoch before. Whatever ends the
process meanwhile leaves a torn file, and a run that cannot go on from anywhere. With
``ESPNET_SAMPLED_RNNT_SAFE_SAVE=1`` in the environment (or :func:`install`),
``torch.save``, called with a path, writes beside the file and puts it in its place when
it is whole. ESPnet itself is not touched, and its files stay what they are.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

__all__ = ["SWITCH", "install", "install_if_asked", "save"]

SWITCH = "ESPNET_SAMPLED_RNNT_SAFE_SAVE"
"""Environment variable; "1" makes ``torch.save`` safe where ESPnet's ASR task is."""

LOCK_NAME = ".espnet_sampled_rnnt.lock"
UNFINISHED_NAME = ".{}.unfinished"

# What ESPnet's trainer goes on from, and how it tells the epoch in there.
_RESUMED_NAME = "checkpoint.pth"

_torch_save = torch.save
_locks: dict[Path, BinaryIO] = {}


def install_if_asked() -> None:
    """Call :func:`install` where the environment asks for it."""
    if os.environ.get(SWITCH, "").strip() == "1":
        install()


def install() -> None:
    """Let ``torch.save`` of this process be :func:`save`, and of those started here."""
    os.environ[SWITCH] = "1"
    torch.save = save


def save(obj: Any, f: Any, *arguments: Any, **options: Any) -> None:
    """As ``torch.save``; a file at a path is replaced whole, or not at all.

    Where it is ESPnet's ``checkpoint.pth``, the folder is this process's from then on,
    and the model of that epoch is in place before it: ESPnet writes it after, and a run
    that is killed in between would go on without it and fail in averaging.

    Args:
        obj: what is saved.
        f: path or stream.
        arguments, options: of ``torch.save``.

    Raises:
        OSError: the file could not be written, or another run saves in the folder;
            what was there before is untouched.
    """
    if not isinstance(f, (str, os.PathLike)):
        _torch_save(obj, f, *arguments, **options)
        return
    path = Path(os.path.realpath(f))  # what is written through a link stays a link
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe, a device
        _torch_save(obj, f, *arguments, **options)
        return
    if path.name == _RESUMED_NAME:
        _take(path.parent)
        epoch, model = _epoch_and_model(obj)
        if epoch is not None:
            _replace(path.with_name(f"{epoch}epoch.pth"), model, arguments, options)
    _replace(path, obj, arguments, options)


def _epoch_and_model(checkpoint: Any) -> tuple[int | None, Any]:
    if not isinstance(checkpoint, dict):
        return None, None
    try:
        epoch, model = checkpoint["reporter"]["epoch"], checkpoint["model"]
    except (LookupError, TypeError):
        return None, None
    return (epoch, model) if isinstance(epoch, int) else (None, None)


def _replace(path: Path, obj: Any, arguments: tuple, options: dict[str, Any]) -> None:
    unfinished = path.with_name(UNFINISHED_NAME.format(path.name))
    try:
        with open(unfinished, "wb") as stream:
            with suppress(FileNotFoundError):
                os.fchmod(stream.fileno(), stat.S_IMODE(path.stat().st_mode))
            recorder = _Recorder(stream)
            try:
                _torch_save(obj, recorder, *arguments, **options)
            except RuntimeError:
                # torch's writer says nothing of what the stream raised.
                if recorder.fault is None:
                    raise
                raise recorder.fault from None
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot save {path}: {error.strerror}; what was there before is untouched",
        ) from None
    finally:
        with suppress(OSError):  # not there, or no such place: then there is an error
            unfinished.unlink()


class _Recorder:
    """A stream for ``torch.save`` that remembers why writing failed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.fault: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._stream.write(data)
        except OSError as error:
            self.fault = self.fault or error
            raise

    def flush(self) -> None:
        self._stream.flush()


def _take(folder: Path) -> None:
    """Lock the folder until this process ends, however it ends.

    Raises:
        OSError: another process holds it.
    """
    if folder in _locks:
        return
    stream = open(folder / LOCK_NAME, "wb")  # noqa: SIM115 - held until the end
    try:
        # Unlike flock's, this lock is no child's: workers that outlive a killed run
        # for some seconds do not hold the folder.
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            stream.close()
            raise OSError(
                error.errno,
                f"another run is saving checkpoints in {folder}: end one of them, or "
                "give each a folder of its own (asr.sh: --asr_tag or --expdir)",
            ) from None
        # A file system without locks: then there is no such check.
    _locks[folder] = stream
    for leftover in folder.glob(UNFINISHED_NAME.format("*")):
        leftover.unlink(missing_ok=True)  # of a run that was killed
