"""``memory``: what it predicts against bytes that are counted, and what it refuses.

Shapes called LibriSpeech's are (encoder frames, BPE-500 tokens) of utterances of
train-clean-100.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from espnet2.asr_transducer.joint_network import JointNetwork
from support.batches import make_batch, options_of
from support.memory import counted_peak
from test_nodes import gathered_loss
from torchaudio.functional import rnnt_loss as torchaudio_loss

from espnet_sampled_rnnt.commands.memory import main
from espnet_sampled_rnnt.commands.memory.batches import Batch
from espnet_sampled_rnnt.commands.memory.model import LengthMap, Model
from espnet_sampled_rnnt.commands.memory.prediction import loss_bytes, sampled_sizes
from espnet_sampled_rnnt.options import SampledSoftmaxOptions
from espnet_sampled_rnnt.warprnnt import rnnt_loss as our_drop_in

# Utterances, V, J.
WORKLOADS = {
    "librispeech": (((332, 83), (304, 76), (251, 58)), 100, 48),
    "librispeech-long": (((680, 151),), 60, 32),
    "mandarin": (((60, 15), (50, 18), (45, 12), (30, 9)), 1000, 32),
    "wide-joint": (((80, 12), (50, 20)), 60, 200),
}
OPTIONS = {
    "num_samples": 40,
    "sampling_scope": "example",
    "sampling_distribution": "uniform",
    "sampling_uniform_mix": 0.1,
    "sampling_counts": None,
    "logit_correction": 0.0,
    "loss_backend": "auto",
    "loss_chunk_bytes": None,
    "fastemit_lambda": 0.0,
}


def known_model(vocab_size: int, joint_size: int, **options) -> Model:
    """A model of which is known what the loss's memory depends on."""
    return Model(
        joint_size=joint_size,
        vocabulary_size=vocab_size,
        has_bias=True,
        options=SampledSoftmaxOptions(**{**OPTIONS, **options}),
        frames=LengthMap((0, 10_000), (0, 10_000)),
        parameter_bytes=0,
        training_bytes=0,
        kept=None,
    )


