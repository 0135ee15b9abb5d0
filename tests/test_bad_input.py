"""Bad input: a ValueError that names the argument, the utterance and both values."""

from __future__ import annotations

import pytest
import torch
from support.bad_input import NAMES, V, arguments, refused

from espnet_sampled_rnnt import sample_vocabulary, transducer_loss


def changed(name: str, place: tuple, value: int) -> dict:
    tensor = arguments()[name].detach().clone()
    tensor[place] = value
    return {name: tensor}


def test_the_arguments_are_good_as_they_stand():
    assert torch.isfinite(transducer_loss(**arguments()))


# ---- targets and lengths, in the loss and in the draw


def draw_refused(pattern: str, **changes) -> None:
    given = {
        "targets": arguments()["targets"],
        "target_lengths": arguments()["target_lengths"],
        "vocab_size": V,
        "num_samples": 2,
    }
    for scope in ("example", "batch"):
        with pytest.raises(ValueError, match=pattern):
            sample_vocabulary(**{"scope": scope, **given, **changes})


@pytest.mark.parametrize("value", [V, V + 5, -1, -(10**12)])
def test_target_outside_the_vocabulary(value):
    """Field report icefall 167: one id = V ended in an index error deep inside."""
    pattern = rf"targets of utterance 1 holds {value} at position 3.*\[0, 9\)"
    refused(pattern, **changed("targets", (1, 3), value))
    draw_refused(pattern, **changed("targets", (1, 3), value))


@pytest.mark.parametrize("blank", [0, 4, 8])
def test_target_equal_to_blank(blank):
    targets = torch.full((3, 4), 3)
    targets[1, 2] = blank
    pattern = rf"targets of utterance 1 holds {blank} at position 2.*blank \({blank}\)"
    refused(pattern, targets=targets, blank=blank)
    draw_refused(pattern, targets=targets, blank=blank)


def test_behind_its_length_a_target_may_be_anything():
    targets = arguments()["targets"].clone()
    targets[0, 2:] = V
    targets[2] = 0
    assert torch.isfinite(transducer_loss(**{**arguments(), "targets": targets}))


@pytest.mark.parametrize("value", [6, 0, -1])
def test_frames_outside_their_axis(value):
    refused(
        rf"enc_lengths of utterance 2 is {value}, .*\[1, 5\]",
        **changed("enc_lengths", (2,), value),
    )


@pytest.mark.parametrize("value", [5, -1])
def test_labels_outside_their_axis(value):
    pattern = rf"target_lengths of utterance 0 is {value}, .*\[0, 4\]"
    refused(pattern, **changed("target_lengths", (0,), value))
    draw_refused(pattern, **changed("target_lengths", (0,), value))


# ---- shapes


SHAPES = {
    "enc": [(5, 6), (3, 5, 6, 1)],
    "dec": [(5, 6), (3, 5)],
    "weight": [(9,), (1, 9, 6)],
    "bias": [(1, 9), ()],
    "targets": [(3,), (3, 4, 1)],
    "enc_lengths": [(3, 1), ()],
    "target_lengths": [(1, 3), ()],
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name, all_ in SHAPES.items() for shape in all_],
)
def test_wrong_number_of_axes(name, shape):
    value = torch.ones(shape, dtype=arguments()[name].dtype)
    words = str(shape).replace("(", r"\(").replace(")", r"\)")
    refused(rf"^{name} must have \d ax[ei]s, but has shape {words}", **{name: value})


DISAGREEMENTS = {
    "dec of fewer utterances": ("dec", (2, 5, 6), r"dec.* is 2, but enc.* is 3"),
    "targets of fewer utterances": ("targets", (2, 4), r"targets.* is 2, but enc.* 3"),
    "dec narrower than enc": ("dec", (3, 5, 4), r"dec.* is 4, but enc.* is 6"),
    "weight wider than enc": ("weight", (9, 7), r"weight.* is 7, but enc.* is 6"),
    "dec as long as targets": ("dec", (3, 4, 6), r"dec.* is 4, but targets.* is 5"),
    "bias shorter": ("bias", (8,), r"bias.* is 8, but weight.* is 9"),
    "enc_lengths of more": ("enc_lengths", (4,), r"enc_lengths has 4 .* has 3"),
    "target_lengths of more": ("target_lengths", (4,), r"target_lengths has 4 .* 3"),
}


