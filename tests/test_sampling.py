"""Distributions, schedules and coverage inside the model."""

import copy
from pathlib import Path

import pytest
import torch
from support.asr_models import TOKENS, build_asr_model, make_batch

import espnet_sampled_rnnt.sampling as sampling
from espnet_sampled_rnnt.commands.strip import main as strip
from espnet_sampled_rnnt.distributions import mix_with_uniform
from espnet_sampled_rnnt.espnet_compat import default_distribution
from espnet_sampled_rnnt.statistics import softmax_coverage

STEPS = {"points": {0: 2, 2: 0}, "unit": "updates"}


@pytest.fixture
def drawn_from(monkeypatch):
    """The weights of every draw, None for a uniform one."""
    weights = []
    original = sampling.sample_vocabulary

    def record(*arguments, **options):
        weights.append(options["probs"])
        return original(*arguments, **options)

    monkeypatch.setattr(sampling, "sample_vocabulary", record)
    return weights


def train_step(model, optimizer=None):
    loss, stats, _ = model(**make_batch())
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return stats


def interctc_model(**model_conf):
    return build_asr_model(
        encoder_conf={
            "output_size": 8,
            "attention_heads": 2,
            "linear_units": 8,
            "num_blocks": 3,
            "dropout_rate": 0.0,
            "positional_dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            "input_layer": "linear",
            "interctc_layer_idx": [1, 2],
            "interctc_use_conditioning": True,
        },
        model_conf={
            "ctc_weight": 0.3,
            "interctc_weight": 0.5,
            "num_samples": 2,
            "sampling_distribution": "interctc",
            **model_conf,
        },
    )


def posterior(model, hidden, lengths):
    """Mean posterior by the CTC head, computed apart: (B, V)."""
    log_probs = model.ctc.log_softmax(hidden).exp()
    return torch.stack(
        [
            row[:length].mean(dim=0)
            for row, length in zip(log_probs, lengths, strict=True)
        ]
    )


def test_ctc_draws_from_the_mean_posterior_of_the_head(drawn_from):
    conf = {"ctc_weight": 0.3, "num_samples": 2, "sampling_distribution": "ctc"}
    model = build_asr_model(
        model_conf={**conf, "sampling_uniform_mix": 0.2}, ctc_conf={"dropout_rate": 0.0}
    ).train()
    train_step(model)
    batch = make_batch()
    hidden, lengths = model.encode(batch["speech"], batch["speech_lengths"])
    expected = mix_with_uniform(posterior(model, hidden, lengths), 0.2)
    torch.testing.assert_close(drawn_from[0], expected, rtol=1e-4, atol=1e-6)
    assert not drawn_from[0].requires_grad


