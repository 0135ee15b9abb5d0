"""``doctor``: what is installed, what can run here, and how to mend the rest.

Nothing that may be broken is imported into this process: two fresh interpreters look
around and report line by line, so that a library that does not load, or takes the
interpreter down with it, costs one line of the report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

from espnet_sampled_rnnt.commands.drop_in import check_warprnnt
from espnet_sampled_rnnt.commands.findings import Finding
from espnet_sampled_rnnt.commands.versions import check_versions, torchaudio_for
from espnet_sampled_rnnt.registration import SWITCH, WARNING_PREFIX

__all__ = ["main", "probe_libraries"]

TORCH_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"
CLASS_NAME = "sampled_transducer"  # of the model and of the decoder
DISTRIBUTION = "espnet-sampled-rnnt"
REINSTALL = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
LAUNCHER = "python3 -m espnet_sampled_rnnt"
PROBE_TIMEOUT_SECONDS = 300.0  # ESPnet imports in seconds, from a slow disk in minutes

LIBRARIES = ("torch", "torchaudio", "numba")
ESPNET2_TASK = "espnet2.tasks.asr"
ESPNET3_TASK = "espnet3.systems.esp2_asr.task"

LINE_PREFIX = "DOCTOR "  # tells the probes' lines from what libraries print

# Imports nothing of this package: that would register it.
_REGISTRATION_PROBE = f"""
import json, sys
from importlib import import_module
for name in sys.argv[1:]:
    try:
        task = import_module(name).ASRTask
        names = {{c.name: list(c.classes) for c in task.class_choices_list}}
        found = {{"names": names}}
    except BaseException as error:
        found = {{"error": f"{{type(error).__name__}}: {{error}}"}}
    print({LINE_PREFIX!r} + json.dumps({{"module": name, **found}}), flush=True)
"""
_LIBRARIES_PROBE = (
    "from espnet_sampled_rnnt.commands.doctor import probe_libraries as probe; probe()"
)


def main(arguments: list[str]) -> int:
    """Print the report; 0 if training can work, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m espnet_sampled_rnnt doctor",
        description="Say what is installed, what can run here, and how to mend the "
        "rest. Exit code 0 if training can work, else 1.",
    )
    parser.parse_args(arguments)

    versions = {name: _version(name) for name in ("espnet", "torch", "torchaudio")}
    versions["python"] = platform.python_version()
    tasks = [ESPNET2_TASK, *([ESPNET3_TASK] if _exists("espnet3") else [])]
    with ThreadPoolExecutor() as pool:
        libraries_probe = pool.submit(_probe, _LIBRARIES_PROBE)
        registration_probe = pool.submit(_probe, _REGISTRATION_PROBE, *tasks)

        findings: list[Finding] = []
        for title, section in (
            ("Installed", _installed(versions)),
            ("Versions that go together", iter(check_versions(versions))),
            ("Libraries and devices", _libraries(libraries_probe.result, versions)),
            ("Loss backends", _backends(libraries_probe.result)),
            ("Registration with ESPnet", _registration(registration_probe.result)),
            ("For ESPnet's own transducer", check_warprnnt()),
            ("For training runs", _training_extras()),
            ("For recipes", _recipe_tools()),
        ):
            print(f"\n{title}" if findings else title, flush=True)
            for finding in section:
                print(finding, flush=True)
                findings.append(finding)

    levels = [finding.level for finding in findings]
    problems, notes = levels.count("problem"), levels.count("note")
    print(
        f"\n{problems} problem(s): training cannot work as it is; the lines after -> "
        "say what to do."
        if problems
        else f"\nTraining can work; {notes} note(s)."
    )
    return 1 if problems else 0


class Report(NamedTuple):
    """What a probe said, and how it ended: None, or the reason why it died."""

    lines: list[dict[str, Any]]
    stderr: list[str]
    death: str | None


