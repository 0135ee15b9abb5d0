"""Registration, seen from fresh interpreters: it is about import orders and state.

Importing ``espnet2.tasks.asr`` takes seconds, so each scenario checks much at once,
and what needs no real ESPnet runs on a stand-in of some lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from espnet_sampled_rnnt import registration

NAME = "sampled_transducer"
AUTOLOAD_OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
HAS_ESPNET3 = find_spec("espnet3") is not None

REPORT = """
import json, sys
from importlib import import_module
print("REPORT " + json.dumps({
    choices.name: {name: str(cls) for name, cls in choices.classes.items()}
    for choices in import_module(sys.argv[1]).ASRTask.class_choices_list
}))
"""


def run_python(
    *arguments: str,
    environment: dict[str, str] | None = None,
    search_path: Path | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with the switches that this test sets, and no other."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in (registration.SWITCH, *AUTOLOAD_OFF)
    }
    env["OMP_NUM_THREADS"] = "1"
    if search_path is not None:
        outer = env.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join(
            [str(search_path), *([outer] * bool(outer))]
        )
    return subprocess.run(
        [sys.executable, *arguments],
        env={**env, **(environment or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def registries(
    program: str, task_module: str = "espnet2.tasks.asr", **options
) -> tuple[dict[str, dict[str, str]], str]:
    """ASRTask's registries {registry: {name: class}} after ``program``, and stderr."""
    done = run_python("-c", textwrap.dedent(program) + REPORT, task_module, **options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(lines) == 1, done.stderr
    return json.loads(lines[0].removeprefix("REPORT ")), done.stderr


def warnings_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if registration.WARNING_PREFIX in line]


def write_distribution(
    folder: Path, modules: dict[str, str], entry_points: str, name: str = "third-party"
) -> Path:
    """Lay out an installed distribution in ``folder``, to go on PYTHONPATH."""
    for module, source in modules.items():
        path = folder / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    return folder


# ESPnet as far as the registration is concerned, with tasks `asr` and `st`. As in
# ESPnet, the first import of all brings the package here, half way through a module.
STAND_IN = {
    "espnet2/__init__": "",
    "espnet2/tasks/__init__": "",
    "espnet2/tasks/abs_task": """
        import espnet_sampled_rnnt  # stands for torch

        class AbsTask:
            class_choices_list = []

            def __init_subclass__(cls, title="none"):
                cls.title = title
        """,
    "espnet2/class_choices": """
        class ClassChoices:
            def __init__(self, name, classes, base_type=None):
                self.name, self.classes, self.base_type = name, classes, base_type
        """,
    "espnet2/tasks/asr": """
        import espnet_sampled_rnnt
        from espnet2.class_choices import ClassChoices
        from espnet2.tasks.abs_task import AbsTask

        encoder_choices = ClassChoices("encoder", {"rnn": dict}, dict)

        class ASRTask(AbsTask, title="recognition"):
            class_choices_list = [encoder_choices]
        """,
    "espnet2/tasks/st": """
        from espnet2.tasks.abs_task import AbsTask
        from espnet2.class_choices import ClassChoices

        encoder_choices = ClassChoices("encoder", {"rnn": dict}, dict)

        class STTask(AbsTask):
            class_choices_list = [encoder_choices]
        """,
}
GOOD_ENCODER = "class Encoder(dict):\n    pass\n"


IMPORT_ORDERS = {
    "base of tasks first": "import espnet2.tasks.abs_task",
    # The hardest of the other tasks: it imports abs_task before torch, so that both
    # are half imported when torch calls us.
    "another task first": "import espnet2.tasks.ps2st",
    "espnet3 first": f"""
        import espnet3.systems.esp2_asr.task as task
        for choices in (task.model_choices, task.decoder_choices):
            assert {NAME!r} in choices.classes, choices.classes
        """,
    "autoload off, package last": f"""
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        from espnet2.tasks.asr import ASRTask, model_choices
        assert {NAME!r} not in model_choices.classes
        import espnet_sampled_rnnt
        """,
}


