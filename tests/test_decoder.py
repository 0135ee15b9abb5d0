"""The decoder against ESPnet's, and under each of ESPnet's beam searches."""

from __future__ import annotations

import pytest
import torch
from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
from espnet2.asr.transducer.beam_search_transducer import (
    BeamSearchTransducer,
    Hypothesis,
)
from espnet2.asr.transducer.beam_search_transducer_streaming import (
    BeamSearchTransducerStreaming,
)
from espnet2.asr_transducer.joint_network import JointNetwork

from espnet_sampled_rnnt.decoder import SampledTransducerDecoder

VOCAB = 11
ENCODER_SIZE = 6
NETWORKS = [
    {"rnn_type": "lstm", "num_layers": 2},
    {"rnn_type": "gru", "num_layers": 1},
    {"rnn_type": "stateless", "context_size": 1},
    {"rnn_type": "stateless", "context_size": 2},
    {"rnn_type": "stateless", "context_size": 4},
]
SEARCHES = {
    "greedy": {"beam_size": 1},
    "default": {"beam_size": 3, "search_type": "default"},
    "tsd": {"beam_size": 3, "search_type": "tsd", "max_sym_exp": 3},
    "alsd": {"beam_size": 3, "search_type": "alsd", "u_max": 20},
    "nsc": {"beam_size": 3, "search_type": "nsc", "nstep": 2, "prefix_alpha": 2},
    "maes": {"beam_size": 3, "search_type": "maes", "nstep": 2, "prefix_alpha": 2},
}


def name_of(options: dict) -> str:
    return "-".join(str(value) for value in options.values())


@pytest.fixture(params=NETWORKS, ids=name_of)
def decoder(request) -> SampledTransducerDecoder:
    torch.manual_seed(3)
    return SampledTransducerDecoder(
        vocab_size=VOCAB,
        encoder_output_size=ENCODER_SIZE,
        hidden_size=8,
        joint_net_conf={"joint_space_size": 5},
        **request.param,
    ).eval()


