"""The commands of ``python -m espnet_sampled_rnnt``: one module and one line each."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMMANDS", "Command"]


class Command(NamedTuple):
    """Where a command lives and what it does.

    The module, imported only when the command is run, has a function
    ``main(arguments: list[str]) -> int`` that returns the exit code.
    """

    module: str
    summary: str


COMMANDS = {
    "doctor": Command(
        "espnet_sampled_rnnt.commands.doctor",
        "say what is installed, what can run here, and how to mend the rest",
    ),
    "memory": Command(
        "espnet_sampled_rnnt.commands.memory",
        "predict the memory of the loss, and suggest a size of batch",
    ),
    "report": Command(
        "espnet_sampled_rnnt.commands.report",
        "show what a training learned: curves, error rates, memory of the loss",
    ),
    "strip": Command(
        "espnet_sampled_rnnt.commands.strip",
        "take the state of schedules and counts out of a checkpoint",
    ),
}
