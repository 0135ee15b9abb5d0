"""ESPnet's commands with something done to their process first, for tests.

``python -m support.sabotage ACTION VALUE MODULE [ARGUMENT ...]`` does ACTION and then
runs MODULE as ``python -m`` does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import signal
import sys
from pathlib import Path

import torch

from espnet_sampled_rnnt import safe_saving

# Less than any checkpoint here: writing ends somewhere in its midst.
TORN_BYTES = 8192


def kill_in_batch(number: str) -> None:
    """SIGKILL in the middle of the so-many-th training batch."""
    from espnet_sampled_rnnt.sampling import VocabularySampler

    draw = VocabularySampler.draw
    calls = 0

    def counted(*arguments):
        nonlocal calls
        calls += 1
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(*arguments)

    VocabularySampler.draw = counted


def kill_in_save(number: str) -> None:
    """The kernel ends the process in the midst of the so-many-th ``torch.save``.

    By SIGXFSZ, which comes where SIGKILL could only be aimed at: nothing of the
    process runs after the write that it strikes.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _limit_in_save(int(number))


def full_disk_in_save(number: str) -> None:
    """The so-many-th ``torch.save`` may write no more at some point."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _limit_in_save(int(number))


def _limit_in_save(number: int) -> None:
    original = torch.save
    calls = 0

    def save(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls != number:
            return original(*arguments, **options)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (TORN_BYTES, hard))
        try:
            return original(*arguments, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    torch.save = safe_saving._torch_save = save


def obey_modes(_: str) -> None:
    """Give up root's right to write where the modes of a file forbid it."""
    libc = ctypes.CDLL(None, use_errno=True)
    version_3, own_process = 0x20080522, 0
    header = (ctypes.c_uint32 * 2)(version_3, own_process)
    no_capabilities = (ctypes.c_uint32 * 6)()
    if libc.capset(header, no_capabilities) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def cpu_amp(dtype: str) -> None:
    """ESPnet's trainer asks for AMP on CUDA; here it gets it on the CPU."""
    import espnet2.train.trainer as trainer

    # 202511 gives `enabled` by place, 202611 by name.
    def autocast(*arguments, enabled=None, **_):
        enabled = arguments[-1] if enabled is None else enabled
        return torch.autocast("cpu", dtype=getattr(torch, dtype), enabled=enabled)

    class Scaler(trainer.GradScaler):  # of the class that the trainer checks for
        def __init__(self) -> None:
            torch.amp.GradScaler.__init__(self, "cpu", init_scale=1024.0)

    trainer.autocast = autocast
    trainer.GradScaler = Scaler


def record(folder: str) -> None:
    """Keep each rank's draws, and its parameters as training turns to validation."""
    from espnet_sampled_rnnt.model import SampledTransducerModel
    from espnet_sampled_rnnt.sampling import VocabularySampler

    draw, train = VocabularySampler.draw, SampledTransducerModel.train
    drawn: list[list[list[int]]] = []

    def recorded_draw(*arguments):
        vocabulary = draw(*arguments)
        # What is in there for sure is no draw: blank and the labels.
        is_drawn = vocabulary.mask & (vocabulary.log_inclusion < 0)
        rows = zip(vocabulary.token_ids, is_drawn, strict=True)
        drawn.append([tokens[chosen].tolist() for tokens, chosen in rows])
        return vocabulary

    def recorded_train(self, mode: bool = True):
        if not mode:
            found = {"state": self.state_dict(), "drawn": drawn}
            torch.save(found, Path(folder) / f"rank{torch.distributed.get_rank()}.pth")
        return train(self, mode)

    VocabularySampler.draw = recorded_draw
    SampledTransducerModel.train = recorded_train


ACTIONS = {
    action.__name__: action
    for action in (
        kill_in_batch,
        kill_in_save,
        full_disk_in_save,
        obey_modes,
        cpu_amp,
        record,
    )
}


def sabotaged(action: str, value: object, command: list[str]) -> list[str]:
    """The command that does ``ACTIONS[action]`` and then what ``command`` does."""
    return ["support.sabotage", action, str(value), *command]


if __name__ == "__main__":
    _, name, argument, *sys.argv[:] = sys.argv
    ACTIONS[name](argument)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