def random_labels(batch: int, length: int) -> torch.Tensor:
    """(batch, length) labels, blank first, as the decoder is fed."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(1, VOCAB, (batch, length), generator=generator)
    labels[:, 0] = 0
    return labels


@torch.no_grad()
def test_one_label_at_a_time_is_the_whole_sequence(decoder):
    labels = random_labels(batch=1, length=7)
    whole = decoder(labels)
    state, cache = decoder.init_state(1), {}
    for position in range(labels.size(1)):
        sequence = labels[0, : position + 1].tolist()
        output, state, label = decoder.score(Hypothesis(0.0, sequence, state), cache)
        assert label.tolist() == [sequence[-1]]
        torch.testing.assert_close(output, whole[0, position])


@torch.no_grad()
def test_hypotheses_in_a_batch_are_scored_as_alone(decoder):
    labels = random_labels(batch=4, length=6)
    whole = decoder(labels)
    states = [decoder.init_state(1) for _ in labels]
    for position in range(labels.size(1)):
        hypotheses = [
            Hypothesis(0.0, row[: position + 1].tolist(), state)
            for row, state in zip(labels, states, strict=True)
        ]
        output, batch_states, _ = decoder.batch_score(
            hypotheses, decoder.init_state(len(labels)), {}, use_lm=False
        )
        torch.testing.assert_close(output, whole[:, position])
        states = [decoder.select_state(batch_states, i) for i in range(len(labels))]


@torch.no_grad()
def test_stateless_network_sees_context_size_labels_and_no_more():
    torch.manual_seed(3)
    decoder = SampledTransducerDecoder(
        VOCAB, ENCODER_SIZE, rnn_type="stateless", hidden_size=8, context_size=3
    ).eval()
    labels = random_labels(batch=1, length=8)
    changed = labels.clone()
    changed[0, 2] = labels[0, 2] % (VOCAB - 1) + 1
    differs = (decoder(labels) != decoder(changed)).any(dim=-1)[0]
    assert differs.tolist() == [False, False, True, True, True, False, False, False]


@torch.no_grad()
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_recurrent_network_is_that_of_espnet(rnn_type):
    stock = TransducerDecoder(VOCAB, rnn_type=rnn_type, num_layers=2, hidden_size=8)
    ours = SampledTransducerDecoder(
        VOCAB, ENCODER_SIZE, rnn_type=rnn_type, num_layers=2, hidden_size=8
    )
    ours.release_joint_network()
    ours.load_state_dict(stock.state_dict(), strict=True)
    stock.load_state_dict(ours.state_dict(), strict=True)
    labels = random_labels(batch=2, length=5)
    torch.testing.assert_close(ours(labels), stock(labels), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_every_beam_search_decodes_with_it(decoder, search):
    joint_network = decoder.release_joint_network()
    # Non-blank tokens must win here and there for the states to matter.
    joint_network.lin_out.bias[0] -= 0.5
    torch.manual_seed(7)
    encoder_out = 4.0 * torch.randn(9, ENCODER_SIZE)
    beam_search = BeamSearchTransducer(decoder, joint_network, **SEARCHES[search])
    best = beam_search(encoder_out)[0]
    assert len(best.yseq) > 1
    streaming = BeamSearchTransducerStreaming(
        decoder, joint_network, **SEARCHES[search]
    )
    in_one_piece = streaming(encoder_out, is_final=True)[0]
    assert all(0 <= token < VOCAB for token in in_one_piece.yseq.tolist())


@torch.no_grad()
def test_greedy_score_is_that_of_the_full_sequence(decoder):
    joint_network = decoder.release_joint_network()
    joint_network.lin_out.bias[0] -= 0.5
    torch.manual_seed(7)
    encoder_out = 4.0 * torch.randn(9, ENCODER_SIZE)
    best = BeamSearchTransducer(decoder, joint_network, beam_size=1)(encoder_out)[0]
    outputs = decoder(torch.tensor([best.yseq]))[0]
    score, num_labels = 0.0, 0
    for frame in encoder_out:
        log_probs = joint_network(frame, outputs[num_labels]).log_softmax(-1)
        token = int(log_probs.argmax())
        if token != 0:
            num_labels += 1
            assert token == best.yseq[num_labels]
            score += float(log_probs[token])
    assert num_labels == len(best.yseq) - 1
    assert best.score == pytest.approx(score, rel=1e-5)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")  # torch deprecates what ESPnet calls
def test_decodes_after_dynamic_quantization(decoder):
    joint_network = decoder.release_joint_network()
    model = torch.nn.ModuleDict({"decoder": decoder, "joint": joint_network})
    quantized = torch.ao.quantization.quantize_dynamic(
        model, {torch.nn.Linear}, dtype=torch.qint8
    )
    # "tsd" and "alsd" only: the others hand the joint network vectors, which torch's
    # quantized Linear refuses, whatever the decoder.
    search = BeamSearchTransducer(
        quantized["decoder"], quantized["joint"], beam_size=2, search_type="tsd"
    )
    assert search(torch.randn(5, ENCODER_SIZE))


def test_joint_network_has_the_width_and_activation_asked_for():
    decoder = SampledTransducerDecoder(
        VOCAB,
        encoder_output_size=13,
        hidden_size=8,
        joint_net_conf={
            "joint_space_size": 5,
            "joint_activation_type": "leaky_relu",
            "leakyrelu_neg_slope": 0.3,
        },
    )
    joint_network = decoder.release_joint_network()
    assert isinstance(joint_network, JointNetwork)
    assert joint_network.lin_enc.weight.shape == (5, 13)
    assert joint_network.lin_dec.weight.shape == (5, 8)
    assert joint_network.lin_out.weight.shape == (VOCAB, 5)
    assert joint_network.joint_activation.negative_slope == 0.3


def test_joint_network_is_handed_over_once():
    decoder = SampledTransducerDecoder(VOCAB, ENCODER_SIZE)
    decoder.release_joint_network()
    assert not any("joint" in name for name in decoder.state_dict())
    with pytest.raises(RuntimeError, match="another model"):
        decoder.release_joint_network()


def test_attention_model_is_told_which_model_to_set():
    decoder = SampledTransducerDecoder(VOCAB, ENCODER_SIZE)
    hs, lengths = torch.zeros(1, 3, ENCODER_SIZE), torch.tensor([3])
    with pytest.raises(RuntimeError, match="model: sampled_transducer"):
        decoder(hs, lengths, torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rnn_type": "rnn"}, r"decoder_conf\.rnn_type.*'rnn'.*stateless"),
        ({"context_size": 0}, r"decoder_conf\.context_size is 0"),
    ],
)
def test_wrong_option_is_named(options, named):
    with pytest.raises(ValueError, match=named):
        SampledTransducerDecoder(VOCAB, ENCODER_SIZE, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_layers", 0),
        ("hidden_size", 0),
        ("dropout", 2.0),
        ("dropout_embed", float("nan")),
        ("embed_pad", -1),
        ("embed_pad", 9),
    ],
)
@pytest.mark.parametrize("rnn_type", ["lstm", "stateless"])
def test_numbers_out_of_range_are_refused_by_name(option, value, rnn_type):
    with pytest.raises(ValueError, match=f"decoder_conf.{option} is {value}"):
        SampledTransducerDecoder(
            vocab_size=9, encoder_output_size=4, rnn_type=rnn_type, **{option: value}
        )
