"""The drop-in for ``warprnnt_pytorch``: its loss, and how it is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.memory import counted_peak
from support.reference import lattice_occupancies, log_probabilities

from espnet_sampled_rnnt import warprnnt
from espnet_sampled_rnnt.commands.drop_in import check_warprnnt
from espnet_sampled_rnnt.registration import SWITCH, WARPRNNT_SWITCH, register
from espnet_sampled_rnnt.warprnnt import RNNTLoss, rnnt_loss

# (frames, labels) of each utterance; the last has no label.
SHAPES = ((7, 3), (4, 4), (1, 2), (5, 0))


def batch(dtype=torch.float64, vocab_size=9, shapes=SHAPES, blank=0, seed=0):
    """acts (B, T, U + 1, V) with a gradient, labels, lengths; garbage on padding."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.tensor([t for t, _ in shapes], dtype=torch.int32)
    lengths = torch.tensor([u for _, u in shapes], dtype=torch.int32)
    size = (len(shapes), int(frames.max()), int(lengths.max()) + 1, vocab_size)
    acts = 3 * torch.randn(size, generator=generator, dtype=torch.float64)
    labels = torch.randint(
        1, vocab_size, (size[0], size[2] - 1), generator=generator, dtype=torch.int32
    )
    labels = (labels + blank) % vocab_size
    for b, (t, u) in enumerate(shapes):
        acts[b, t:] = torch.nan
        acts[b, :, u + 1 :] = torch.nan
        labels[b, u:] = -7
    return acts.to(dtype).requires_grad_(), labels, frames, lengths


def expected(acts, labels, frames, lengths, blank=0, fastemit_lambda=0.0):
    """(B,) losses and (B, T, U + 1, V) gradients of their sum, one by one.

    FastEmit as the original has it: the gradient of label arcs grows by 1 + lambda.
    """
    losses, gradient = [], torch.zeros_like(acts, dtype=torch.float64)
    for b, (t, u) in enumerate(zip(frames.tolist(), lengths.tolist(), strict=True)):
        logits = acts[b, :t, : u + 1].detach().double().requires_grad_()
        log_probs = log_probabilities(logits)
        target = torch.tensor([*labels[b, :u].tolist(), blank])
        by_label = log_probs[:, torch.arange(u + 1), target]
        arcs = torch.stack([log_probs[..., blank], by_label], dim=-1)
        loss, occupancies = lattice_occupancies(arcs)
        losses.append(loss)
        occupancies[..., 1] *= 1 + fastemit_lambda
        (by_logit,) = torch.autograd.grad(arcs, logits, -occupancies)
        gradient[b, :t, : u + 1] = by_logit
    return torch.stack(losses), gradient


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("fastemit_lambda", [0.0, 0.3])
def test_values_and_gradients(reduction, blank, fastemit_lambda, monkeypatch):
    """Some frames at a time, too: a chunk of 60 logits is 1 to 6 frames here."""
    monkeypatch.setattr(warprnnt, "_CHUNK_ELEMENTS", 60)
    acts, *rest = batch(blank=blank)
    losses, gradients = expected(acts, *rest, blank, fastemit_lambda)
    upstream = torch.tensor([1.5, -2.0, 0.25, 3.0], dtype=torch.float64)
    loss = RNNTLoss(blank, fastemit_lambda, reduction)(acts, *rest)
    if reduction == "none":
        assert loss.shape == (4,)
        torch.testing.assert_close(loss, losses)
        loss.backward(upstream)
        gradients *= upstream[:, None, None, None]
    else:
        assert loss.shape == (1,)
        share = 4 if reduction == "mean" else 1
        torch.testing.assert_close(loss[0], losses.sum() / share)
        (2.5 * loss).backward()
        gradients *= 2.5 / share
    torch.testing.assert_close(acts.grad, gradients)


def test_the_originals_documented_example():
    """The call in its README; the cost is the one that its own tests expect."""
    acts = torch.full((1, 2, 3, 5), 0.1)
    acts[0, 0, 0, 1] = acts[0, 0, 1, 2] = acts[0, 1, 0, 1] = 0.6
    acts[0, 0, 2, 2] = acts[0, 1, 1, 2] = acts[0, 1, 2, 2] = 0.2
    acts[0, 0, 2, 3] = 0.8
    acts[0, 1, 2, 0] = 0.7
    acts.requires_grad_()
    labels, two = torch.tensor([[1, 2]]).int(), torch.tensor([2]).int()
    loss = RNNTLoss()(acts, labels, two, two)
    assert loss.item() == pytest.approx(4.495666, rel=1e-6)
    loss.backward()
    assert acts.grad[0, 0, 0, 0].item() == pytest.approx(-0.13116688, rel=2e-3)
    exact = torch.autograd.grad(
        RNNTLoss(fastemit_lambda=0.0)(acts, labels, two, two), acts
    )[0]
    assert exact[0, 0, 0, 0].item() == pytest.approx(-0.13116688, rel=1e-5)
    assert exact[0, 1, 1, 2].item() == pytest.approx(-0.48295835, rel=1e-5)
    assert exact[0, 1, 2, 0].item() == pytest.approx(-0.6925882, rel=1e-5)