@pytest.mark.parametrize(
    ("name", "shape", "pattern"), DISAGREEMENTS.values(), ids=DISAGREEMENTS
)
def test_shapes_that_disagree(name, shape, pattern):
    refused(pattern, **{name: torch.ones(shape, dtype=arguments()[name].dtype)})


def test_an_empty_batch():
    empty = {
        name: value[:0] if name not in ("weight", "bias") else value
        for name, value in arguments().items()
    }
    refused("enc has 0 utterances", **empty)
    draw_refused(
        "targets has 0 utterances",
        targets=empty["targets"],
        target_lengths=empty["target_lengths"],
    )


def test_draw_of_shapes_that_disagree():
    draw_refused("target_lengths has 2 .* has 3", target_lengths=torch.tensor([1, 2]))
    draw_refused("targets must have 2 axes", targets=torch.tensor([1, 2, 3]))
    draw_refused(
        r"probs must have shape \(9,\) or \(3, 9\).*\(8,\)", probs=torch.ones(8)
    )
    draw_refused(r"probs must have shape.*\(2, 9\)", probs=torch.ones(2, 9))
    draw_refused(r"probs must have shape.*\(1, 9\)", probs=torch.ones(1, 9))


# ---- types and devices


@pytest.mark.parametrize("name", ["enc", "dec", "weight", "bias"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool], ids=str)
def test_floats_of_another_type(name, dtype):
    value = torch.ones_like(arguments()[name], dtype=dtype, requires_grad=False)
    refused(rf"^{name} must be float64, .*but is {dtype}", **{name: value})


