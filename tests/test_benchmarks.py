"""The benchmark: its lists are whole, a tiny run works, rows become tables.

No test looks at a time.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import loss, report
from benchmarks import memory as memory_module
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.base import output_gradient_bytes
from benchmarks.contenders.gemms import even_blocks
from benchmarks.figures import Index
from benchmarks.launches import count
from benchmarks.memory import peak_of
from benchmarks.rows import Row, read_rows, write_rows
from benchmarks.runner import Settings, new_row, why_not
from benchmarks.tables import disagreements, family_table, machine_table, target_table
from benchmarks.targets import TARGETS
from benchmarks.worker import Job, Worker
from benchmarks.workloads import FAMILIES, Workload, make_workloads, read_shapes

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
SHAPES = ((6, 4, 5), (3, 0, 2))
SETTINGS = Settings(
    device="cpu", repeats=3, most_flops=2e12, seed=0, threads=None, run="run"
)


def tiny() -> Workload:
    return make_workloads("tiny", None)[0]


def measured(workload: Workload, contender: str, ms: float, size: int) -> Row:
    """A row as if measured in three repeats."""
    row = new_row(workload, contender, SETTINGS)
    row.set_times([ms, 0.9 * ms, 1.2 * ms], [ms, ms, ms])
    row.extra_peak_bytes = size
    row.steps_per_repeat = 1
    return row


# Lists


@pytest.mark.parametrize("family", FAMILIES)
def test_every_contender_of_a_workload_is_known_and_listed(family):
    listing = loss.listing()
    assert f"  {family} " in listing
    workloads = make_workloads(family, SHAPES)
    assert workloads
    for workload in workloads:
        assert workload.contenders
        for contender in workload.contenders:
            assert contender in CONTENDERS
            assert f"  {contender} " in listing
    assert len({workload.name for workload in workloads}) == len(workloads)


def test_workloads_are_those_of_the_requirements():
    method = make_workloads("method", None)[0]
    assert method.nodes == method.padded_nodes == 8 * 150 * 16
    aishell = make_workloads("aishell", None)[0]
    # The logits of this case are 2,552 MB.
    assert 4 * aishell.padded_nodes * aishell.vocab_size == pytest.approx(
        2552e6, rel=1e-4
    )
    sweep = make_workloads("v-sweep", None)
    assert (sweep[0].vocab_size, sweep[-1].vocab_size) == (1_000, 250_000)
    batches = [workload.batch for workload in make_workloads("b-sweep", None)]
    assert (batches[0], batches[-1]) == (8, 256)


def test_ragged_nodes_are_counted_by_utterance():
    workload = make_workloads("librispeech", SHAPES)[0]
    assert workload.nodes == 6 * 4 + 4 * 1 + 5 * 3
    assert workload.padded_nodes == 3 * 6 * 4


def test_shapes_are_read_in_file_order(tmp_path):
    path = tmp_path / "shapes.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("num_frames,num_tokens\n12,3\n7,2\n9,1\n")
    assert read_shapes(path, count=2) == ((12, 7), (3, 2))
    with pytest.raises(ValueError, match="has 3 rows, but 30 are needed"):
        read_shapes(path)
    path = tmp_path / "other.csv"
    path.write_text("frames,tokens\n1,2\n")
    with pytest.raises(ValueError, match="num_frames and num_tokens"):
        read_shapes(path)


def test_a_workload_without_its_shapes_says_what_it_needs():
    with pytest.raises(ValueError, match="--librispeech-shapes"):
        make_workloads("lattice", None)


# Steps


@pytest.mark.parametrize("name", CONTENDERS)
def test_contender_runs_or_says_why_not(name):
    contender = CONTENDERS[name]
    reason = contender.unavailable(CPU)
    if reason is not None:
        assert len(reason) > 10
        return
    value = contender.make(tiny(), CPU, 0)()
    assert value is None or torch.isfinite(value)
    assert contender.needed_bytes(tiny()) >= 0


def test_exact_contenders_of_one_softmax_have_one_loss():
    rows = []
    for name, contender in CONTENDERS.items():
        if contender.softmax and contender.exact and not contender.unavailable(CPU):
            row = new_row(tiny(), name, SETTINGS)
            value = contender.make(tiny(), CPU, 0)()
            row.loss = float(value)
            rows.append(row)
    names = {row.contender for row in rows}
    assert {"ours-full", "torchaudio-full", "ours-batch", "nemo-like"} <= names
    assert disagreements(rows) == []
    rows[0].loss *= 1.01
    assert disagreements(rows)


def test_lattices_agree():
    workload = make_workloads("lattice", SHAPES)[0]
    losses = {
        name: float(CONTENDERS[name].make(workload, CPU, 0)())
        for name in workload.contenders
        if CONTENDERS[name].unavailable(CPU) is None
    }
    assert "lattice-torchaudio" in losses
    assert len(losses) >= 4
    expected = losses["lattice-torchaudio"]
    assert all(abs(value - expected) < 1e-4 for value in losses.values()), losses


def test_blocks_are_even_and_hold_all_nodes():
    assert even_blocks(10, 4) == [3, 3, 4]
    assert even_blocks(3, 100) == [3]


def test_operators_of_a_step_are_counted():
    assert count(lambda: torch.ones(2) + torch.ones(2), CPU)["operators"] >= 3


# Memory


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="resident size needs /proc"
)
@pytest.mark.parametrize("reset", [True, False])
def test_peak_is_what_a_call_takes_at_its_highest(monkeypatch, reset):
    if not reset:
        monkeypatch.setattr(memory_module, "_reset_peak", lambda call: None)
    size = 64 * 2**20

    def call():
        block = torch.ones(size // 4)
        # Long enough for the thread that samples.
        for _ in range(20):
            block.mul_(2.0)

    peak = peak_of(call, CPU)
    assert peak.method == ("VmHWM" if reset else "VmRSS, sampled")
    assert abs(peak.extra_bytes - size) < 0.1 * size


# Skipping


def test_what_would_not_fit_is_skipped_with_its_bytes(monkeypatch):
    monkeypatch.setattr("benchmarks.worker.available_bytes", lambda device: 1000)
    job = Job(tiny(), CONTENDERS["torchaudio-full"], CPU, seed=0, threads=None)
    needed = CONTENDERS["torchaudio-full"].needed_bytes(tiny())
    reason = Worker(job).prepare()
    assert "would not fit" in reason
    assert f"{needed:,} bytes" in reason


def test_what_would_take_too_long_is_skipped_with_its_operations():
    large = make_workloads("large", None)[0]
    reason = why_not(large, "ours-full", SETTINGS)
    assert "44.6" in reason
    assert "--max-teraflops" in reason
    assert why_not(large, "ours-example", SETTINGS) is None


def test_too_many_logits_for_torchaudio_are_not_tried():
    large = make_workloads("large", None)[0]
    assert "2^31 - 1" in why_not(large, "torchaudio-full", SETTINGS)


def test_what_is_not_installed_is_skipped_by_name():
    if CONTENDERS["optimized-transducer"].unavailable(CPU) is None:
        pytest.skip("optimized_transducer is installed here")
    reason = why_not(tiny(), "optimized-transducer", SETTINGS)
    assert reason == "optimized_transducer is not installed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "nonsense"], "workload 'nonsense' is not known"),
        (["--contenders", "nonsense"], "contender 'nonsense' is not known"),
        (["--repeats", "0"], "--repeats must be at least 1, but is 0"),
        (["--librispeech-shapes", "no.csv"], "--librispeech-shapes"),
    ],
)
def test_wrong_options_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit):
        loss.main(arguments)
    assert message in capsys.readouterr().err


# The command, in processes of its own


def test_a_tiny_run_writes_whole_rows_and_a_report(tmp_path, capsys):
    rows_file = tmp_path / "out" / "rows.json"
    arguments = ["--workloads", "tiny", "--repeats", "2", "--output", str(rows_file)]
    arguments += ["--contenders", "ours-full", "torchaudio-full", "warp-rnnt"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loss", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(rows_file.read_text())
    names = {field.name for field in dataclasses.fields(Row)}
    assert [set(value) for value in values] == [names] * 3
    ours, torchaudio, warp = read_rows([rows_file])
    for row in (ours, torchaudio):
        assert row.skipped is None
        assert row.repeats == len(row.times_ms) == 2
        assert row.min_ms <= row.median_ms <= row.max_ms
        assert row.memory_method is not None
        assert row.versions["torch"] is not None
        assert row.load_average is not None
    assert ours.model_bytes > 0
    assert torchaudio.model_bytes is None
    assert ours.loss == pytest.approx(torchaudio.loss, rel=1e-5)
    assert "cuda" in warp.skipped
    assert warp.median_ms is None

    assert report.main([str(rows_file)]) == 0
    printed = capsys.readouterr().out
    assert "| `ours-full` |" in printed
    assert "- `warp-rnnt`: warp_rnnt runs on cuda, not on cpu" in printed


# Reports


def sweep_rows() -> list[Row]:
    """Rows of the V sweep: 10 ms and 5 MB beyond the dense gradient, 3 % more last."""
    rows = []
    for workload in make_workloads("v-sweep", None):
        dense = output_gradient_bytes(workload)
        more = 1.03 if workload.vocab_size == 250_000 else 1.0
        ms = workload.vocab_size / 1e4
        rows.append(measured(workload, "dense-gradient", ms, dense))
        ours = measured(workload, "ours-example", 0, dense + int(5e6 * more))
        ours.set_times([x + 10 * more for x in rows[-1].times_ms], [1.0] * 3)
        rows.append(ours)
    return rows


def method_rows() -> list[Row]:
    method = make_workloads("method", None)[0]
    return [
        measured(method, "torchaudio-full", 8000, 700_000_000),
        measured(method, "nemo-like", 800, 90_000_000),
        measured(method, "ours-example", 160, 14_000_000),
        measured(method, "gemms-example", 128, 0),
    ]


def test_targets_are_computed_from_rows():
    index = Index([*method_rows(), *sweep_rows()])
    found = {target.measure: target.value(index) for target in TARGETS}
    assert found["time, torchaudio / ours sampled"].value == pytest.approx(50)
    assert found["time, NeMo-like sampled / ours sampled"].value == pytest.approx(5)
    freed = "extra peak memory, torchaudio (logits freed before backward)"
    assert found[f"{freed} / ours sampled"].value == pytest.approx(50)
    assert found["time, ours sampled / four bare GEMMs"].value == pytest.approx(1.25)
    assert found["time, torchaudio / ours full"] is None
    flat = "largest over smallest time beyond a dense zero gradient"
    assert found[flat].value == pytest.approx(3, abs=0.01)
    flat = "largest over smallest extra peak memory beyond a dense zero gradient"
    assert found[flat].value == pytest.approx(3, abs=0.01)
    table = target_table(index)
    assert ">= 40 x | 50 x | yes |" in table
    assert "not measured | - |" in table


def test_memory_over_batches_leaves_out_the_gradients_of_enc_and_dec():
    rows = []
    for workload in make_workloads("b-sweep", None):
        gradients = new_row(workload, "ours-full", SETTINGS).enc_dec_gradient_bytes
        size = gradients + 4_000_000 + 1000 * workload.batch
        rows.append(measured(workload, "ours-full", 1.0, size))
    target = next(x for x in TARGETS if x.measure.startswith("ours full: largest"))
    figure = target.value(Index(rows))
    assert figure.value == pytest.approx(100 * (4_256_000 / 4_008_000 - 1))
    assert target.met(figure)


def test_ratios_are_taken_round_by_round():
    slow, fast = method_rows()[:2]
    # The machine was three times slower in the second round, for both.
    slow.set_times([8000, 24000, 8000], [1.0] * 3)
    fast.set_times([800, 2400, 1600], [1.0] * 3)
    table = family_table(Index([slow, fast]), "method", ["torchaudio-full"])
    row = next(line for line in table.splitlines() if "`nemo-like`" in line)
    assert row.split("|")[3].strip() == "10"


def test_rows_of_different_runs_are_not_compared():
    above, below = method_rows()[0], method_rows()[2]
    below.run = "another"
    assert (
        Index([above, below]).find(
            ("method", "torchaudio-full"), ("method", "ours-example")
        )
        is None
    )


def test_the_newest_run_counts():
    old, new = method_rows()[2], method_rows()[2]
    new.run, new.date = "newer", "2999-01-01T00:00:00+00:00"
    new.set_times([7.0], [7.0])
    (found,) = Index([new, old]).find(("method", "ours-example"))
    assert found.median_ms == 7.0


def test_rows_survive_a_file(tmp_path):
    rows = method_rows()
    path = tmp_path / "rows.json"
    write_rows(path, rows)
    assert read_rows([path]) == rows
    path.write_text('[{"workload": "method"}]')
    with pytest.raises(ValueError, match="holds no rows of this benchmark"):
        read_rows([path])


def test_the_document_is_filled_in_from_rows(tmp_path):
    pytest.importorskip("matplotlib")
    source = ROOT / "docs" / "performance.md"
    document = tmp_path / "performance.md"
    document.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    rows_file = tmp_path / "rows.json"
    rows = [*method_rows(), *sweep_rows()]
    write_rows(rows_file, rows)
    assert report.main([str(rows_file), "--update-docs", str(document)]) == 0
    text = document.read_text(encoding="utf-8")
    assert machine_table(rows) in text
    assert family_table(Index(rows), "method") in text
    assert "![time and memory, v-sweep](images/performance-v-sweep.png)" in text
    assert (tmp_path / "images" / "performance-v-sweep.png").stat().st_size > 1000
    # Rows of the CPU do not stand where those of CUDA belong.
    cuda = text.split("begin table method cuda -->\n")[1]
    assert cuda.startswith("Not measured yet.")
    # The same rows once more change nothing.
    assert report.main([str(rows_file), "--update-docs", str(document)]) == 0
    assert document.read_text(encoding="utf-8") == text


def test_an_unknown_block_is_an_error():
    text = "<!-- benchmarks:begin tabel x -->\n<!-- benchmarks:end tabel x -->\n"
    with pytest.raises(ValueError, match="'tabel x' is not known"):
        report.fill(text, [], ROOT, {})


def test_the_script_for_cuda_is_well_formed():
    script = ROOT / "benchmarks" / "gpu.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    chosen = text.split("WORKLOADS:-")[1].split("}")[0].replace("\\\n", "").split()
    assert set(chosen) <= set(FAMILIES)
