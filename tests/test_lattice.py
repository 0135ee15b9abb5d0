"""The contract of the lattice backends, each line of it, and their precision."""

from __future__ import annotations

import sys

import pytest
import torch
from support.batches import relative_error
from support.fake_warp_rnnt import FakeWarpRnnt
from support.reference import (
    lattice_occupancies,
    textbook_occupancies,
)

from espnet_sampled_rnnt.loss.lattice import BACKENDS, Backend, resolve
from espnet_sampled_rnnt.loss.lattice.base import Padding

CPU = torch.device("cpu")
FRAMES = (6, 4, 1, 9, 3)
LABELS = (3, 5, 0, 0, 7)


@pytest.fixture
def fake_warp_rnnt(monkeypatch):
    module = FakeWarpRnnt()
    monkeypatch.setitem(sys.modules, "warp_rnnt", module)
    return module


@pytest.fixture(params=sorted(BACKENDS))
def backend(request, fake_warp_rnnt) -> Backend:
    return BACKENDS[request.param]


def random_arcs(frames=FRAMES, labels=LABELS, scale=1.0, dtype=torch.float32, seed=0):
    """(n, 2) log probabilities, less than log 1 in sum."""
    random = torch.Generator().manual_seed(seed)
    nodes = sum(t * (u + 1) for t, u in zip(frames, labels, strict=True))
    logits = scale * torch.randn(nodes, 5, generator=random, dtype=torch.float64)
    return logits.log_softmax(dim=-1)[:, :2].to(dtype).contiguous()


def by_utterance(values: torch.Tensor, frames=FRAMES, labels=LABELS):
    """(n, 2) as views (T_b, U_b + 1, 2)."""
    counts = [t * (u + 1) for t, u in zip(frames, labels, strict=True)]
    return [
        part.view(t, u + 1, 2)
        for part, t, u in zip(values.split(counts), frames, labels, strict=True)
    ]


def run(backend: Backend, arcs: torch.Tensor, frames=FRAMES, labels=LABELS):
    """Losses, and the occupancies of each utterance."""
    arcs = arcs.clone()
    losses = backend.run(arcs, frames, labels, True)
    return losses, by_utterance(arcs, frames, labels)


def test_losses_and_occupancies_equal_the_recursion(backend):
    arcs = random_arcs()
    losses, occupancies = run(backend, arcs)
    assert losses.shape == (len(FRAMES),)
    assert losses.dtype == torch.float32
    for b, part in enumerate(by_utterance(arcs.double())):
        loss, occupancy = lattice_occupancies(part)
        assert float(losses[b]) == pytest.approx(float(loss), rel=1e-6)
        torch.testing.assert_close(
            occupancies[b].double(), occupancy, rtol=1e-5, atol=1e-6
        )


def test_without_occupancies_the_losses_are_the_same(backend):
    arcs = random_arcs()
    losses = backend.run(arcs.clone(), FRAMES, LABELS, False)
    assert not losses.requires_grad
    assert torch.equal(losses, run(backend, arcs)[0])


