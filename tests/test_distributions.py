"""What negatives are drawn from."""

import pytest
import torch

from espnet_sampled_rnnt.distributions import (
    add_counts,
    average,
    mean_posterior,
    mix_with_uniform,
    read_counts,
)


def _log_probs(frames: int, batch: int, vocab_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(frames, batch, vocab_size, generator=generator).log_softmax(-1)


def test_mean_posterior_is_the_mean_over_valid_frames():
    log_probs = _log_probs(37, 3, 5)  # more frames than are taken at once
    lengths = torch.tensor([37, 20, 1])
    for utterance, length in enumerate(lengths.tolist()):
        log_probs[length:, utterance] = float("nan")  # padding is never read
    found = mean_posterior(log_probs, lengths)
    for utterance, length in enumerate(lengths.tolist()):
        expected = log_probs[:length, utterance].exp().mean(dim=0)
        torch.testing.assert_close(found[utterance], expected)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(3))


def test_mean_posterior_has_no_gradient_and_is_float32():
    log_probs = _log_probs(4, 2, 5).half().requires_grad_()
    found = mean_posterior(log_probs, torch.tensor([4, 3]))
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_no_valid_frame_gives_no_mass():
    found = mean_posterior(_log_probs(4, 1, 5), torch.tensor([0]))
    assert found.eq(0).all()


def test_mix_gives_every_token_a_floor():
    mixed = mix_with_uniform(torch.tensor([[8.0, 0.0, 0.0, 0.0]]), 0.2)
    torch.testing.assert_close(mixed, torch.tensor([[0.85, 0.05, 0.05, 0.05]]))
    torch.testing.assert_close(
        mix_with_uniform(torch.tensor([1.0, 3.0]), 0.0), torch.tensor([0.25, 0.75])
    )


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_unusable_rows_become_uniform(row):
    mixed = mix_with_uniform(torch.tensor([row, [1.0, 0.0]]), 0.1)
    torch.testing.assert_close(mixed, torch.tensor([[0.5, 0.5], [0.95, 0.05]]))


def test_average_of_layers():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    torch.testing.assert_close(average([a, b]), torch.tensor([[0.5, 0.5]]))


def test_counts_of_labels_leave_padding_out():
    counts = torch.zeros(4, dtype=torch.float64)
    targets = torch.tensor([[1, 2, 2], [3, 0, 0]])
    add_counts(counts, targets, torch.tensor([3, 1]))
    assert counts.tolist() == [0, 1, 2, 1]


def test_counts_file(tmp_path):
    path = tmp_path / "counts"
    path.write_text("a 3\n\nb 0.5\n", encoding="utf-8")
    counts = read_counts(path, ["<blank>", "a", "b", "c"])
    assert counts.tolist() == [0, 3, 0.5, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 3\nz 1\n", "line 2: 'z' is not in the token list"),
        ("a x\n", "line 1: 'x' is no count"),
        ("a -1\n", "line 1: '-1' is no count"),
        ("a nan\n", "line 1: 'nan' is no count"),
        ("a 0\n", "no token has a count above 0"),
        ("3\n", "line 1: '3' is no token and count"),
    ],
)
def test_a_bad_counts_file_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "counts"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_counts(path, ["a", "b"])


def test_a_missing_counts_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"counts file .*nowhere: No such file"):
        read_counts(tmp_path / "nowhere", ["a"])


def test_counts_file_with_tabs_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "counts"
    path.write_text("\ufeffa\t4\nb  3\n", encoding="utf-8")
    assert read_counts(path, ["a", "b"]).tolist() == [4, 3]


def test_a_counts_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "counts"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="counts: not UTF-8"):
        read_counts(path, ["a"])
