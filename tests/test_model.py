"""The model against ESPnet's own transducer, and what it adds."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from support.asr_models import (
    TOKENS,
    build_asr_model,
    make_batch,
    tiny_asr_config,
)

UNSAMPLED = {"ctc_weight": 0.3, "num_samples": 0}
OURS = {
    "decoder": "sampled_transducer",
    "decoder_conf": {
        "rnn_type": "gru",
        "num_layers": 1,
        "hidden_size": 7,
        "joint_net_conf": {"joint_space_size": 5},
    },
}
ACTIVATIONS = [
    "ftswish",
    "hardtanh",
    "identity",
    "leaky_relu",
    "mish",
    "relu",
    "selu",
    "smish",
    "swish",
    "tanh",
]


def run(model, **batch) -> tuple[torch.Tensor, dict]:
    loss, stats, _ = model(**{k: v.clone() for k, v in (batch or make_batch()).items()})
    return loss, stats


def gradients(model) -> dict[str, torch.Tensor]:
    loss, _ = run(model)
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture
def stock(espnets_own_transducer):
    """ESPnet's own transducer, torchaudio's loss in it."""
    return build_asr_model(model="espnet", model_conf={"ctc_weight": 0.3}).eval()


@pytest.mark.parametrize("changes", [{}, OURS], ids=["stock decoder", "our decoder"])
def test_checkpoints_load_both_ways(stock, changes):
    model = build_asr_model(seed=1, **changes)
    assert model.state_dict().keys() == stock.state_dict().keys()
    model.load_state_dict(stock.state_dict(), strict=True)
    stock.load_state_dict(build_asr_model(seed=2).state_dict(), strict=True)


@pytest.mark.parametrize("changes", [{}, OURS], ids=["stock decoder", "our decoder"])
def test_validation_is_that_of_espnet(stock, changes):
    model = build_asr_model(seed=1, **changes).eval()
    model.load_state_dict(stock.state_dict())
    batch = make_batch(num_labels=(4, 2, 3), num_frames=(12, 12, 12))
    loss, stats = run(model, **batch)
    expected, expected_stats = run(stock, **batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    for name in ("loss", "loss_ctc", "loss_transducer"):
        torch.testing.assert_close(stats[name], expected_stats[name])
    for name in ("cer_transducer", "wer_transducer"):
        assert float(stats[name]) == pytest.approx(float(expected_stats[name]))


@pytest.mark.parametrize("num_samples", [0, None, len(TOKENS)])
def test_training_on_all_tokens_is_that_of_espnet(stock, num_samples):
    conf = {"ctc_weight": 0.3, "num_samples": num_samples}
    model = build_asr_model(seed=1, model_conf=conf).train()
    model.load_state_dict(stock.state_dict())
    ours, expected = gradients(model), gradients(stock.train())
    torch.testing.assert_close(run(model)[0], run(stock)[0])
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_training_samples_and_validation_does_not(stock):
    conf = {"ctc_weight": 0.3, "num_samples": 2}
    model = build_asr_model(model_conf=conf)
    model.load_state_dict(stock.state_dict())
    expected, _ = run(stock)
    # Fewer rivals in the softmax: every label is likelier.
    assert float(run(model.train())[0]) < float(expected) - 0.1
    torch.testing.assert_close(run(model.eval())[0], expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_joint_activation(stock, espnets_own_transducer, activation):
    joint = {"joint_space_size": 5, "joint_activation_type": activation}
    reference = build_asr_model(model="espnet", model_conf={}, joint_net_conf=joint)
    model = build_asr_model(model_conf={"num_samples": 0}, joint_net_conf=joint)
    ours, expected = gradients(model.train()), gradients(reference.train())
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("ctc_weight", [0.0, 0.4, 1.0])
def test_ctc_is_added_not_interpolated(ctc_weight, caplog):
    model = build_asr_model(model_conf={"ctc_weight": ctc_weight}).eval()
    assert "decoder to none" not in caplog.text
    loss, stats = run(model)
    expected = stats["loss_transducer"]
    if ctc_weight:
        expected = expected + ctc_weight * stats["loss_ctc"]
    assert (model.ctc is None) == (ctc_weight == 0.0)
    assert ("cer_ctc" in stats) == (ctc_weight != 0.0)
    torch.testing.assert_close(loss, expected)


def test_intermediate_ctc(stock, espnets_own_transducer):
    encoder_conf = {
        **tiny_asr_config()["encoder_conf"],
        "interctc_layer_idx": [1],
        "interctc_use_conditioning": True,
    }
    conf = {"ctc_weight": 0.3, "interctc_weight": 0.5}
    reference = build_asr_model(
        model="espnet", model_conf=conf, encoder_conf=encoder_conf
    )
    model = build_asr_model(model_conf=conf, encoder_conf=encoder_conf)
    model.load_state_dict(reference.state_dict(), strict=True)
    loss, stats = run(model.eval())
    torch.testing.assert_close(loss, run(reference.eval())[0])
    assert math.isfinite(float(stats["cer_interctc_layer1"]))


def test_statistics_of_a_validation_batch_are_numbers():
    # espnet/espnet 4054 and 4813: cer_ctc was shown as nan.
    _, stats = run(build_asr_model().eval())
    for name in (
        "loss",
        "loss_transducer",
        "loss_ctc",
        "cer_transducer",
        "wer_transducer",
        "cer_ctc",
        "sampled_vocabulary_size",
        "loss_peak_bytes",
    ):
        assert stats[name].shape == (1,), name
        assert math.isfinite(float(stats[name])), name
    assert float(stats["sampled_vocabulary_size"]) == len(TOKENS)


@pytest.mark.parametrize("scope", ["example", "batch"])
def test_training_reports_the_size_of_the_vocabulary(scope):
    conf = {"ctc_weight": 0.3, "num_samples": 2, "sampling_scope": scope}
    model = build_asr_model(model_conf=conf).train()
    batch = make_batch()
    batch["text"] = torch.tensor([[3, 3, 4, 5], [6, 3, -1, -1], [-1, -1, -1, -1]])
    _, stats = run(model, **batch)
    # Blank, the labels, and two drawn: 6, 5 and 3 tokens, or 1 + 4 + 2 for all.
    expected = {"example": (6 + 5 + 3) / 3, "batch": 7.0}[scope]
    assert float(stats["sampled_vocabulary_size"]) == pytest.approx(expected)
    assert float(stats["loss_peak_bytes"]) > 0
    assert list(stats) == list(run(model, **make_batch(seed=2))[1])


def test_no_error_rates_where_none_are_asked_for():
    conf = {"ctc_weight": 0.3, "report_cer": False, "report_wer": False}
    _, stats = run(build_asr_model(model_conf=conf).eval())
    assert (
        stats["cer_transducer"] is stats["wer_transducer"] is stats["cer_ctc"] is None
    )


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_batch_of_empty_transcripts(mode):
    model = getattr(build_asr_model(), mode)()
    loss, stats = run(model, **make_batch(num_labels=(0, 0, 0)))
    loss.backward()
    assert math.isfinite(float(loss))
    for name, value in stats.items():
        assert value is None or math.isfinite(float(value)), name


def one_label_a_frame(token: int, frames=(12, 9, 5)) -> dict:
    """A batch in which every frame of an utterance is the label ``token``."""
    batch = make_batch(num_labels=frames, num_frames=frames)
    batch["text"] = batch["text"].clamp(max=0).masked_fill(batch["text"] > 0, token)
    return batch


@torch.no_grad()
def test_transducer_does_not_decode_padding():
    model = build_asr_model().eval()
    model.joint_network.lin_out.bias[3] = 40.0
    _, stats = run(model, **one_label_a_frame(token=3))
    assert float(stats["cer_transducer"]) == 0.0


@torch.no_grad()
def test_ctc_does_not_decode_padding():
    model = build_asr_model().eval()
    model.ctc.ctc_lo.bias[0] = -30.0  # never blank: about every frame adds a token
    torch.manual_seed(1)
    encoder_out, frames = 5.0 * torch.randn(2, 9, 8), torch.tensor([9, 4])
    labels, lengths = torch.tensor([[3, 4, 5], [6, 5, -1]]), torch.tensor([3, 2])

    def error_rate(rows: slice, width: int) -> float:
        inputs = encoder_out[rows, :width], frames[rows], labels[rows], lengths[rows]
        return model._calc_ctc_loss(*inputs)[1]

    first, second = error_rate(slice(0, 1), 9), error_rate(slice(1, 2), 4)
    together = error_rate(slice(0, 2), 9)
    assert together == pytest.approx((3 * first + 2 * second) / 5)


@torch.no_grad()
@pytest.mark.parametrize("bias", [float("nan"), -40.0])
def test_validation_ends_where_the_search_of_espnet_does_not(bias, caplog):
    model = build_asr_model().eval()
    model.joint_network.lin_out.bias[0] = bias
    _, stats = run(model)
    assert "found no end" in caplog.text
    assert math.isfinite(float(stats["cer_transducer"]))


def test_blank_is_where_the_token_list_has_it(stock, caplog):
    tokens = [*TOKENS[1:-1], "<blank>", "<sos/eos>"]
    conf = {"ctc_weight": 0.0, "num_samples": 2}
    model = build_asr_model(token_list=tokens, model_conf=conf)
    assert "token 7" in caplog.text
    reference = build_asr_model(
        token_list=tokens, model="espnet", model_conf={"ctc_weight": 0.0}
    )
    batch = make_batch()
    batch["text"] = batch["text"].masked_fill(batch["text"] > 6, 6)
    loss, stats = run(model.eval(), **batch)
    reference.eval().error_calculator_trans = None
    torch.testing.assert_close(loss, run(reference, **batch)[0])
    assert math.isfinite(float(run(model.train(), **batch)[0]))
    # Token 0 is no blank: a search that takes it for one finds no end here.
    model.joint_network.lin_out.bias.data[3] = 40.0
    _, stats = run(model.eval(), **one_label_a_frame(token=3))
    assert float(stats["cer_transducer"]) == 0.0
    assert "found no end" not in caplog.text


class Recorder:
    """Stands before ``sample_vocabulary`` and keeps what it returned."""

    def __init__(self, monkeypatch) -> None:
        import espnet_sampled_rnnt.sampling as module

        self.drawn: list[list] = []
        original = module.sample_vocabulary

        def record(*args, **kwargs):
            vocabulary = original(*args, **kwargs)
            self.drawn.append(vocabulary.token_ids.tolist())
            return vocabulary

        monkeypatch.setattr(module, "sample_vocabulary", record)


def test_draws_follow_the_seed_and_differ_between_ranks(monkeypatch):
    tokens = ["<blank>", "<unk>", *(f"t{i}" for i in range(500)), "<sos/eos>"]
    conf = {"ctc_weight": 0.0, "num_samples": 20}
    model = build_asr_model(token_list=tokens, model_conf=conf).train()
    recorder = Recorder(monkeypatch)

    def draw_twice(seed: int, rank: int | None) -> list:
        with monkeypatch.context() as patch:
            if rank is not None:
                patch.setattr(torch.distributed, "is_initialized", lambda: True)
                patch.setattr(torch.distributed, "get_rank", lambda: rank)
            recorder.drawn.clear()
            torch.manual_seed(seed)
            run(model)
            run(model)
            return list(recorder.drawn)

    first, second = draw_twice(seed=4, rank=None)
    assert first != second
    assert draw_twice(seed=4, rank=None) == [first, second]
    assert draw_twice(seed=5, rank=None)[0] != first
    by_rank = [draw_twice(seed=4, rank=rank) for rank in range(5)]
    assert by_rank[0] == [first, second]
    draws = [str(draw) for rank in by_rank for draw in rank]
    assert len(set(draws)) == len(draws)


def test_trains_under_autocast():
    model = build_asr_model().train()
    full, _ = run(model.eval())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = run(model.eval())
        model.train()
        run(model)[0].backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, full, rtol=2e-2, atol=0)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("num_samples", -1, ">= 1"),
        ("num_samples", True, ">= 1"),
        ("sampling_scope", "utterance", "example, batch"),
        ("sampling_distribution", "zipf", "uniform"),
        ("logit_correction", 1.5, "from 0 to 1"),
        ("logit_correction", -0.1, "from 0 to 1"),
        ("logit_correction", float("nan"), "a finite number"),
        ("loss_backend", "k2", "auto"),
        ("loss_chunk_bytes", 0, "positive"),
        ("fastemit_lambda", -1.0, ">= 0"),
        ("fastemit_lambda", float("inf"), ">= 0"),
        ("ctc_weight", 1.2, "from 0 to 1"),
        ("transducer_multi_blank_durations", [2, 4], "none"),
    ],
)
def test_wrong_value_is_refused_by_name(option, value, allowed):
    with pytest.raises(ValueError) as error:
        build_asr_model(model_conf={option: value})
    message = str(error.value)
    assert f"model_conf.{option} is {value!r}" in message
    assert allowed in message


@pytest.mark.parametrize(
    ("option", "value"), [("num_samples", "many"), ("logit_correction", "1")]
)
def test_wrong_type_is_refused(option, value):
    from typeguard import TypeCheckError

    with pytest.raises(TypeCheckError, match=option):
        build_asr_model(model_conf={option: value})


def test_whole_numbers_do_for_numbers():
    conf = {"logit_correction": 1, "fastemit_lambda": 0, "ctc_weight": 0}
    assert build_asr_model(model_conf=conf).options.logit_correction == 1


def test_misspelt_option_is_named():
    with pytest.raises(TypeError, match=r"model_conf\.num_sample .*mean num_samples"):
        build_asr_model(model_conf={"num_sample": 3})


def test_options_of_espnet_show_in_the_signature():
    from espnet2.asr.espnet_model import ESPnetASRModel

    from espnet_sampled_rnnt.model import SampledTransducerModel

    ours = inspect.signature(SampledTransducerModel).parameters
    stock = inspect.signature(ESPnetASRModel).parameters
    assert set(stock) < set(ours)
    assert {"num_samples", "sampling_scope", "loss_backend"} <= set(ours) - set(stock)
    for name, parameter in stock.items():
        assert ours[name].default == parameter.default


@pytest.mark.parametrize(
    ("decoder", "kind"), [("transformer", "TransformerDecoder"), (None, "none")]
)
def test_decoder_that_is_no_transducer_is_refused(decoder, kind):
    conf = {} if decoder is None else {"linear_units": 8, "attention_heads": 2}
    with pytest.raises(ValueError, match=f"decoder is {kind}.*sampled_transducer"):
        build_asr_model(decoder=decoder, decoder_conf=conf)


def test_our_decoder_under_the_stock_model_says_what_to_set():
    model = build_asr_model(model="espnet", model_conf={}, **OURS)
    with pytest.raises(RuntimeError, match="set `model: sampled_transducer`"):
        run(model)