def test_interctc_draws_from_the_mean_over_the_layers(drawn_from):
    model = interctc_model(sampling_uniform_mix=0.0).train()
    train_step(model)
    batch = make_batch()
    (_, layers), lengths = model.encode(batch["speech"], batch["speech_lengths"])
    assert len(layers) == 2
    expected = sum(posterior(model, hidden, lengths) for _, hidden in layers) / 2
    torch.testing.assert_close(drawn_from[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["ctc", "interctc"])
def test_the_ctc_head_runs_no_more_often_than_in_espnet(kind):
    model = interctc_model(sampling_distribution=kind).train()
    twin = interctc_model(sampling_distribution="uniform").train()
    calls = {}
    for name, one in (("ours", model), ("uniform", twin)):
        seen = calls[name] = []
        one.ctc.ctc_lo.register_forward_hook(
            lambda *_, seen=seen: seen.append(1)  # once for each run of the head
        )
        train_step(one)
    assert len(calls["ours"]) == len(calls["uniform"])
    assert not model.ctc.ctc_loss._forward_pre_hooks  # the tap is gone


@pytest.mark.parametrize(("ctc_weight", "chosen"), [(0.3, "ctc"), (0.0, "uniform")])
def test_where_nothing_is_said_the_ctc_head_is_drawn_from_if_there_is_one(
    ctc_weight, chosen, drawn_from
):
    model = build_asr_model(model_conf={"ctc_weight": ctc_weight, "num_samples": 2})
    assert model.options.sampling_distribution == chosen
    train_step(model.train())
    assert (drawn_from[0] is None) == (chosen == "uniform")


def test_where_nothing_is_said_a_ctc_head_that_hides_its_posteriors_is_left():
    ctc = build_asr_model().ctc
    assert default_distribution(ctc, ctc_weight=0.3) == "ctc"
    ctc.ctc_type = "brctc"  # to build one takes k2
    assert default_distribution(ctc, ctc_weight=0.3) == "uniform"


def test_unigram_counts_the_labels_of_the_batches(drawn_from):
    conf = {"ctc_weight": 0.0, "num_samples": 2, "sampling_distribution": "unigram"}
    model = build_asr_model(model_conf=conf).train()
    train_step(model)
    train_step(model)
    batch = make_batch()
    counts = torch.zeros(len(TOKENS))
    for row, length in zip(batch["text"], batch["text_lengths"], strict=True):
        for token in row[:length].tolist():
            counts[token] += 2
    assert model.sampler.counts.tolist() == counts.tolist()
    torch.testing.assert_close(drawn_from[1], mix_with_uniform(counts, 0.1))


def test_unigram_from_a_file_stays_as_it_is(tmp_path):
    path = tmp_path / "counts"
    path.write_text("a 3\nb 1\n", encoding="utf-8")
    conf = {
        "ctc_weight": 0.0,
        "num_samples": 2,
        "sampling_distribution": "unigram",
        "sampling_counts": str(path),
    }
    model = build_asr_model(model_conf=conf).train()
    train_step(model)
    assert model.sampler.counts.sum() == 4


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"sampling_distribution": "ctc", "ctc_weight": 0.0}, "ctc_weight is 0"),
        ({"sampling_distribution": "interctc"}, "interctc_weight is 0"),
        (
            {"sampling_distribution": "interctc", "interctc_weight": 0.3},
            "interctc_layer_idx is empty",
        ),
        ({"sampling_distribution": "zipf"}, "uniform, unigram, ctc, interctc"),
        ({"sampling_uniform_mix": 1.5}, "sampling_uniform_mix is 1.5"),
        ({"sampling_counts": "x"}, "sampling_counts is 'x'"),
        (
            {"sampling_distribution": "unigram", "sampling_counts": "/no/such"},
            "counts file /no/such",
        ),
        ({"num_samples": {"points": {0: 2, 5: -1}}}, "num_samples is"),
        ({"num_samples": {"points": {0: 2.5}}}, "num_samples is"),
        ({"logit_correction": {"points": {0: 0, 9: 2}}}, "logit_correction is 2"),
        ({"logit_correction": {"points": {3: 0}}}, "logit_correction.points begins"),
    ],
)
def test_what_cannot_work_is_refused_when_the_model_is_built(conf, message):
    with pytest.raises(ValueError, match=message):
        build_asr_model(model_conf={"ctc_weight": 0.3, "num_samples": 2, **conf})


def test_a_constant_adds_no_key_to_the_checkpoint():
    model = build_asr_model(model_conf={"ctc_weight": 0.3, "num_samples": 2})
    assert not [name for name in model.state_dict() if name.startswith("sampler")]


def test_a_schedule_counts_updates_not_batches():
    conf = {"ctc_weight": 0.3, "num_samples": STEPS}
    model = build_asr_model(model_conf=conf).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sizes = []
    for batch in range(6):  # an update after every second batch
        stats = train_step(model, optimizer if batch % 2 else None)
        sizes.append(float(stats["sampled_vocabulary_size"]))
    assert all(size < len(TOKENS) for size in sizes[:4])
    assert sizes[4:] == [len(TOKENS)] * 2
    assert model.sampler.updates == 2