@pytest.fixture(scope="module")
def outcomes():
    """What :func:`registries` finds for each import order, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            order: pool.submit(registries, program)
            for order, program in IMPORT_ORDERS.items()
            if HAS_ESPNET3 or order != "espnet3 first"
        }


@pytest.mark.parametrize("order", IMPORT_ORDERS)
def test_both_names_in_every_import_order(order, outcomes):
    """Torch first, the task first and the package first: see the tests below."""
    if order not in outcomes:
        pytest.skip("this ESPnet release has no ESPnet3")
    found, stderr = outcomes[order].result()
    assert warnings_of(stderr) == []
    assert "SampledTransducerModel" in found["model"][NAME]
    assert "SampledTransducerDecoder" in found["decoder"][NAME]


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        pytest.param([], {}, id="plain-python"),
        pytest.param(["-m", "espnet_sampled_rnnt"], AUTOLOAD_OFF, id="launcher"),
    ],
)
def test_training_command_lists_both_names(launcher, environment):
    done = run_python(
        *launcher, "-m", "espnet2.bin.asr_train", "--help", environment=environment
    )
    assert done.returncode == 0, done.stderr
    assert "usage: asr_train.py" in done.stdout
    for option in ("--model {", "--decoder {"):
        choices = done.stdout.split(option)[1].split("}")[0]
        assert NAME in choices.split(",")


def test_torch_first_with_good_and_broken_third_parties(tmp_path):
    """`import torch` stays clean; each broken entry point is named once."""
    write_distribution(
        tmp_path,
        {
            "third_good": """
                from espnet2.asr.encoder.rnn_encoder import RNNEncoder

                class Encoder(RNNEncoder):
                    pass
                """,
            "third_broken": "raise OSError('library is gone')",
            "third_exits": "raise SystemExit(3)",
        },
        """
        [espnet2.asr.encoder]
        third_GOOD = third_good:Encoder
        third_broken = third_broken:Encoder
        third_exits = third_exits:Encoder
        third_missing = third_good:Absent
        third_type = collections:OrderedDict
        conformer = third_good:Encoder
        none = third_good:Encoder
        """,
    )
    program = """
        import sys
        import torch
        heavy = {"espnet", "espnet2", "espnet3", "numba", "torchaudio"}
        present = {name.split(".")[0] for name in sys.modules} & heavy
        assert not present, present
        ours = {name for name in sys.modules if name.startswith("espnet_sampled_rnnt")}
        assert ours == {"espnet_sampled_rnnt", "espnet_sampled_rnnt.registration"}, ours
        import espnet2.tasks.asr
        from importlib.util import find_spec
        if find_spec("espnet3") is not None:
            import espnet3.systems.esp2_asr.task as copy
            assert "third_good" in copy.encoder_choices.classes
        """
    found, stderr = registries(program, search_path=tmp_path)
    encoders = found["encoder"]
    assert encoders["third_good"] == "<class 'third_good.Encoder'>"
    assert "ConformerEncoder" in encoders["conformer"]
    assert NAME in found["model"]
    assert NAME in found["decoder"]
    faults = {
        "third_broken": "cannot be loaded: OSError: library is gone",
        "third_exits": "cannot be loaded: SystemExit: 3",
        "third_missing": "cannot be loaded: AttributeError",
        "third_type": "must be a subclass of espnet2.asr.encoder.abs_encoder.Abs",
        "conformer": "the name already stands for espnet2.asr.encoder.conformer_enc",
        "none": "its name means 'no class'",
    }
    said = warnings_of(stderr)
    assert len(said) == len(faults), said
    for name, fault in faults.items():
        [line] = [line for line in said if f"entry point {name!r}" in line]
        assert fault in line
        assert "group 'espnet2.asr.encoder', from distribution third-party 1.0" in line
        assert name not in encoders or name == "conformer"


WORKER = f"""
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

def names(_):
    import espnet2.tasks.asr as task
    return [{NAME!r} in c.classes for c in (task.model_choices, task.decoder_choices)]

def nested(_):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(names, [0]))

if __name__ == "__main__":
    work = {{"names": names, "nested": nested}}[sys.argv[1]]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(sys.argv[1:], list(pool.map(work, [0])))
"""


@pytest.mark.parametrize(
    ("launcher", "first_line", "work", "environment", "expected"),
    [
        pytest.param([], "", "names", {}, "[[True, True]]", id="plain-python"),
        pytest.param(
            [],
            "import espnet_sampled_rnnt",
            "names",
            AUTOLOAD_OFF,
            "[[True, True]]",
            id="autoload-off-package-first",
        ),
        pytest.param(
            ["-m", "espnet_sampled_rnnt"],
            "",
            "nested",
            AUTOLOAD_OFF,
            "[[[True, True]]]",
            id="launcher-worker-of-worker",
        ),
    ],
)
def test_spawned_workers(tmp_path, launcher, first_line, work, environment, expected):
    script = tmp_path / "program.py"
    script.write_text(first_line + WORKER)
    done = run_python(*launcher, str(script), work, environment=environment)
    assert done.stdout.splitlines()[-1:] == [f"[{work!r}] {expected}"], done.stderr


def test_loaded_when_the_task_is_created_and_for_other_tasks_too(tmp_path):
    write_distribution(
        tmp_path,
        {**STAND_IN, "third": GOOD_ENCODER},
        "[espnet2.st.encoder]\nthird = third:Encoder\n",
    )
    program = """
        import sys
        import espnet2.tasks.abs_task
        import espnet2.tasks.asr as asr
        assert "third" not in sys.modules
        assert asr.ASRTask.title == "recognition"  # the hook hands on what it gets
        import espnet2.tasks.st as st
        assert st.encoder_choices.classes["third"].__module__ == "third"
        """
    found, stderr = registries(program, search_path=tmp_path)
    assert list(found["encoder"]) == ["rnn"]
    assert warnings_of(stderr) == []


def test_task_that_finishes_after_a_half_imported_base(tmp_path):
    """`st` is created with no import after `abs_task`'s own end but one."""
    write_distribution(
        tmp_path,
        {**STAND_IN, "third": GOOD_ENCODER},
        "[espnet2.st.encoder]\nthird = third:Encoder\n",
    )
    program = """
        import espnet2.tasks.st as st
        assert "third" in st.encoder_choices.classes
        """
    registries(program, search_path=tmp_path)