@pytest.mark.parametrize("name", ["numba", "reference"])
def test_float64_stays_float64(name):
    arcs = random_arcs(dtype=torch.float64)
    losses, occupancies = run(BACKENDS[name], arcs)
    assert losses.dtype == torch.float64
    for b, part in enumerate(by_utterance(arcs)):
        loss, occupancy = lattice_occupancies(part)
        torch.testing.assert_close(losses[b], loss, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(occupancies[b], occupancy, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
@pytest.mark.parametrize(("frames", "labels"), [((40, 25), (13, 20)), ((4,), (70,))])
def test_errs_no_more_than_plain_float32(backend, scale, frames, labels):
    """The naive error: the textbook's alpha, beta and occupancies in float32."""
    arcs = random_arcs(frames, labels, scale)
    losses, occupancies = run(backend, arcs, frames, labels)
    for b, part in enumerate(by_utterance(arcs, frames, labels)):
        naive, exact = textbook_occupancies(part), lattice_occupancies(part.double())
        for mine, plain, truth in zip(
            (losses[b], occupancies[b]), naive, exact, strict=True
        ):
            bound = 2.0 * relative_error(plain, truth) + 3e-7
            assert relative_error(mine, truth) <= bound


def test_the_textbook_equals_the_recursion():
    for part in by_utterance(random_arcs(dtype=torch.float64)):
        torch.testing.assert_close(
            textbook_occupancies(part), lattice_occupancies(part)
        )


@pytest.mark.parametrize("scale", [3.0, 30.0])
def test_numba_errs_less_than_the_textbook(scale):
    """Its beta is float64 and its occupancies a flow: long lattices lose nothing."""
    arcs = random_arcs((120,), (40,), scale)
    losses, (occupancy,) = run(BACKENDS["numba"], arcs, (120,), (40,))
    loss, exact = lattice_occupancies(arcs.double().view(120, 41, 2))
    assert relative_error(losses[0], loss) < 1e-7
    assert relative_error(occupancy, exact) < 1e-5
    _, naive = textbook_occupancies(arcs.view(120, 41, 2))
    assert relative_error(occupancy, exact) < 0.5 * relative_error(naive, exact)


def test_occupancies_are_a_flow_of_mass_one(backend):
    _, occupancies = run(backend, random_arcs())
    for part in occupancies:
        blank, label = part.double().unbind(-1)
        into = torch.zeros(blank.size(0) + 1, blank.size(1) + 1, dtype=torch.float64)
        into[0, 0] = 1.0
        into[1:, :-1] += blank
        into[:-1, 1:] += label
        torch.testing.assert_close(blank + label, into[:-1, :-1], rtol=1e-5, atol=1e-6)
        assert float(blank[-1, -1]) == pytest.approx(1.0, abs=1e-6)


def test_the_label_column_at_the_last_position_is_never_read(backend):
    arcs = random_arcs()
    expected, wanted = run(backend, arcs)
    for value in (torch.nan, torch.inf, -torch.inf, 1e30):
        other = arcs.clone()
        for part in by_utterance(other):
            part[:, -1, 1] = value
        losses, occupancies = run(backend, other)
        assert torch.equal(losses, expected)
        for mine, theirs in zip(occupancies, wanted, strict=True):
            assert torch.equal(mine, theirs)
            assert (mine[:, -1, 1] == 0).all()


def test_blanks_out_of_the_last_frame_have_no_mass_but_the_final_one(backend):
    _, occupancies = run(backend, random_arcs())
    for part in occupancies:
        assert (part[-1, :-1, 0] == 0).all()


def test_no_path_takes_an_arc_of_minus_infinity(backend):
    arcs = random_arcs()
    parts = by_utterance(arcs)
    parts[0][2, 1, 0] = -torch.inf
    parts[0][3, 0, 1] = -torch.inf
    parts[1][:2, 2, 1] = -torch.inf
    parts[3][0, 0, 1] = -torch.inf  # label column at the last position
    losses, occupancies = run(backend, arcs)
    for b, part in enumerate(parts):
        # A log probability this low adds nothing, and has a gradient.
        loss, occupancy = lattice_occupancies(part.double().clamp(min=-1e4))
        assert float(losses[b]) == pytest.approx(float(loss), rel=1e-6)
        torch.testing.assert_close(
            occupancies[b].double(), occupancy, rtol=1e-5, atol=1e-6
        )
        assert (occupancies[b][part == -torch.inf] == 0).all()


def test_no_path_at_all_is_an_infinite_loss(backend):
    arcs = random_arcs()
    expected, wanted = run(backend, arcs)
    parts = by_utterance(arcs)
    parts[0][:, 1, 1] = -torch.inf  # the second label at no frame
    parts[1][-1, -1, 0] = -torch.inf  # the final blank
    parts[2][:] = -torch.inf
    losses, occupancies = run(backend, arcs)
    assert losses.tolist()[:3] == [torch.inf] * 3
    assert torch.equal(losses[3:], expected[3:])
    for b in range(3):
        assert (occupancies[b] == 0).all()
    for b in (3, 4):
        assert torch.equal(occupancies[b], wanted[b])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("utterance", range(len(FRAMES)))
@pytest.mark.parametrize("place", ["first", "last", "middle"])
def test_a_nonfinite_utterance_leaves_the_others_untouched(
    backend, value, utterance, place
):
    arcs = random_arcs()
    expected, wanted = run(backend, arcs)
    part = by_utterance(arcs)[utterance]
    t = {"first": 0, "last": -1, "middle": part.size(0) // 2}[place]
    u = {"first": 0, "last": -1, "middle": part.size(1) // 2}[place]
    part[t, u, 0] = value
    if t == -1 or part.size(0) == 1:
        part[-1, -1, 0] = value
    losses, occupancies = run(backend, arcs)
    assert not torch.isfinite(losses[utterance])
    for b in range(len(FRAMES)):
        if b == utterance:
            assert (occupancies[b] == 0).all()
        else:
            assert losses[b] == expected[b]
            assert torch.equal(occupancies[b], wanted[b])


@pytest.mark.parametrize(
    ("frames", "labels"),
    [((1,), (0,)), ((1,), (4,)), ((5,), (0,)), ((1, 1), (0, 0)), ((1, 1), (1, 0))],
)
def test_smallest_lattices(backend, frames, labels):
    arcs = random_arcs(frames, labels)
    losses, occupancies = run(backend, arcs, frames, labels)
    for b, part in enumerate(by_utterance(arcs.double(), frames, labels)):
        loss, occupancy = lattice_occupancies(part)
        assert float(losses[b]) == pytest.approx(float(loss), rel=1e-6)
        torch.testing.assert_close(
            occupancies[b].double(), occupancy, rtol=1e-5, atol=1e-6
        )


def test_certain_paths_have_loss_zero(backend):
    """log 1 on one path, log 0 beside it."""
    arcs = torch.full((3 * 3, 2), -torch.inf)
    path = arcs.view(3, 3, 2)
    path[0, 0, 1] = path[0, 1, 0] = path[1, 1, 1] = path[1, 2, 0] = 0.0
    path[2, 2, 0] = 0.0
    taken = (path == 0.0).float()
    losses, (occupancy,) = run(backend, arcs, (3,), (2,))
    assert float(losses) == 0.0
    assert torch.equal(occupancy, taken)


@pytest.mark.parametrize("value", [-0.34, -0.36, -5.0])
def test_long_lattices_neither_underflow_nor_overflow(backend, value):
    """One path of 2,500 arcs, each of a mantissa near 0.71 or 1.41 of a power of 2."""
    arcs = torch.full((2500, 2), value)
    losses, (occupancy,) = run(backend, arcs, (2500,), (0,))
    assert losses.item() == pytest.approx(-2500 * value, rel=1e-4)
    # In float32 the naive sums lose about eps times the loss.
    assert torch.isfinite(occupancy).all()
    assert float((occupancy[..., 0] - 1.0).abs().max()) < 1e-6 * 2500 * abs(value)


def test_many_utterances_in_threads():
    """More nodes than one thread gets, utterances of unlike size."""
    frames, labels = (300, 5, 200, 120, 1) * 2, (80, 3, 90, 0, 60) * 2
    arcs = random_arcs(frames, labels)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        losses, occupancies = run(BACKENDS["numba"], arcs, frames, labels)
        torch.set_num_threads(1)
        alone, single = run(BACKENDS["numba"], arcs, frames, labels)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(losses, alone)
    for mine, other in zip(occupancies, single, strict=True):
        assert torch.equal(mine, other)
    expected, _ = run(BACKENDS["reference"], arcs.double(), frames, labels)
    assert relative_error(losses, expected) < 1e-6


def test_padding_moves_there_and_back():
    arcs = random_arcs()
    padding = Padding(FRAMES, LABELS, CPU)
    padded = padding.pad(arcs, -7.0)
    assert padded.shape == (5, 9, 8, 2)
    for b, part in enumerate(by_utterance(arcs)):
        t, u, _ = part.shape
        assert torch.equal(padded[b, :t, :u, 0], part[..., 0])
        assert torch.equal(padded[b, :t, : u - 1, 1], part[:, :-1, 1])
        # The label arcs that lead nowhere may hold anything.
        assert (padded[b, :t, u - 1, 1] == -7.0).all()
        assert (padded[b, t:] == -7.0).all()
        assert (padded[b, :, u:] == -7.0).all()
    back = torch.empty_like(arcs)
    padding.unpad_into(padded, back)
    for part in by_utterance(arcs):
        part[:, -1, 1] = -7.0
    assert torch.equal(back, arcs)


# ---- the registry


def test_auto_takes_the_fastest_of_the_cpu():
    for dtype in (torch.float32, torch.float64):
        assert resolve("auto", CPU, dtype).name == "numba"


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_auto_on_an_accelerator_never_takes_numba(device, monkeypatch):
    monkeypatch.delitem(sys.modules, "warp_rnnt", raising=False)
    name = resolve("auto", torch.device(device), torch.float32).name
    assert name == ("torchaudio" if device == "cuda" else "reference")
    assert resolve("auto", torch.device(device), torch.float64).name == "reference"


def test_a_backend_that_cannot_run_says_why_and_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    cuda = torch.device("cuda")
    for name, device, dtype, words in (
        ("nonsense", CPU, torch.float32, "known: auto, numba"),
        ("numba", cuda, torch.float32, "choose auto"),
        ("warp_rnnt", CPU, torch.float32, "runs on CUDA"),
        ("warp_rnnt", cuda, torch.float32, "pip install warp-rnnt"),
        ("torchaudio", CPU, torch.float64, "float64"),
        ("torchaudio", CPU, torch.float32, "pip install torchaudio"),
        ("torchaudio", torch.device("xpu"), torch.float32, "not on xpu"),
    ):
        with pytest.raises(ValueError, match=f"backend '{name}'.*{words}"):
            resolve(name, device, dtype)


def test_a_library_that_does_not_load_is_named(monkeypatch):
    def broken():
        raise OSError("undefined symbol: nonsense")

    monkeypatch.setattr(
        "espnet_sampled_rnnt.loss.lattice.torchaudio._rnnt_loss", broken
    )
    with pytest.raises(ValueError, match=r"torchaudio.*undefined symbol: nonsense"):
        resolve("torchaudio", CPU)


def test_warp_rnnt_is_called(fake_warp_rnnt):
    reason = BACKENDS["warp_rnnt"].unavailable(torch.device("cuda"))
    assert reason is None
    run(BACKENDS["warp_rnnt"], random_arcs())
    assert fake_warp_rnnt.calls == 1


@pytest.mark.parametrize("backend", ["numba", "reference", "torchaudio"])
@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_occupancies_of_a_large_loss_are_probabilities(backend, scale):
    """Float32 cancellation once made occupancies of 1e13 of a loss of 1e8."""
    frames, labels = [30, 12], [9, 4]
    nodes = sum(t * (u + 1) for t, u in zip(frames, labels, strict=True))
    generator = torch.Generator().manual_seed(5)
    arcs = -scale * torch.rand(nodes, 2, generator=generator)
    expected = arcs.double()
    BACKENDS["numba"].run(expected, frames, labels, True)
    BACKENDS[backend].run(arcs, frames, labels, True)
    assert arcs.min() >= 0.0
    assert arcs.max() <= 1.0 + 1e-6
    error = (arcs - expected).abs().max()
    assert error < (0.2 if backend == "torchaudio" else 1e-3)
