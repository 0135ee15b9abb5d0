"""Launcher and commands: ``python -m espnet_sampled_rnnt``.

As a launcher it takes the place of ``python`` where torch does not register the
package by itself, for instance with ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``: it registers
and then runs a module or a script as ``python`` would. asr.sh takes it as
``--python "python3 -m espnet_sampled_rnnt"``.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

from espnet_sampled_rnnt.commands import COMMANDS
from espnet_sampled_rnnt.registration import register, register_in_workers

__all__ = ["main"]

USAGE_ERROR = 2  # the exit code of python and argparse for a wrong command line


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names.

    Args:
        arguments: the command line without the program; None: ``sys.argv[1:]``.

    Returns:
        The exit code. A launched program that ends in ``SystemExit`` or another
        exception ends this function so as well.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments:
        return _refuse("nothing to run")
    first, *rest = arguments
    if first in ("-h", "--help"):
        print(_usage())
        return 0
    if first == "-m":
        return _run_module(rest)
    if first in COMMANDS:
        return import_module(COMMANDS[first].module).main(rest)
    if first == "-":
        return _run_standard_input(rest)
    if first.startswith("-"):
        return _refuse(f"unknown option {first!r}")
    if Path(first).exists():
        return _run_script(first, rest)
    if first.endswith(".py"):
        return _refuse(f"can't open file {first!r}: no such file")
    return _refuse(f"unknown command {first!r}")


def _usage() -> str:
    width = max(len(name) for name in COMMANDS)
    commands = "\n".join(
        f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()
    )
    return f"""\
usage: python -m espnet_sampled_rnnt -m MODULE [ARGUMENT ...]
       python -m espnet_sampled_rnnt SCRIPT [ARGUMENT ...]
       python -m espnet_sampled_rnnt COMMAND [ARGUMENT ...]

Register the sampled-softmax transducer with ESPnet, then run MODULE or SCRIPT as
python would; SCRIPT may be - for the standard input. For instance:

  python -m espnet_sampled_rnnt -m espnet2.bin.asr_train --config train.yaml
  ./asr.sh --python "python3 -m espnet_sampled_rnnt" ...

commands:
{commands}"""


def _refuse(reason: str) -> int:
    print(f"espnet_sampled_rnnt: {reason}\n\n{_usage()}", file=sys.stderr)
    return USAGE_ERROR


def _run_module(arguments: list[str]) -> int:
    if not arguments:
        return _refuse("argument expected for the -m option")
    module, *rest = arguments
    _prepare(module, rest, search_path=os.getcwd())
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _run_script(script: str, arguments: list[str]) -> int:
    _prepare(script, arguments, search_path=str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    return 0


def _run_standard_input(arguments: list[str]) -> int:
    _prepare("-", arguments, search_path="")
    program = compile(sys.stdin.read(), "<stdin>", "exec")
    exec(program, {"__name__": "__main__", "__builtins__": __builtins__})
    return 0


def _prepare(program: str, arguments: list[str], search_path: str) -> None:
    """Register here and in workers; set ``sys.argv`` and ``sys.path`` as python does.

    ``runpy`` puts the module's file in the place of ``sys.argv[0]``.
    """
    register()
    register_in_workers()
    sys.argv = [program, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11's -P: leave it alone
        sys.path[0] = search_path


if __name__ == "__main__":
    sys.exit(main())
