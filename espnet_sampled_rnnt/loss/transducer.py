"""The public loss: its formulas, its checks, and the way to the two passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from espnet_sampled_rnnt.checks import (
    check_integer_tensor,
    check_is_plain_tensor,
    check_lengths,
    check_same_device,
    check_same_size,
    check_targets,
)
from espnet_sampled_rnnt.loss.lattice import resolve
from espnet_sampled_rnnt.loss.nodes import NodeSet
from espnet_sampled_rnnt.loss.options import LossOptions
from espnet_sampled_rnnt.loss.output import OutputColumns, make_arc_columns
from espnet_sampled_rnnt.loss.passes import Problem
from espnet_sampled_rnnt.loss.two_pass import TwoPass
from espnet_sampled_rnnt.vocabulary import SampledVocabulary

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def transducer_loss(
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    enc_lengths: Tensor,
    target_lengths: Tensor,
    vocabulary: SampledVocabulary | None = None,
    correction: float = 0.0,
    activation: str | Callable[[Tensor], Tensor] = "tanh",
    blank: int = 0,
    reduction: str = "mean",
    fastemit_lambda: float = 0.0,
    backend: str = "auto",
    chunk_bytes: int | None = None,
) -> Tensor:
    """RNN-Transducer loss with a full or a sampled softmax, in little memory.

    At node (t, u) of utterance b, with h = act(enc[b, t] + dec[b, u]), the logit of
    token k is z_k = w_k . h + c_k, and

        log p(k | t, u) = z_k - log sum_j exp(z_j - a log pi_j),

    the sum over the tokens of the utterance's vocabulary: all V of them where
    ``vocabulary`` is None, else its ``token_ids``; pi_j is the probability that
    token j had of being among them, and a is the strength ``correction``
    (Horvitz-Thompson). The loss is minus the log probability of all alignments of
    the targets (A. Graves, arXiv 1211.3711). Method: J. Lee, L. Lee, S. Watanabe,
    arXiv 2203.16868.

    No tensor with an axis of nodes by V, by K or by J is ever whole: memory is that
    of the gradients and a workspace of ``chunk_bytes``. Everything is computed in
    float32, in float64 where an input is float64. Padding is never read. An
    utterance whose loss is not finite gets that loss and a gradient of zero; no
    other utterance is touched.

    Args:
        enc: (B, T, J) encoder output, projected to the joint width.
        dec: (B, U + 1, J) prediction network output, projected; position 0 is
            before the first label.
        weight: (V, J) of the output layer.
        bias: (V,) of the output layer, or None.
        targets: (B, U) int labels, blank not among them.
        enc_lengths: (B,) int, T_b in [1, T].
        target_lengths: (B,) int, U_b in [0, U].
        vocabulary: the tokens of each softmax; None for all, which is exact.
        correction: strength a in [0, 1]; without a vocabulary it has no effect.
        activation: "tanh", "relu", "identity" or another name of ESPnet's joint
            network, or any elementwise callable.
        blank: token id of blank.
        reduction: "none" gives (B,), "sum" and "mean" a scalar; the mean is over
            utterances.
        fastemit_lambda: FastEmit weight (arXiv 2010.11148): the gradient of label
            arcs is scaled by 1 + lambda, the loss itself is unchanged, as in
            warp-rnnt.
        backend: of the lattice: "auto", "numba", "torchaudio", "warp_rnnt" or
            "reference".
        chunk_bytes: size of the workspace; None for 12 MiB on a CPU and 512 MiB on
            an accelerator.

    Returns:
        The loss in nats, float32 (float64 where an input is float64), >= 0.

    Raises:
        ValueError: naming the argument, the utterance and both values: shapes,
            types or devices that disagree, a target outside [0, V) or equal to
            blank, a length outside its axis, a vocabulary that lacks a label or
            repeats a token, an option out of range, a backend that cannot run.
        RuntimeError: on double backward, which is not supported.
    """
    options = LossOptions.checked(
        correction, activation, blank, reduction, fastemit_lambda, backend, chunk_bytes
    )
    problem = make_problem(
        enc,
        dec,
        weight,
        bias,
        targets,
        enc_lengths,
        target_lengths,
        vocabulary,
        options,
    )
    want = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (enc, dec, weight, bias)
    )
    return TwoPass.apply(enc, dec, weight, bias, problem, want)


def make_problem(
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    enc_lengths: Tensor,
    target_lengths: Tensor,
    vocabulary: SampledVocabulary | None,
    options: LossOptions,
) -> Problem:
    """Check the arguments of :func:`transducer_loss` and make the passes' task."""
    _check_tensors(enc, dec, weight, bias, targets, enc_lengths, target_lengths)
    frames = check_lengths("enc_lengths", enc_lengths, enc.size(0), enc.size(1), 1)
    labels = check_lengths(
        "target_lengths", target_lengths, enc.size(0), targets.size(1), 0
    )
    host_targets = check_targets(targets, labels, weight.size(0), options.blank)
    floats = [x for x in (enc, dec, weight, bias) if x is not None]
    wide = any(x.dtype == torch.float64 for x in floats)
    dtype = torch.float64 if wide else torch.float32
    if vocabulary is None:
        columns = OutputColumns(size=weight.size(0), shared=True)
        local, blank_columns = host_targets, np.full(len(frames), options.blank)
    else:
        columns, local, blank_columns = _columns_of(
            vocabulary, host_targets, labels, enc.device, weight.size(0), options
        )
    return Problem(
        nodes=NodeSet(tuple(frames.tolist()), tuple(labels.tolist())),
        columns=columns,
        arc_columns=make_arc_columns(local, labels, blank_columns).to(enc.device),
        options=options,
        backend=resolve(options.backend, enc.device, dtype),
        dtype=dtype,
        gather=enc.device.type != "cpu",
    )


