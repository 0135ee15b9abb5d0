"""``memory``: what it predicts against bytes that are counted, and what it refuses.

Shapes called LibriSpeech's are (encoder frames, BPE-500 tokens) of utterances of
train-clean-100.
"""

from __future__ import annotations

import json
from pathlib import Path

import espnet2.tasks.asr  # noqa: F401 - prints a line when it is first imported
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


def check(name: str, predicted: int, peak: int) -> None:
    """Within 15 %; ``pytest -rP`` shows what docs/memory.md lists."""
    print(f"{name}: predicted {predicted:,}, counted {peak:,}")
    assert peak == pytest.approx(predicted, rel=0.15)


def counted(function) -> int:
    function()  # compiles, fills caches
    return counted_peak(function)


@pytest.mark.parametrize("loss", ["full", "example", "batch"])
@pytest.mark.parametrize(
    ("workload", "device"),
    [
        *((name, "cpu") for name in WORKLOADS),
        ("librispeech", "cuda"),
        ("mandarin", "cuda"),
    ],
)
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

    check(f"{workload} {loss} {device}", predicted, counted(both))


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
    check(f"{workload} {loss} cpu", predicted, counted(both))


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
    options = [*training_set, "--device", "cpu"]

    def suggested(budget: str) -> tuple[dict[str, int | None], float]:
        config = write_config(tmp_path)
        found = facts(capsys, "--config", config, *options, "--gpu-gb", budget)
        allowed = 0.9 * float(budget) * 1e9 - found["training_bytes"]
        return {row["loss"]: row["suggested"] for row in found["losses"]}, allowed

    small, allowed = suggested("0.02")
    assert small["stock"] < small["sampled"]
    for loss in ("stock", "sampled"):
        for factor, fits in ((1, True), (1.6, False)):
            config = write_config(tmp_path, batch_bins=int(small[loss] * factor))
            rows = facts(capsys, "--config", config, *options)["losses"]
            [worst] = [row["worst"] for row in rows if row["loss"] == loss]
            assert (worst["total_bytes"] <= allowed) == fits
    large, _ = suggested("0.05")
    assert small["stock"] < large["stock"]
    none, _ = suggested("1e-6")
    assert set(none.values()) == {None}


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


def built_model(tmp_path, lengths, vocab_size) -> tuple[Model, torch.nn.Module]:
    """What is known of ``CONFIG``'s model, and the model."""
    from espnet_sampled_rnnt.commands.memory import model as module

    built = []
    with pytest.MonkeyPatch.context() as patch:
        probe = module._probe_lengths
        patch.setattr(
            module,
            "_probe_lengths",
            lambda model, *rest: built.append(model) or probe(model, *rest),
        )
        config = module.read_config(write_config(tmp_path), waveforms=True)
        known = module.build_model(config, vocab_size, None, lengths, 0.0002, {})
    return known, built[0]


def test_the_rest_of_training_takes_what_is_predicted(tmp_path):
    """ESPnet's whole step: encoder, CTC, the sampled loss and all gradients."""
    known, model = built_model(tmp_path, [16_000, 96_000], 200)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for speech in ((96_000,) * 3, (80_000, 60_000, 40_000), (40_000,) * 6):
        labels = [length // 5000 for length in speech]
        size = (len(speech), max(labels))
        batch = {
            "speech": 0.1 * torch.randn((size[0], speech[0]), generator=generator),
            "speech_lengths": torch.tensor(speech),
            "text": torch.randint(1, 199, size, generator=generator),
            "text_lengths": torch.tensor(labels),
        }

        def step(batch=batch):
            model.zero_grad(set_to_none=True)
            model(**batch)[0].backward()

        step()
        model.zero_grad(set_to_none=True)
        known_batch = Batch(speech, tuple(labels))
        predicted = known.kept_bytes(speech) + known.parameter_bytes
        predicted += loss_bytes("sampled", known, known_batch, "cpu")
        check(f"a step of {speech}", predicted, counted_peak(step))


def test_the_state_of_adam_is_counted(tmp_path):
    """Parameters, gradients and two moments of them, and a counter for each."""
    known, _ = built_model(tmp_path, [16_000, 48_000], TOKENS)
    assert 4.0 <= known.training_bytes / known.parameter_bytes < 4.1
    twice = pytest.approx(2 * known.kept_bytes([48_000]), abs=1)
    assert known.kept_bytes([48_000, 10]) == twice


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
    "mixed-keys": ({}, {"train.yaml": "1: 2\na: 3\n"}, "1 is no option of ESPnet"),
    "nested-config": ({}, {"train.yaml": "[" * 3000}, "cannot read"),
    "listed-options": ({"model_conf": []}, {}, "model_conf is [], no mapping"),
    "text-for-bins": ({"batch_bins": "8e6"}, {}, "batch_bins is '8e6', no whole"),
    "fold-length": (
        {"batch_type": "folded", "batch_size": 3, "fold_length": [0, 0]},
        {},
        "ESPnet makes no batches of this",
    ),
    "listed-type": ({"batch_type": [1]}, {}, "batch_type is [1]"),
    "nothing-in-it": (
        {},
        {"speech_shape": "utt0 0\n", "text_shape.char": "utt0 0,60\n"},
        "all utterances have length 0",
    ),
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
    assert main(["--config", config, *training_set, "--gpu-gb", "inf"]) == 1
    assert "--gpu-gb is inf, but must be above 0 and below" in capsys.readouterr().err
    option, speech, _, text = training_set
    assert main(["--config", config, option, text, option, speech]) == 1
    assert "speech_shape comes first" in capsys.readouterr().err
    assert main(["--config", config, *training_set[:2]]) == 1
    assert "1 shape files, but two are needed" in capsys.readouterr().err