def test_a_schedule_survives_stop_and_resume():
    conf = {"ctc_weight": 0.3, "num_samples": STEPS}

    def epoch(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train_step(model.train(), optimizer)
        model.eval()

    straight = build_asr_model(model_conf=conf)
    epoch(straight)
    saved = copy.deepcopy(straight.state_dict())
    epoch(straight)
    resumed = build_asr_model(model_conf=conf)
    resumed.load_state_dict(saved, strict=True)
    epoch(resumed)
    assert saved["sampler.updates"] == 1
    assert resumed.sampler.updates == straight.sampler.updates == 2
    assert resumed.sampler.num_samples == 0


def test_epochs_are_counted_at_validation():
    points = {"points": {0: 0.0, 2: 1.0}, "unit": "epochs", "interpolate": "linear"}
    conf = {"ctc_weight": 0.3, "num_samples": 2, "logit_correction": points}
    model = build_asr_model(model_conf=conf)
    model.eval()  # a validation without training before it is no epoch
    seen = []
    for _ in range(3):
        model.train()
        train_step(model)
        seen.append(model.sampler.correction)
        model.eval()
        model.eval()
    assert seen == [0.0, 0.5, 1.0]
    assert model.state_dict()["sampler.epochs"] == 3


def test_strip_leaves_what_espnet_knows(tmp_path):
    conf = {"ctc_weight": 0.3, "num_samples": STEPS}
    scheduled = build_asr_model(model_conf=conf)
    torch.save(scheduled.state_dict(), tmp_path / "model.pth")
    torch.save(
        {"model": scheduled.state_dict(), "reporter": {"epoch": 3}},
        tmp_path / "checkpoint.pth",
    )
    plain = build_asr_model(model_conf={"ctc_weight": 0.3, "num_samples": 2})
    for name, part in (("model.pth", None), ("checkpoint.pth", "model")):
        output = tmp_path / f"stripped_{name}"
        assert strip([str(tmp_path / name), str(output)]) == 0
        state = torch.load(output, weights_only=True)
        plain.load_state_dict(state if part is None else state[part], strict=True)


def test_strip_says_what_is_wrong(tmp_path, capsys):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"no checkpoint")
    assert strip([str(broken), str(tmp_path / "out.pth")]) == 1
    assert f"cannot read {broken}" in capsys.readouterr().err
    assert [path.name for path in Path(tmp_path).iterdir()] == ["broken.pth"]


def test_coverage_is_the_mass_inside():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 4, generator=generator)
    weight = torch.randn(7, 4, generator=generator)
    token_ids = torch.tensor([[0, 2, 6]]).expand(5, -1)
    mask = torch.tensor([[True, True, False]]).expand(5, -1)
    found = softmax_coverage(hidden, weight, None, token_ids, mask)
    expected = (hidden @ weight.t()).softmax(dim=1)[:, [0, 2]].sum(dim=1).mean()
    torch.testing.assert_close(found, expected)


def test_coverage_is_reported_every_so_many_batches():
    conf = {"ctc_weight": 0.3, "num_samples": 2}
    model = build_asr_model(model_conf=conf).train()
    found = [float(train_step(model)["sampling_coverage"]) for _ in range(11)]
    assert 0.0 < found[0] < 1.0
    assert 0.0 < found[10] < 1.0
    assert found[1:10] == found[:1] * 9  # and no NaN, which Lightning would average
    assert found[10] != found[0]
    assert "sampling_coverage" not in model.eval()(**make_batch())[1]


def test_a_sampler_can_be_copied():
    # torch's dynamic quantization, which asr_inference offers, copies the model.
    conf = {"ctc_weight": 0.3, "num_samples": STEPS}
    model = build_asr_model(model_conf=conf).train()
    train_step(model)
    assert copy.deepcopy(model.sampler).num_samples == 2


@pytest.mark.parametrize(
    ("points", "expected"), [({0: 3, 6: 0}, [3, 1, 0]), ({0: 0, 6: 3}, [0, 2, 3])]
)
def test_a_line_to_or_from_the_full_softmax_samples_at_least_one(points, expected):
    schedule = {"points": points, "interpolate": "linear"}
    model = build_asr_model(model_conf={"ctc_weight": 0.3, "num_samples": schedule})
    found = []
    for updates in (0, 5, 6):
        model.sampler.updates.fill_(updates)
        found.append(model.sampler.num_samples)
    assert found == expected


@pytest.mark.parametrize("state", [{1: 2}, {"model": {3: 4}}])
def test_strip_passes_keys_that_are_no_names(tmp_path, state):
    torch.save(state, tmp_path / "in.pth")
    assert strip([str(tmp_path / "in.pth"), str(tmp_path / "out.pth")]) == 0
    assert strip([str(tmp_path / "in.pth"), str(tmp_path)]) == 1