def test_the_function_has_the_originals_order_of_arguments():
    acts, *rest = batch(blank=2)
    by_name = rnnt_loss(acts, *rest, blank=2, reduction="sum", fastemit_lambda=0.4)
    torch.testing.assert_close(rnnt_loss(acts, *rest, 2, "sum", 0.4), by_name)
    module = RNNTLoss(blank=2, fastemit_lambda=0.4, reduction="sum")
    torch.testing.assert_close(module(acts, *rest), by_name)
    assert RNNTLoss().fastemit_lambda == 0.001
    assert RNNTLoss().reduction == "mean"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types(dtype):
    """The loss in float32; the gradient as exact as its type, also scaled up."""
    acts, *rest = batch(dtype)
    losses, gradients = expected(acts, *rest)
    loss = rnnt_loss(acts, *rest, reduction="none", fastemit_lambda=0.0)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), losses, rtol=1e-5, atol=1e-5)
    loss.backward(torch.full((4,), 1024.0))
    assert acts.grad.dtype == dtype
    allowed = 4 * max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(
        acts.grad.double(), 1024 * gradients, rtol=allowed, atol=1024 * 1e-6
    )


def test_small_gradients_survive_a_grad_scaler():
    """An occupancy of about 1e-9 is 0 in float16, but not times 2**16."""
    logits = torch.tensor([[10.0, -10.0, 0.0], [10.0, -10.0, 0.0]])
    acts = logits[None, None].repeat(1, 2, 1, 1).half().requires_grad_()
    one, two = torch.ones(1, dtype=torch.int32), torch.full((1,), 2).int()
    rnnt_loss(acts, one[None], two, one, reduction="sum").backward(
        torch.tensor([2.0**16])
    )
    assert (acts.grad[0, 1, 1, 1:] > 0).all()


def test_under_autocast():
    acts, *rest = batch(torch.float32)
    plain = rnnt_loss(acts, *rest)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(rnnt_loss(acts, *rest), plain, rtol=0, atol=0)


def test_a_kept_graph_can_be_used_twice_and_validation_makes_no_gradient():
    acts, *rest = batch()
    loss = rnnt_loss(acts, *rest)
    (first,) = torch.autograd.grad(loss, acts, retain_graph=True)
    (second,) = torch.autograd.grad(loss, acts)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with torch.no_grad():
        assert not rnnt_loss(acts, *rest).requires_grad


def test_a_bad_utterance_spoils_no_other():
    acts, *rest = batch()
    clean = rnnt_loss(acts, *rest, reduction="none").detach()
    with torch.no_grad():
        acts[0, 2, 1, 3] = torch.nan
    loss = rnnt_loss(acts, *rest, reduction="none")
    assert not torch.isfinite(loss[0])
    torch.testing.assert_close(loss[1:].detach(), clean[1:])
    (gradient,) = torch.autograd.grad(loss.sum(), acts)
    assert torch.isfinite(gradient[1:]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": torch.ones(4, 4).long()}, TypeError, "labels must be torch.int32"),
        ({"act_lens": torch.ones(4).long()}, TypeError, "act_lens must be torch.int32"),
        ({"acts": [1.0]}, ValueError, "acts must be a tensor, but is list"),
        (
            {"acts": torch.ones(4, 7, 5, 9).to_sparse()},
            ValueError,
            "acts must be dense",
        ),
        ({"labels": torch.ones(4, 4, device="meta").int()}, ValueError, "meta device"),
        ({"acts": torch.ones(4, 7, 5, 9, device="meta")}, ValueError, "acts is on the"),
        ({"acts": torch.ones(4, 7, 5, 9).int()}, TypeError, "acts must be of a float"),
        ({"acts": torch.ones(4, 7, 5)}, ValueError, r"acts must have 4 axes"),
        ({"acts": torch.ones(4, 8, 5, 9)}, ValueError, r"size\(1\) is 8, but .* is 7"),
        ({"acts": torch.ones(4, 7, 6, 9)}, ValueError, r"size\(2\) is 6, but .* is 5"),
        ({"acts": torch.ones(4, 7, 5, 3)}, ValueError, "token ids must be in"),
        ({"act_lens": torch.tensor([7, 4, 0, 5]).int()}, ValueError, "utterance 2 is"),
        ({"label_lens": torch.tensor([3, 5, 2, 0]).int()}, ValueError, "rance 1 is 5"),
        ({"labels": torch.ones(3, 4).int()}, ValueError, r"labels.size\(0\) is 3"),
        ({"labels": torch.zeros(4, 4).int()}, ValueError, "labels must not be blank"),
        ({"reduction": "average"}, ValueError, "reduction is 'average'"),
    ],
)
def test_bad_input_is_named(change, error, message):
    names = ("acts", "labels", "act_lens", "label_lens")
    arguments = {**dict(zip(names, batch(), strict=True)), **change}
    with pytest.raises(error, match=message):
        rnnt_loss(**arguments)