def _probe(program: str, *arguments: str) -> Report:
    """Run ``program`` in a fresh interpreter and collect its lines."""
    command = [sys.executable, "-c", program, *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Report([], [], f"no answer within {PROBE_TIMEOUT_SECONDS:.0f} s")
    except OSError as error:
        return Report([], [], f"{sys.executable} cannot be started: {error}")
    lines = [
        json.loads(line.removeprefix(LINE_PREFIX))
        for line in done.stdout.splitlines()
        if line.startswith(LINE_PREFIX) and line.endswith("}")  # not cut off by a crash
    ]
    stderr = done.stderr.splitlines()
    death = None
    if done.returncode < 0:
        death = f"killed by signal {-done.returncode}"
    elif done.returncode > 0:
        death = stderr[-1] if stderr else f"exit code {done.returncode}"
    return Report(lines, stderr, death)


def probe_libraries() -> None:
    """Import what the loss needs and ask its backends; prints lines for ``doctor``."""

    def say(**line: Any) -> None:
        print(LINE_PREFIX + json.dumps(line), flush=True)

    for name in LIBRARIES:
        say(begins=f"import {name}")
        try:
            import_module(name)
            say(library=name, error=None)
        except Exception as error:
            say(library=name, error=_describe(error))
            if name == "torch":
                return
    say(begins="looking for devices")
    import torch

    devices = {"cpu": platform.processor() or platform.machine()}
    if torch.cuda.is_available():
        devices["cuda"] = torch.cuda.get_device_name()
    say(devices=devices, cuda=torch.version.cuda)
    say(begins="asking the loss backends")
    try:
        lattice = import_module("espnet_sampled_rnnt.loss.lattice")
        for kind in devices:
            device = torch.device(kind)
            for name, backend in lattice.BACKENDS.items():
                say(backend=name, device=kind, reason=backend.unavailable(device))
            say(auto=lattice.resolve("auto", device).name, device=kind)
    except Exception as error:
        say(backends_error=_describe(error))


def _installed(versions: dict[str, str | None]) -> Iterator[Finding]:
    yield Finding("ok", f"Python {versions['python']} ({sys.executable})")
    own = _version(DISTRIBUTION)
    if own is not None:
        yield Finding("ok", f"{DISTRIBUTION} {own}")
    else:
        yield Finding(
            "problem",
            f"{DISTRIBUTION} is not installed, only found on the import path: "
            "its entry points are not seen",
            f"pip install {DISTRIBUTION}, or pip install -e . in its source folder",
        )
    for name, requirement in (
        ("espnet", "espnet"),
        ("torch", "torch"),
        ("torchaudio", torchaudio_for(versions["torch"])),
        ("numba", "numba"),
    ):
        version = _version(name)
        if version is not None:
            yield Finding("ok", f"{name} {version}")
        else:
            yield Finding(
                "problem", f"{name} is not installed", f"pip install '{requirement}'"
            )
    warp_rnnt = _version("warp-rnnt")
    if warp_rnnt is not None:
        yield Finding("ok", f"warp-rnnt {warp_rnnt}")
    else:
        yield Finding("info", "warp-rnnt is not installed (optional, for CUDA)")


def _libraries(
    probe: Callable[[], Report], versions: dict[str, str | None]
) -> Iterator[Finding]:
    report = probe()
    fixes = {"torchaudio": f"pip install '{torchaudio_for(versions['torch'])}'"}
    for line in report.lines:
        if "library" in line and line["error"] is None:
            yield Finding("ok", f"{line['library']} loads")
        elif "library" in line:
            name = line["library"]
            yield Finding(
                "problem",
                f"{name} does not load: {line['error']}",
                fixes.get(name, f"pip install --force-reinstall {name}"),
            )
        elif "devices" in line:
            if "cuda" in line["devices"]:
                yield Finding("ok", f"CUDA {line['cuda']}: {line['devices']['cuda']}")
            elif line["cuda"]:
                yield Finding(
                    "info", f"no CUDA device (torch is built for {line['cuda']})"
                )
            else:
                yield Finding("info", "no CUDA: torch is built for CPUs only")
    if report.death is not None:
        begun = [line["begins"] for line in report.lines if "begins" in line]
        step = begun[-1] if begun else "starting python"
        library = step.removeprefix("import ")
        fix = f"pip install --force-reinstall {library}"
        yield Finding(
            "problem",
            f"{step} failed: {report.death}",
            fixes.get(library, fix if library in LIBRARIES else REINSTALL),
        )


def _backends(probe: Callable[[], Report]) -> Iterator[Finding]:
    report = probe()
    if not any("auto" in line for line in report.lines):
        errors = [x["backends_error"] for x in report.lines if "backends_error" in x]
        yield Finding(
            "problem",
            f"no backend can run: {(errors or ['they could not be asked'])[0]}",
            REINSTALL if errors else "mend the libraries above first",
        )
        return
    for line in report.lines:
        if "backend" in line:
            level, verdict = "ok", "can run"
            if line["reason"] is not None:
                level, verdict = "info", line["reason"]
            yield Finding(level, f"{line['device']:5}{line['backend']:12}{verdict}")
        elif "auto" in line:
            yield Finding("ok", f"{line['device']:5}auto picks {line['auto']}")
        elif "backends_error" in line:
            yield Finding("problem", line["backends_error"], REINSTALL)


def _registration(probe: Callable[[], Report]) -> Iterator[Finding]:
    """Whether a fresh interpreter that only imports the task knows our classes."""
    report = probe()
    broken = {  # what the registration warned of, each once
        text
        for _, found, text in (x.partition(WARNING_PREFIX) for x in report.stderr)
        if found
    }
    reasons = [
        *_reasons(),
        *((x, REINSTALL) for x in sorted(broken) if DISTRIBUTION in x),
    ]
    absent = False
    for line in report.lines:
        module = line["module"]
        # ESPnet3 has requirements of its own, which ESPnet2's training does not.
        level = "problem" if module == ESPNET2_TASK else "note"
        if "error" in line:
            yield Finding(
                level,
                f"{module} cannot be imported: {line['error']}",
                "pip install what it asks for, or pip install --force-reinstall espnet",
            )
            continue
        for registry in ("model", "decoder"):
            if CLASS_NAME in line["names"].get(registry, ()):
                yield Finding("ok", f"{module}: {registry} {CLASS_NAME}")
            else:
                absent = True
                fix = "see below" if reasons else REINSTALL
                yield Finding(level, f"{module}: no {registry} {CLASS_NAME}", fix)
    if report.death is not None:
        yield Finding(
            "problem",
            f"importing {ESPNET2_TASK} failed: {report.death}",
            "mend the libraries above first",
        )
    for text, fix in reasons:
        yield Finding("problem" if absent else "note", text, fix)
    for text in sorted(broken):
        if DISTRIBUTION not in text:
            yield Finding("note", text, "mend or uninstall that distribution")


def _reasons() -> Iterator[tuple[str, str]]:
    """What keeps the registration from being in place, and how to mend it."""
    launch = f"run '{LAUNCHER} -m espnet2.bin.asr_train ...'"
    if os.environ.get(TORCH_SWITCH, "1") != "1":
        yield (
            f"{TORCH_SWITCH}={os.environ[TORCH_SWITCH]} turns autoload off",
            f'unset {TORCH_SWITCH}, or {launch}, in asr.sh --python "{LAUNCHER}"',
        )
    if os.environ.get(SWITCH, "1").strip() == "0":
        yield f"{SWITCH}=0 turns autoload off", f"unset {SWITCH}, or {launch}"
    groups = _entry_point_groups()
    if groups is not None and "torch.backends" not in groups:
        yield (
            f"{DISTRIBUTION} is installed without its entry point for torch",
            REINSTALL,
        )


def _training_extras() -> Iterator[Finding]:
    for module, purpose in (
        ("editdistance", "error rates in validation (report_cer, report_wer)"),
        ("tensorboard", "training, unless --use_tensorboard false"),
        ("matplotlib", "training, unless --use_matplotlib false"),
        ("jiwer", "scoring where there is no sclite"),
    ):
        if _exists(module):
            yield Finding("ok", f"{module} {_version(module) or ''}".rstrip())
        else:
            yield Finding(
                "note", f"{module} is missing, for {purpose}", f"pip install {module}"
            )


def _recipe_tools() -> Iterator[Finding]:
    tools = os.path.join(os.environ.get("ESPNET_ROOT", ""), "tools")
    for program, folders, purpose, fix in (
        (
            "sclite",
            [os.path.join(tools, "sctk", "bin"), "/usr/lib/sctk/bin"],
            "scoring in asr.sh",
            "apt-get install sctk (Debian, Ubuntu)",
        ),
        (
            "sph2pipe",
            [os.path.join(tools, "sph2pipe")],
            "corpora in NIST SPHERE files",
            "tools/installers/install_sph2pipe.sh of an ESPnet source tree",
        ),
    ):
        path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
        found = shutil.which(program, path=path)
        if found:
            yield Finding("ok", f"{program} ({found})")
        else:
            yield Finding("note", f"{program} is missing, for {purpose}", fix)


def _version(distribution: str) -> str | None:
    """Installed version, None where there is none or its metadata cannot be read."""
    try:
        return metadata.version(distribution)
    except Exception:  # broken metadata raises whatever it likes
        return None


def _entry_point_groups() -> set[str] | None:
    try:
        found = metadata.distribution(DISTRIBUTION).entry_points
        return {entry_point.group for entry_point in found}
    except Exception:
        return None


def _exists(module: str) -> bool:
    """Whether a top-level module can be found; it is not imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _describe(error: BaseException) -> str:
    """One line for an error: messages of loaders run over many."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