def _check_tensors(
    enc: Tensor,
    dec: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    enc_lengths: Tensor,
    target_lengths: Tensor,
) -> None:
    expected = {"enc": (enc, 3), "dec": (dec, 3), "weight": (weight, 2)}
    if bias is not None:
        expected["bias"] = (bias, 1)
    for name, (tensor, axes) in expected.items():
        check_is_plain_tensor(name, tensor)
        if tensor.dtype not in _FLOATS:
            raise ValueError(
                f"{name} must be float64, float32, bfloat16 or float16, "
                f"but is {tensor.dtype}"
            )
        if tensor.dim() != axes:
            raise ValueError(
                f"{name} must have {axes} axes, but has shape {tuple(tensor.shape)}"
            )
    check_integer_tensor("targets", targets, axes=2)
    check_integer_tensor("enc_lengths", enc_lengths, axes=1)
    check_integer_tensor("target_lengths", target_lengths, axes=1)

    batch, _, joint = enc.shape
    if batch == 0:
        raise ValueError("enc has 0 utterances, but a batch needs at least 1")
    check_same_size("dec.size(0)", dec.size(0), "enc.size(0), the utterances,", batch)
    check_same_size(
        "targets.size(0)", targets.size(0), "enc.size(0), the utterances,", batch
    )
    check_same_size("dec.size(2)", dec.size(2), "enc.size(2), the joint width,", joint)
    check_same_size(
        "weight.size(1)", weight.size(1), "enc.size(2), the joint width,", joint
    )
    check_same_size(
        "dec.size(1)", dec.size(1), "targets.size(1) + 1", targets.size(1) + 1
    )
    if bias is not None:
        check_same_size("bias.size(0)", bias.size(0), "weight.size(0)", weight.size(0))
    tensors = {"enc": enc, "dec": dec, "weight": weight, "targets": targets}
    if bias is not None:
        tensors["bias"] = bias
    # Lengths may stay in host memory, where they are needed.
    for name, lengths in (
        ("enc_lengths", enc_lengths),
        ("target_lengths", target_lengths),
    ):
        if lengths.device.type != "cpu":
            tensors[name] = lengths
    check_same_device(**tensors)


def _columns_of(
    vocabulary: SampledVocabulary,
    host_targets: np.ndarray,
    labels: np.ndarray,
    device: torch.device,
    vocab_size: int,
    options: LossOptions,
) -> tuple[OutputColumns, np.ndarray, np.ndarray]:
    """The output columns, the targets as columns (B, U), and blank's column (B,)."""
    if not isinstance(vocabulary, SampledVocabulary):
        raise ValueError(
            f"vocabulary must be None or a SampledVocabulary, "
            f"but is {type(vocabulary).__name__}"
        )
    check_same_device(enc=torch.empty(0, device=device), vocabulary=vocabulary.mask)
    if vocabulary.targets.shape != host_targets.shape:
        raise ValueError(
            f"vocabulary.targets has shape {tuple(vocabulary.targets.shape)}, "
            f"but targets has {host_targets.shape}"
        )
    token_ids, mask, log_inclusion = (
        vocabulary.token_ids,
        vocabulary.mask,
        vocabulary.log_inclusion,
    )
    host = [x.detach().cpu().numpy() for x in (token_ids, mask, vocabulary.targets)]
    host_log = log_inclusion.detach().double().cpu().numpy()
    blank_columns = _check_vocabulary(
        *host, host_log, host_targets, labels, vocab_size, options.blank
    )
    host_ids, host_mask, local = host
    shared = all(
        bool((array == array[:1]).all()) for array in (host_ids, host_mask, host_log)
    )
    members = slice(0, 1) if shared else slice(None)
    offset = None
    corrected = options.correction > 0.0 and bool((host_log[host_mask] != 0).any())
    if corrected:
        offset = log_inclusion[members].double() * -options.correction
    if not host_mask[members].all():
        if offset is None:
            offset = torch.zeros(
                mask[members].shape, dtype=torch.float64, device=device
            )
        offset = offset.masked_fill(~mask[members], -torch.inf)
    # Columns behind the last token of an utterance are not computed.
    reversed_mask = host_mask[:, ::-1]
    sizes = host_mask.shape[1] - reversed_mask.argmax(axis=1)
    rows, row_ids = _accumulator_rows(
        np.where(host_mask, host_ids, 0)[members], vocab_size
    )
    columns = OutputColumns(
        size=host_mask.shape[1],
        shared=shared,
        token_ids=token_ids[members].masked_fill(~mask[members], 0),
        rows=None if rows is None else torch.from_numpy(rows).to(device),
        row_ids=None if row_ids is None else torch.from_numpy(row_ids).to(device),
        offset=offset,
        sizes=tuple(sizes.tolist()),
    )
    return columns, local, blank_columns


