"""Padding, integer types and memory layouts of the inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.batches import Batch, gradients, make_batch, options_of, relative_error
from support.reference import reference_losses

MODES = pytest.mark.parametrize("mode", ["full", "example", "batch"])


@MODES
@pytest.mark.parametrize("chunk_bytes", [1, 2000, None])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_padding_is_never_read(mode, chunk_bytes, reduction):
    """Field report pytorch/audio 2196: lengths shorter than the padded axes."""
    tight = make_batch(garbage=False, vocab_size=20)
    loose = make_batch(vocab_size=20, extra_frames=3, extra_labels=4)
    frames, positions = tight.enc.size(1), tight.dec.size(1)
    loose.enc.data[:, :frames] = torch.where(
        loose.enc[:, :frames].isnan(), torch.nan, tight.enc.detach()
    )
    loose.dec.data[:, :positions] = torch.where(
        loose.dec[:, :positions].isnan(), torch.nan, tight.dec.detach()
    )
    loose.weight.data.copy_(tight.weight)
    loose.bias.data.copy_(tight.bias)
    behind = torch.arange(positions - 1) >= tight.target_lengths[:, None]
    loose.targets[:, : positions - 1] = tight.targets.masked_fill(behind, 10**12)
    found, wanted = (
        x.loss(reduction=reduction, chunk_bytes=chunk_bytes, **options_of(x, mode))
        for x in (loose, tight)
    )
    assert torch.equal(found, wanted)
    mine, other = gradients(found, loose), gradients(wanted, tight)
    assert torch.equal(mine[0][:, :frames], other[0])
    assert torch.equal(mine[1][:, :positions], other[1])
    assert (mine[0][:, frames:] == 0).all()
    assert (mine[1][:, positions:] == 0).all()
    for index in (2, 3):
        assert torch.equal(mine[index], other[index])


@MODES
@pytest.mark.parametrize("lengths", [torch.int32, torch.int64, torch.int16], ids=str)
@pytest.mark.parametrize("targets", [torch.int32, torch.int64, torch.int16], ids=str)
def test_integers_of_any_type(mode, lengths, targets):
    batch = make_batch(vocab_size=20, garbage=False)
    other = replace(
        batch,
        targets=batch.targets.to(targets),
        enc_lengths=batch.enc_lengths.to(lengths),
        target_lengths=batch.target_lengths.to(lengths),
    )
    options = options_of(batch, mode)
    assert torch.equal(other.loss(**options_of(other, mode)), batch.loss(**options))


@MODES
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_inputs_need_not_be_contiguous(mode, reduction):
    batch = make_batch(vocab_size=20, extra_frames=1)
    strided = Batch(
        batch.enc.detach().transpose(0, 1).contiguous().transpose(0, 1),
        batch.dec.detach().repeat_interleave(2, dim=2)[..., ::2],
        batch.weight.detach().t().contiguous().t(),
        batch.bias.detach().repeat_interleave(3)[::3],
        batch.targets.t().contiguous().t(),
        batch.enc_lengths.repeat_interleave(2)[::2],
        batch.target_lengths.repeat_interleave(2)[::2],
    )
    for value in (*strided.floats, strided.targets, strided.enc_lengths):
        assert not value.is_contiguous()
    for value in strided.floats:
        value.requires_grad_()
    options = {"reduction": reduction, **options_of(batch, mode)}
    losses = [x.loss(**options) for x in (batch, strided)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(
        *(gradients(x, y) for x, y in zip(losses, (batch, strided), strict=True))
    )


@MODES
def test_one_encoder_output_for_many_targets(mode):
    """An expanded axis, whose stride is 0."""
    batch = make_batch((5, 5, 5), (3, 1, 2), vocab_size=20, garbage=False)
    one = batch.enc.detach()[:1].clone().requires_grad_()
    shared = replace(batch, enc=one.expand(3, -1, -1))
    copied = replace(batch.copy(), enc=one.detach().repeat(3, 1, 1).requires_grad_())
    options = options_of(batch, mode)
    losses = [x.loss(**options) for x in (shared, copied)]
    torch.testing.assert_close(*losses)
    (found,) = torch.autograd.grad(losses[0], one)
    (wanted,) = torch.autograd.grad(losses[1], copied.enc)
    torch.testing.assert_close(found, wanted.sum(dim=0, keepdim=True))


def test_a_batch_without_any_label():
    for axis in (0, 2):
        batch = make_batch((3, 2), (0, 0), extra_labels=axis, dtype=torch.float64)
        expected = reference_losses(*batch.arguments).mean()
        for backend in ("auto", "reference"):
            loss = batch.loss(backend=backend)
            torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients(loss, batch), gradients(expected, batch))
        single = batch.copy(dtype=torch.float32)
        assert relative_error(single.loss(backend="torchaudio"), expected) < 1e-6