def counted(function) -> int:
    function()  # compiles, fills caches
    return counted_peak(function)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("loss", ["full", "example", "batch"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_our_loss_takes_what_is_predicted(workload, loss, device):
    """For CUDA its chunks, by index tensors, are run on the CPU."""
    utterances, vocab_size, joint_size = WORKLOADS[workload]
    frames, labels = zip(*utterances, strict=True)
    batch = make_batch(frames, labels, vocab_size=vocab_size, joint_size=joint_size)
    chunk_bytes = 2**22 if device == "cuda" else None
    model = known_model(
        vocab_size,
        joint_size,
        sampling_scope="batch" if loss == "batch" else "example",
        loss_chunk_bytes=chunk_bytes,
    )
    name = "full" if loss == "full" else "sampled"
    predicted = loss_bytes(name, model, Batch(frames, labels), device)
    options = options_of(batch, loss, 40)

    def both():
        for leaf in batch.leaves:
            leaf.grad = None
        run = gathered_loss if device == "cuda" else type(batch).loss
        run(batch, chunk_bytes=chunk_bytes, **options).sum().backward()

    assert counted(both) == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("loss", ["torchaudio", "drop-in"])
def test_a_loss_on_whole_logits_takes_what_is_predicted(workload, loss):
    """Behind ESPnet's own joint network, called as ESPnet's own model calls it."""
    utterances, vocab_size, joint_size = WORKLOADS[workload]
    frames, labels = zip(*utterances, strict=True)
    torch.manual_seed(0)
    joint_network = JointNetwork(vocab_size, 24, 16, joint_space_size=joint_size)
    encoder_out = torch.randn(len(frames), max(frames), 24, requires_grad=True)
    decoder_out = torch.randn(len(frames), max(labels) + 1, 16, requires_grad=True)
    targets = torch.randint(1, vocab_size, (len(labels), max(labels))).int()
    lengths = torch.tensor(frames).int(), torch.tensor(labels).int()
    run = torchaudio_loss if loss == "torchaudio" else our_drop_in

    def loss_of() -> torch.Tensor:
        logits = joint_network(encoder_out.unsqueeze(2), decoder_out.unsqueeze(1))
        return run(logits, targets, *lengths, blank=0)

    def both():
        for leaf in (encoder_out, decoder_out, *joint_network.parameters()):
            leaf.grad = None
        loss_of().sum().backward()

    predicted = loss_bytes(
        "stock", known_model(vocab_size, joint_size), Batch(frames, labels), "cpu"
    )
    assert counted(both) == pytest.approx(predicted, rel=0.15)


TOKENS = 30
CONFIG = {
    "frontend_conf": {"n_fft": 256, "hop_length": 128, "n_mels": 16},
    "normalize": "global_mvn",  # its statistics need not be there
    "encoder": "conformer",
    "encoder_conf": {
        "output_size": 16,
        "attention_heads": 2,
        "linear_units": 16,
        "num_blocks": 2,
        "input_layer": "conv2d",
    },
    "decoder": "transducer",
    "decoder_conf": {"hidden_size": 8},
    "joint_net_conf": {"joint_space_size": 12},
    "model": "sampled_transducer",
    "model_conf": {"ctc_weight": 0.3, "num_samples": 5},
    "batch_type": "numel",
    "batch_bins": 300_000,
    "optim": "adam",
}


@pytest.fixture
def training_set(tmp_path) -> list[str]:
    """Options for shape files of 40 utterances of 0.3 to 4.2 s."""
    names = [f"utt{index:02}" for index in range(40)]
    (tmp_path / "speech_shape").write_text(
        "".join(f"{name} {5000 + 1600 * i}\n" for i, name in enumerate(names))
    )
    (tmp_path / "text_shape.char").write_text(
        "".join(f"{name} {2 + i % 20},{TOKENS}\n" for i, name in enumerate(names))
    )
    options = []
    for file in ("speech_shape", "text_shape.char"):
        options += ["--shape-file", str(tmp_path / file)]
    return options


def write_config(folder: Path, **changes) -> str:
    path = folder / "train.yaml"
    config = {k: v for k, v in {**CONFIG, **changes}.items() if v is not None}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


def facts(capsys, *arguments: str) -> dict:
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out.splitlines()[-1])


def test_it_tells_the_worst_of_espnets_own_batches(tmp_path, training_set, capsys):
    config = write_config(tmp_path)
    found = facts(capsys, "--config", config, *training_set)
    assert (found["vocabulary_size"], found["joint_size"]) == (TOKENS, 12)
    assert (found["size_option"], found["size"]) == ("batch_bins", 300_000)
    by_loss = {row["loss"]: row for row in found["losses"]}
    assert list(by_loss) == ["stock", "full", "sampled"]
    # ESPnet's sampler counts V for each label too: (67,400 + 19 x 30) x 5 > 300,000
    worst = by_loss["stock"]["worst"]
    assert worst["utterances"] == 5
    # The encoder's frames: 512 samples each, by its own code.
    assert worst["frames"] == ((5000 + 1600 * 39) // 128 - 2) // 4
    nodes = 5 * worst["frames"] * (worst["labels"] + 1)
    assert worst["loss_bytes"] == 4 * nodes * (12 + 2 * TOKENS + 3)
    assert by_loss["stock"]["suggested"] is None
    # Adam: parameters, gradients, two moments and a few counters.
    assert found["training_bytes"] % 4 == 0

    assert main(["--config", config, *training_set, "--device", "cpu"]) == 0
    table = capsys.readouterr().out
    assert f"B 5, T {worst['frames']}, U {worst['labels']} " in table
    assert "batch_bins 300,000" in table


def test_the_suggestion_fits_and_much_more_does_not(tmp_path, training_set, capsys):
    config = write_config(tmp_path)
    memory = {}
    options = ["--config", config, *training_set, "--device", "cpu"]
    for budget in ("0.02", "0.05"):
        found = facts(capsys, *options, "--gpu-gb", budget)
        allowed = 0.9 * float(budget) * 1e9 - found["training_bytes"]
        for row in found["losses"]:
            memory[row["loss"], budget] = row["suggested"]
            for factor, fits in ((1, True), (1.6, False)):
                size = int(row["suggested"] * factor)
                again = write_config(tmp_path, batch_bins=size)
                rows = facts(capsys, "--config", again, *options[2:])["losses"]
                [total] = [
                    x["worst"]["total_bytes"] for x in rows if x["loss"] == row["loss"]
                ]
                assert (total <= allowed) == fits
    assert memory["stock", "0.02"] < memory["sampled", "0.02"]
    assert memory["stock", "0.02"] < memory["stock", "0.05"]
    found = facts(capsys, *options, "--gpu-gb", "1e-6")
    assert {row["suggested"] for row in found["losses"]} == {None}


def test_batch_size_gpus_schedules_and_features(tmp_path, training_set, capsys):
    """One configuration of the kinds that the tests above do not have."""
    speech = tmp_path / "speech_shape"
    lines = [line.split() for line in speech.read_text().splitlines()]
    speech.write_text("".join(f"{a} {int(n) // 128},16\n" for a, n in lines))
    config = write_config(
        tmp_path,
        frontend_conf=None,
        batch_type="folded",
        batch_size=8,
        model_conf={"num_samples": {"points": {0: 5, 100: 0}}},
    )
    options = ["--config", config, *training_set]
    found = facts(capsys, *options, "--gpu-gb", "1")
    assert (found["size_option"], found["size"]) == ("batch_size", 8)
    stock, full, sampled = found["losses"]
    # The schedule ends in the full softmax.
    assert found["num_samples"] == [0, 5]
    assert sampled["worst"]["total_bytes"] >= full["worst"]["total_bytes"]
    schedule = {"points": {0: 5, 100: 0}}
    assert sampled_sizes(known_model(TOKENS, 12, num_samples=schedule), [3]) == [
        None,
        9,  # blank, 3 labels, 5 drawn
    ]
    assert stock["worst"]["utterances"] == 8
    assert sampled["suggested"] >= 40  # all of them
    halved = facts(capsys, *options, "--ngpu", "2")
    assert halved["losses"][0]["worst"]["utterances"] == 4
    fixed = facts(capsys, *options, "--num-samples", "3")
    assert fixed["num_samples"] == [3]


def test_what_the_rest_keeps_follows_its_parabola(tmp_path):
    """Counted at a length between those that it was drawn through, and beyond."""
    from espnet_sampled_rnnt.commands.memory import model as module

    config = module.read_config(write_config(tmp_path), waveforms=True)
    lengths = [16_000, 64_000]
    known = module.build_model(config, TOKENS, None, lengths, 0.0002, {})
    built = []

    class Stop(Exception):
        pass

    def catch(model, *_):
        built.append(model)
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_probe_lengths", catch)
        with pytest.raises(Stop):
            module.build_model(config, TOKENS, None, lengths, 0.0002, {})
    for length in (24_000, 64_000):
        kept = module._kept_bytes(built[0], length, int(0.0002 * length), None)
        assert known.kept_bytes([length]) == pytest.approx(kept, rel=0.15)
    assert known.kept_bytes([64_000, 10]) == 2 * known.kept_bytes([64_000])
    adam = known.training_bytes / known.parameter_bytes
    assert 4.0 <= adam < 4.1


def test_a_stock_configuration_is_told_so(tmp_path, training_set, capsys):
    config = write_config(tmp_path, model="espnet", model_conf={"ctc_weight": 0.3})
    assert main(["--config", config, *training_set]) == 0
    printed = capsys.readouterr().out
    assert "model is 'espnet': full and sampled are what" in printed
    assert "S 256" in printed


def test_plot(tmp_path, training_set, capsys):
    config = write_config(tmp_path)
    picture = tmp_path / "memory.png"
    options = ["--config", config, *training_set, "--gpu-gb", "0.1"]
    assert main([*options, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*options, "--plot", str(tmp_path / "memory.nonsense")]) == 1
    assert "cannot draw" in capsys.readouterr().err


HOSTILE = {
    "no-config": ({}, {"train.yaml": None}, "cannot read"),
    "empty-config": ({}, {"train.yaml": ""}, "holds no mapping"),
    "broken-config": ({}, {"train.yaml": "a: [1"}, "cannot read"),
    "no-shapes": ({}, {"speech_shape": None}, "no shape file"),
    "empty-shapes": ({}, {"speech_shape": ""}, "is empty"),
    "no-numbers": ({}, {"speech_shape": "utt0 long\n"}, "is no shape file"),
    "other-utterances": ({}, {"speech_shape": "utt0 9000\n"}, "not list the same"),
    "no-transducer": ({"decoder": "rnn"}, {}, "decoder is 'rnn', no transducer's"),
    "unknown-option": ({"batch_bin": 3}, {}, "batch_bin is no option of ESPnet"),
    "unknown-encoder": ({"encoder": "magic"}, {}, "ESPnet cannot build the model"),
    "bad-option": ({"model_conf": {"num_samples": -1}}, {}, "num_samples is -1"),
    "chunks": ({"iterator_type": "chunk"}, {}, "iterator_type is 'chunk'"),
    "batch-type": ({"batch_type": "catbel"}, {}, "batch_type is 'catbel'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input_ends_in_one_line(case, tmp_path, training_set, capsys):
    changes, files, message = HOSTILE[case]
    config = write_config(tmp_path, **changes)
    for name, content in files.items():
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(content)
    assert main(["--config", config, *training_set]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("memory: ")
    assert message in line


def test_options_out_of_range_are_named(tmp_path, training_set, capsys):
    config = write_config(tmp_path)
    assert main(["--config", config, *training_set, "--gpu-gb", "0"]) == 1
    assert "--gpu-gb is 0.0, but must be above 0" in capsys.readouterr().err
    assert main(["--config", config, *training_set[:2]]) == 1
    assert "1 shape files, but two are needed" in capsys.readouterr().err