@pytest.mark.parametrize("name", ["targets", "enc_lengths", "target_lengths"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_integers_of_another_type(name, dtype):
    value = arguments()[name].to(dtype)
    refused(rf"^{name} must hold integers, but is {dtype}", **{name: value})
    if name != "enc_lengths":
        draw_refused(rf"^{name} must hold integers, but is {dtype}", **{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_at_all(name):
    refused(rf"^{name} must be a tensor, but is list", **{name: [[1]]})


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_tensor(name):
    sparse = arguments()[name].to_sparse()
    refused(f"^{name} must be dense, but is torch.sparse_coo", **{name: sparse})


def test_tensors_without_numbers():
    on_meta = {name: value.to("meta") for name, value in arguments().items()}
    refused("^enc_lengths is on the meta device, which holds no numbers", **on_meta)
    for name in ("enc_lengths", "target_lengths"):
        on_meta[name] = arguments()[name]
    refused("^targets is on the meta device, which holds no numbers", **on_meta)


@pytest.mark.parametrize("name", ["enc", "dec", "targets"])
def test_a_nested_tensor(name):
    parts = list(arguments()[name])
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    refused(f"^{name} is nested, but must be padded", **{name: nested})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1, keepdim=True),
        lambda x: x[..., : x.size(-1) // 2],
        lambda x: x.tolist(),
    ],
)
def test_an_activation_that_is_not_elementwise(function):
    refused("^activation must be elementwise, but callable", activation=function)


def test_a_missing_bias_is_no_error_and_a_missing_weight_is():
    assert torch.isfinite(transducer_loss(**{**arguments(), "bias": None}))
    refused("weight must be a tensor, but is NoneType", weight=None)


@pytest.mark.parametrize("name", NAMES)
def test_devices_that_disagree(name):
    """The meta device is there without an accelerator."""
    value = arguments()[name].detach().to("meta")
    others = "enc" if name != "enc" else "dec"
    pattern = rf"{others} is on .* is on|{name} is on meta, but enc is on cpu"
    refused(pattern, **{name: value})


def test_draw_on_devices_that_disagree():
    draw_refused(
        "probs is on meta, but targets is on cpu", probs=torch.ones(9).to("meta")
    )
    draw_refused(
        "target_lengths is on meta", target_lengths=torch.ones(3).long().to("meta")
    )


# ---- numbers and weights of the draw


@pytest.mark.parametrize("value", [0, -1, 2.0, True, None, "3"])
def test_samples(value):
    draw_refused(rf"num_samples must be .* but is {value!r}", num_samples=value)


@pytest.mark.parametrize("value", [9.0, True, None])
def test_vocab_size_that_is_no_int(value):
    draw_refused(rf"vocab_size must be an int, but is {value}", vocab_size=value)


@pytest.mark.parametrize("value", [0, -3])
def test_vocab_size_without_blank(value):
    draw_refused(
        rf"vocab_size must be in \[1, 2\*\*31\), but is {value}", vocab_size=value
    )


@pytest.mark.parametrize("value", ["utterance", "", None, 1])
def test_scope(value):
    draw_refused(rf"scope must be one of example, batch, but is {value!r}", scope=value)


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_weights_that_are_negative_or_not_finite(value, dtype):
    probs = torch.ones(3, V, dtype=dtype)
    probs[1, 4] = value
    draw_refused(rf"probs .*utterance 1 has {value} for token 4", probs=probs)
    draw_refused(rf"probs .*utterance 0 has {value} for token 4", probs=probs[1])


def test_weights_that_sum_to_zero():
    probs = torch.ones(3, V)
    probs[2] = 0.0
    draw_refused("probs must not sum to 0, but utterance 2 does", probs=probs)
    draw_refused("probs must not sum to 0, but utterance 0 does", probs=probs[2])


@pytest.mark.parametrize("value", [[1.0] * 9, torch.ones(9, dtype=torch.long)])
def test_weights_that_are_no_floats(value):
    draw_refused("probs must be None or a floating point tensor", probs=value)


# ---- options


OPTIONS = {
    "correction": [
        (-0.1, r"\[0, 1\].*-0.1"),
        (1.5, r"\[0, 1\].*1.5"),
        (float("nan"), "finite.*nan"),
        ("1", "a number.*'1'"),
        (None, "a number.*None"),
        (True, "a number.*True"),
    ],
    "fastemit_lambda": [
        (-1e-3, ">= 0.*-0.001"),
        (float("inf"), "finite.*inf"),
        (None, "a number.*None"),
    ],
    "reduction": [("max", "none, sum, mean.*'max'"), (None, "none, sum, mean.*None")],
    "chunk_bytes": [
        (0, "positive int.*0"),
        (-5, "positive int.*-5"),
        (1e6, "positive int.*1000000.0"),
        (True, "positive int.*True"),
    ],
    "blank": [
        (-1, r"\[0, 9\).*-1"),
        (9, r"\[0, 9\).*9"),
        (0.0, "an int.*0.0"),
        (False, "an int.*False"),
    ],
    "backend": [
        ("cuda", "'cuda' is not known.*numba"),
        (None, "a name.*None"),
        ("warp_rnnt", "'warp_rnnt' cannot run here.*CUDA"),
    ],
    "activation": [
        ("gelu", "'gelu' is not known.*tanh"),
        (None, "a name or an elementwise callable.*None"),
        (torch.nn.PReLU(), "PReLU has parameters to train"),
    ],
}


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [(name, *case) for name, cases in OPTIONS.items() for case in cases],
    ids=lambda value: str(value)[:20],
)
def test_options(name, value, pattern):
    refused(rf"{name}.*{pattern}", **{name: value})


def test_a_backend_without_float64_is_refused_for_float64():
    wide = arguments()["enc"].detach().double()
    refused("'torchaudio' cannot run here.*float64", backend="torchaudio", enc=wide)


def test_a_frozen_module_with_parameters_is_fine():
    module = torch.nn.PReLU().requires_grad_(False)
    assert torch.isfinite(transducer_loss(**arguments(), activation=module))