def test_memory_is_one_copy_of_the_logits_beside_them(monkeypatch):
    """Frames cut into chunks of 64 kB: nothing else of the logits' size is made."""
    monkeypatch.setattr(warprnnt, "_CHUNK_ELEMENTS", 2**14)
    acts, *rest = batch(torch.float32, vocab_size=500, shapes=((60, 9),) * 4)
    size = acts.numel() * 4

    def both():
        acts.grad = None
        rnnt_loss(acts, *rest).backward()

    both()
    acts.grad = None
    assert counted_peak(both) < 1.1 * size
    with torch.no_grad():
        assert counted_peak(lambda: rnnt_loss(acts, *rest)) < 0.1 * size


def python(
    program: str, search_path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in (SWITCH, WARPRNNT_SWITCH)
    }
    if search_path is not None:
        env["PYTHONPATH"] = f"{search_path}{os.pathsep}{env.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


ON = {WARPRNNT_SWITCH: "1"}
WHICH = "import warprnnt_pytorch as w; print(w.__spec__.origin, len(w.__all__))"
OURS = "espnet_sampled_rnnt.warprnnt 2"
# Registers as `import torch` does, without the time that torch takes.
REGISTERED = "import espnet_sampled_rnnt.registration\n"


@pytest.mark.parametrize(
    ("program", "environment", "given"),
    [
        pytest.param("import torch\n", ON, True, id="variable"),
        pytest.param(REGISTERED, {}, False, id="nothing"),
        pytest.param(REGISTERED, {WARPRNNT_SWITCH: "0"}, False, id="0"),
        pytest.param(
            "import espnet_sampled_rnnt as e; e.provide_warprnnt()\n",
            {SWITCH: "0"},
            True,
            id="python",
        ),
        pytest.param(REGISTERED, {SWITCH: "0", **ON}, False, id="autoload-off"),
    ],
)
def test_it_is_there_where_it_was_asked_for(program, environment, given):
    done = python(program + WHICH, **environment)
    if given:
        assert done.stdout.strip() == OURS, done.stderr
    else:
        assert "No module named 'warprnnt_pytorch'" in done.stderr


def test_a_real_one_is_never_shadowed(tmp_path):
    """Installed, or found by a finder that came after ours."""
    (tmp_path / "installed").mkdir()
    real = tmp_path / "installed" / "warprnnt_pytorch.py"
    real.write_text("__all__ = ['of', 'three', 'names']\n")
    done = python(REGISTERED + WHICH, tmp_path / "installed", **ON)
    assert done.stdout.strip() == f"{real} 3", done.stderr
    late = f"""
import sys
from importlib.machinery import PathFinder

class Late:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(tmp_path / "installed")!r}])

sys.meta_path.append(Late())
"""
    done = python(REGISTERED + late + WHICH, **ON)
    assert done.stdout.strip() == f"{real} 3", done.stderr
    # One that is there but broken is not hidden either.
    real.write_text("raise ImportError('undefined symbol')")
    done = python(REGISTERED + WHICH, tmp_path / "installed", **ON)
    assert "ImportError: undefined symbol" in done.stderr


def test_import_torch_stays_cheap_and_processes_started_here_have_it():
    program = """
import sys, subprocess
import torch
ours = {name for name in sys.modules if name.startswith("espnet_sampled_rnnt")}
assert ours == {"espnet_sampled_rnnt", "espnet_sampled_rnnt.registration"}, ours
assert "warprnnt_pytorch" not in sys.modules
import espnet_sampled_rnnt
espnet_sampled_rnnt.provide_warprnnt()
espnet_sampled_rnnt.provide_warprnnt()
assert len([f for f in sys.meta_path if "Warprnnt" in type(f).__name__]) == 1
program = "import espnet_sampled_rnnt.registration; from importlib import util; "
program += "print(util.find_spec('warprnnt_pytorch').origin)"
subprocess.run([sys.executable, "-c", program], check=True)
"""
    done = python(program)
    assert done.stdout.strip() == "espnet_sampled_rnnt.warprnnt", done.stderr


def findings() -> list[tuple[str, str]]:
    return [(finding.level, finding.text) for finding in check_warprnnt()]


def test_the_doctor_says_whether_it_is_on(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "warprnnt_pytorch", raising=False)
    register()
    monkeypatch.setenv(WARPRNNT_SWITCH, "1")
    assert findings() == [("ok", "warprnnt_pytorch is provided by this package")]
    monkeypatch.setenv(WARPRNNT_SWITCH, "yes")
    (level, text), (missing, _) = findings()
    assert (level, missing) == ("note", "info")
    assert text == f"{WARPRNNT_SWITCH}=yes has no effect: 1 turns it on"
    (tmp_path / "warprnnt_pytorch.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(WARPRNNT_SWITCH, "1")
    [(level, text)] = findings()
    assert (level, "is installed" in text, "no effect" in text) == ("ok", True, True)
    (tmp_path / "warprnnt_pytorch.py").unlink()
