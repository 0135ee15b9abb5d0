"""The doctor on this environment, and on environments broken on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from espnet_sampled_rnnt.commands import COMMANDS, doctor
from espnet_sampled_rnnt.commands.doctor import Report
from espnet_sampled_rnnt.commands.versions import check_versions, torchaudio_for
from espnet_sampled_rnnt.registration import SWITCH, WARNING_PREFIX


def run_doctor(
    search_path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in (SWITCH, doctor.TORCH_SWITCH)
    }
    if search_path is not None:
        env["PYTHONPATH"] = f"{search_path}{os.pathsep}{env.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-m", "espnet_sampled_rnnt", "doctor"],
        env={**env, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_healthy_environment():
    done = run_doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for expected in (
        "ok torch loads",
        "ok cpu numba can run",
        "ok cpu auto picks numba",
        "ok espnet2.tasks.asr: model sampled_transducer",
        "ok espnet2.tasks.asr: decoder sampled_transducer",
    ):
        assert expected in lines, done.stdout
    assert lines[-1].startswith("Training can work;")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            "raise OSError('libtorch.so: undefined symbol\\nmore')",
            "torch does not load: OSError: libtorch.so: undefined symbol",
            id="does-not-load",
        ),
        pytest.param(
            "import os; os.abort()",
            "import torch failed: killed by signal 6",
            id="crashes",
        ),
        pytest.param(
            "raise SystemExit(3)",
            "import torch failed: exit code 3",
            id="exits",
        ),
    ],
)
def test_broken_torch(tmp_path, source, expected):
    (tmp_path / "torch.py").write_text(source)
    done = run_doctor(search_path=tmp_path)
    assert done.returncode == 1
    assert f"PROBLEM {expected}\n" in done.stdout
    assert "-> pip install --force-reinstall torch\n" in done.stdout
    assert "PROBLEM no backend can run" in done.stdout
    assert "espnet2.tasks.asr" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_device_with_cuda():
    lines = [
        {"devices": {"cpu": "x86_64", "cuda": "Some GPU"}, "cuda": "13.0"},
        {"backend": "numba", "device": "cuda", "reason": "it runs on CPUs"},
        {"backend": "torchaudio", "device": "cuda", "reason": None},
        {"auto": "torchaudio", "device": "cuda"},
    ]
    report = Report(lines, [], None)
    [device] = doctor._libraries(lambda: report, {"torch": "2.14.1"})
    assert device == ("ok", "CUDA 13.0: Some GPU", None)
    assert [str(finding).split() for finding in doctor._backends(lambda: report)] == [
        ["-", "cuda", "numba", "it", "runs", "on", "CPUs"],
        ["ok", "cuda", "torchaudio", "can", "run"],
        ["ok", "cuda", "auto", "picks", "torchaudio"],
    ]


def test_backends_that_cannot_be_imported(monkeypatch, capsys):
    """As where numba is broken, which the backends import."""

    def broken(name: str):
        if name == "espnet_sampled_rnnt.loss.lattice":
            raise ImportError("numba needs another numpy")

    monkeypatch.setattr(doctor, "import_module", broken)
    doctor.probe_libraries()
    lines = [
        json.loads(line.removeprefix(doctor.LINE_PREFIX))
        for line in capsys.readouterr().out.splitlines()
    ]
    [finding] = doctor._backends(lambda: Report(lines, [], None))
    assert finding.level == "problem"
    assert "ImportError: numba needs another numpy" in finding.text
    assert finding.fix is not None


def found_by_registration(names: dict[str, list[str]], *stderr: str):
    line = {"module": "espnet2.tasks.asr", "names": names}
    return list(doctor._registration(lambda: Report([line], list(stderr), None)))


def test_own_classes_that_do_not_load_are_a_problem(monkeypatch):
    monkeypatch.delenv(doctor.TORCH_SWITCH, raising=False)
    monkeypatch.delenv(SWITCH, raising=False)
    reason = f"{WARNING_PREFIX}entry point 'x', from distribution espnet-sampled-rnnt"
    absent, present, cause = found_by_registration(
        {"model": ["espnet"], "decoder": ["sampled_transducer"]},
        f"registration.py:1: UserWarning: {reason}",
        "unrelated",
    )
    assert (absent.level, present.level, cause.level) == ("problem", "ok", "problem")
    assert "no model" in absent.text
    assert cause.text == reason.removeprefix(WARNING_PREFIX)
    assert cause.fix == doctor.REINSTALL


@pytest.mark.parametrize("switch", [SWITCH, doctor.TORCH_SWITCH])
def test_autoload_turned_off(monkeypatch, switch):
    monkeypatch.delenv(doctor.TORCH_SWITCH, raising=False)
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv(switch, "0")
    findings = found_by_registration({"model": ["espnet"], "decoder": ["transducer"]})
    assert [finding.level for finding in findings] == ["problem"] * 3
    assert findings[-1].text == f"{switch}=0 turns autoload off"
    assert f"unset {switch}, or run 'python3 -m espnet_samp" in str(findings[-1].fix)


def test_broken_third_party_is_a_note(monkeypatch):
    monkeypatch.delenv(doctor.TORCH_SWITCH, raising=False)
    monkeypatch.delenv(SWITCH, raising=False)
    names = {registry: ["sampled_transducer"] for registry in ("model", "decoder")}
    findings = found_by_registration(
        names, *[f"W: {WARNING_PREFIX}entry point 'y', from distribution other 1"] * 2
    )
    assert [finding.level for finding in findings] == ["ok", "ok", "note"]
    assert findings[-1].text.endswith("distribution other 1")


def test_missing_extras_are_notes_with_a_fix(monkeypatch):
    monkeypatch.setattr(doctor, "_exists", lambda module: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda *_, **__: None)
    findings = [*doctor._training_extras(), *doctor._recipe_tools()]
    assert {finding.level for finding in findings} == {"note"}
    assert all(finding.fix for finding in findings)
    names = [finding.text.split()[0] for finding in findings]
    assert names == [
        *("editdistance", "tensorboard", "matplotlib", "jiwer"),
        *("sclite", "sph2pipe"),
    ]


@pytest.mark.parametrize(
    ("python", "espnet", "torch", "torchaudio", "level", "text"),
    [
        ("3.12.1", "202611", "2.14.1+cu130", "2.11.1", "ok", "go together"),
        ("3.12.1", "202611", "2.11.0", "2.11.0", "ok", "go together"),
        ("3.11.7", "202511", "2.12.1", "2.11.0", "ok", "go together"),
        ("3.12.1", "202611", "2.11.0", "2.11.1", "problem", "does not load beside"),
        ("3.11.7", "202511", "2.12.1", "2.11.1", "problem", "does not load beside"),
        ("3.11.7", "202611", "2.14.1", "2.11.1", "note", "here is 3.11.7"),
        ("3.12.1", "202611", "2.12.1", "2.11.0", "note", "not 2.12, here is 2.12.1"),
        ("3.12.1", "202611", "2.15.0", "2.11.1", "note", ">= 2.11, < 2.15"),
        ("3.11.7", "202511", "2.13.0", "2.11.1", "note", "setuptools"),
        ("3.11.7", "202511", "2.4.1", "2.4.1", "note", "registers no plugin"),
        ("3.10.13", "202412", "2.6.0", "2.6.0", "problem", "too old"),
        ("3.13.0", "202701", "2.14.1", "2.11.1", "note", "was not tried"),
        ("3.12.1", None, "2.14.1", "2.11.1", "info", "not all are installed"),
        ("3.12.1", "strange", "odd", None, "note", "strange was not tried"),
    ],
)
def test_versions_that_go_together(python, espnet, torch, torchaudio, level, text):
    findings = check_versions(
        {"python": python, "espnet": espnet, "torch": torch, "torchaudio": torchaudio}
    )
    assert findings[0].level == level
    assert text in findings[0].text
    if level == "problem":
        assert findings[0].fix is not None


@pytest.mark.parametrize(
    ("torch", "requirement"),
    [
        ("2.14.1", "torchaudio"),
        ("2.12.1+cpu", "torchaudio==2.11.0"),
        ("2.9.1", "torchaudio==2.9.*"),
        (None, "torchaudio"),
    ],
)
def test_torchaudio_for(torch, requirement):
    assert torchaudio_for(torch) == requirement


def test_every_command_exists():
    for name, command in COMMANDS.items():
        module = doctor.import_module(command.module)
        assert callable(module.main), name