def _accumulator_rows(
    token_ids: np.ndarray, vocab_size: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Rows of the gradient's accumulator for ``token_ids``, and their tokens.

    One vocabulary for all: its own order. Else the tokens that occur, or where that
    saves little, all of them.
    """
    if len(token_ids) == 1:
        return None, token_ids[0]
    occurs = np.zeros(vocab_size, dtype=bool)
    occurs[token_ids] = True
    row_ids = np.flatnonzero(occurs)
    if 2 * len(row_ids) > vocab_size:
        return token_ids, None
    row_of = np.empty(vocab_size, dtype=np.int64)
    row_of[row_ids] = np.arange(len(row_ids))
    return row_of[token_ids], row_ids


def _check_vocabulary(
    token_ids: np.ndarray,
    mask: np.ndarray,
    local: np.ndarray,
    log_inclusion: np.ndarray,
    targets: np.ndarray,
    labels: np.ndarray,
    vocab_size: int,
    blank: int,
) -> np.ndarray:
    """Check the contents of a vocabulary; gives blank's column, (B,)."""
    outside = mask & ((token_ids < 0) | (token_ids >= vocab_size))
    if outside.any():
        b, k = (int(x[0]) for x in np.nonzero(outside))
        raise ValueError(
            f"vocabulary.token_ids of utterance {b} holds {token_ids[b, k]}, but token "
            f"ids must be in [0, {vocab_size}), the rows of weight"
        )
    ordered = np.sort(np.where(mask, token_ids, -1 - np.arange(mask.shape[1])), axis=1)
    repeated = ordered[:, 1:] == ordered[:, :-1]
    if repeated.any():
        b, k = (int(x[0]) for x in np.nonzero(repeated))
        raise ValueError(
            f"vocabulary.token_ids of utterance {b} holds {ordered[b, k]} twice"
        )
    wrong = mask & ~((log_inclusion <= 0) & np.isfinite(log_inclusion))
    if wrong.any():
        b, k = (int(x[0]) for x in np.nonzero(wrong))
        raise ValueError(
            f"vocabulary.log_inclusion of utterance {b} is {log_inclusion[b, k]} for "
            f"token {token_ids[b, k]}, but must be finite and at most 0"
        )
    is_blank = mask & (token_ids == blank)
    lacks = ~is_blank.any(axis=1)
    if lacks.any():
        raise ValueError(
            f"vocabulary.token_ids of utterance {int(np.flatnonzero(lacks)[0])} "
            f"lacks blank, {blank}"
        )
    valid = np.arange(targets.shape[1])[None, :] < labels[:, None]
    index = np.where(valid, local, 0)
    in_range = (index >= 0) & (index < token_ids.shape[1])
    index = np.where(in_range, index, 0)
    names = np.take_along_axis(token_ids, index, axis=1)
    masked_in = np.take_along_axis(mask, index, axis=1)
    wrong = valid & ~(in_range & masked_in & (names == targets))
    if wrong.any():
        b, u = (int(x[0]) for x in np.nonzero(wrong))
        raise ValueError(
            f"vocabulary.targets of utterance {b} is {local[b, u]} at position {u}, "
            f"which is not the place of target {targets[b, u]} in its token_ids"
        )
    blank_columns = is_blank.argmax(axis=1)
    # The formula corrects the normaliser alone: what it divides must be certain.
    certain = is_blank
    np.put_along_axis(certain, np.where(valid, index, blank_columns[:, None]), True, 1)
    uncertain = certain & (log_inclusion != 0)
    if uncertain.any():
        b, k = (int(x[0]) for x in np.nonzero(uncertain))
        raise ValueError(
            f"vocabulary.log_inclusion of utterance {b} is {log_inclusion[b, k]} for "
            f"token {token_ids[b, k]}, which is blank or a label, but must be 0"
        )
    return blank_columns