def test_warnings_as_errors_do_not_break_the_import(tmp_path):
    write_distribution(
        tmp_path,
        {**STAND_IN, "third": "1 / 0"},
        "[espnet2.asr.encoder]\nthird = third:Encoder\n",
    )
    done = run_python(
        *("-W", "error", "-c", "import espnet2.tasks.asr"), search_path=tmp_path
    )
    assert done.returncode == 0, done.stderr
    [line] = warnings_of(done.stderr)
    assert "'third'" in line
    assert "ZeroDivisionError: division by zero" in line


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import espnet_sampled_rnnt", False),
        ("import espnet_sampled_rnnt.registration as r; r.register()", True),
    ],
)
def test_switch_leaves_registering_to_explicit_calls(tmp_path, program, expected):
    write_distribution(
        tmp_path,
        {**STAND_IN, "third": GOOD_ENCODER},
        "[espnet2.asr.encoder]\nthird = third:Encoder\n",
    )
    found, _ = registries(
        program, search_path=tmp_path, environment={registration.SWITCH: "0"}
    )
    assert ("third" in found["encoder"]) is expected


def test_register_twice_hooks_once():
    registration.register()
    before = list(sys.meta_path)
    registration.register()
    assert sys.meta_path == before


def test_fault_of_our_own_ends_in_one_warning(monkeypatch, capsys):
    def broken() -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(registration, "register", broken)
    monkeypatch.setattr(registration, "_said", set())
    monkeypatch.delenv(registration.SWITCH, raising=False)
    with pytest.warns(UserWarning, match="RuntimeError: no such luck"):
        registration.autoload()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registration.autoload()  # said once: else it would be printed now
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("module", "prefix"),
    [
        ("espnet2.tasks.asr", "espnet2.asr"),
        ("espnet2.tasks.gan_tts", "espnet2.gan_tts"),
        ("espnet3.systems.esp2_asr.task", "espnet2.asr"),
        ("espnet2.tasks.abs_task.inner", None),
        ("somebody.tasks.asr", None),
    ],
)
def test_group_prefix(module, prefix):
    assert registration.group_prefix(module) == prefix


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--help"], 0, "usage: python -m espnet_sampled_rnnt"),
        ([], 2, "nothing to run"),
        (["sing"], 2, "unknown command 'sing'"),
        (["-q"], 2, "unknown option '-q'"),
        (["absent.py"], 2, "can't open file 'absent.py'"),
        (["-m"], 2, "argument expected for the -m option"),
    ],
)
def test_launcher_command_line(arguments, code, text, capsys):
    from espnet_sampled_rnnt.__main__ import main

    assert main(arguments) == code
    printed = capsys.readouterr()
    assert text in (printed.err if code else printed.out)
    assert "doctor" in printed.err + printed.out


PROGRAM = """
import sys
import neighbour  # beside the script
print(__name__, sys.argv, flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("how", ["module", "script", "standard input"])
def test_launcher_runs_as_python_does(tmp_path, how):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "neighbour.py").write_text("")
    arguments, options = {
        "module": (["-m", "program", "-x", "1"], {"search_path": tmp_path}),
        "script": ([str(tmp_path / "program.py"), "-x", "1"], {}),
        "standard input": (
            ["-", "-x", "1"],
            {"search_path": tmp_path, "stdin": PROGRAM},
        ),
    }[how]
    plain = run_python(*arguments, **options)
    launched = run_python("-m", "espnet_sampled_rnnt", *arguments, **options)
    assert plain.stdout.startswith("__main__ [")
    assert (launched.returncode, launched.stdout) == (7, plain.stdout), launched.stderr
