"""Every YAML of the recipes: accepted by ESPnet's parsers, built, one training step.

The models are as large as the YAML says, weights of 100 million parameters included;
only the inputs are small: two made-up utterances of about a second.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import torch
import yaml
from espnet2.asr.transducer.beam_search_transducer import BeamSearchTransducer
from espnet2.bin import asr_inference
from espnet2.tasks.asr import ASRTask
from support.asr_models import build_asr_model, make_batch

RECIPES = Path(__file__).parents[2] / "egs2_recipes"
FOLDERS = sorted(path.parent for path in RECIPES.glob("[a-z]*/*/run.sh"))
TRAINING = sorted(RECIPES.glob("[a-z]*/*/conf/train_*.yaml"))
DECODING = sorted(RECIPES.glob("[a-z]*/*/conf/decode_*.yaml"))
CORPORA = ("librispeech", "librispeech_100", "aishell", "csj")
# Tokens that the recipe's token list has, about; for LibriSpeech exactly.
NUM_TOKENS = {
    "librispeech": 5000,
    "librispeech_100": 5000,
    "aishell": 4233,
    "csj": 3300,
    "tts_mandarin": 403,
    "mini_an4": 30,
    "spoken_digits": 103,
}
# What may tell the three trainings of a corpus apart.
SAMPLING = {"num_samples", "sampling_distribution"}


def name_of(path: Path) -> str:
    """``aishell/train_asr_transducer_full``, say."""
    return f"{path.relative_to(RECIPES).parts[0]}/{path.stem}"


def corpus_of(path: Path) -> str:
    return path.relative_to(RECIPES).parts[0]


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def parse_training(path: Path, tmp_path: Path) -> argparse.Namespace:
    """The YAML through the parser of asr_train, with a made-up token list."""
    count = NUM_TOKENS[corpus_of(path)]
    tokens = ["<blank>", "<unk>", *(f"t{n}" for n in range(count - 3)), "<sos/eos>"]
    token_list = tmp_path / "tokens.txt"
    token_list.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    words = ["--config", str(path), "--token_list", str(token_list)]
    words += ["--output_dir", str(tmp_path / "exp"), "--token_type", "char"]
    return ASRTask.get_parser().parse_args(words)


def sound_batch(num_tokens: int) -> dict[str, torch.Tensor]:
    """Two utterances of 1.3 and 0.9 s of noise, with 6 and 3 labels."""
    generator = torch.Generator().manual_seed(3)
    samples, labels = (20800, 14400), (6, 3)
    text = torch.full((2, max(labels)), -1)
    for row, length in enumerate(labels):
        text[row, :length] = torch.randint(
            2, num_tokens - 1, (length,), generator=generator
        )
    return {
        "speech": 0.1 * torch.randn(2, max(samples), generator=generator),
        "speech_lengths": torch.tensor(samples),
        "text": text,
        "text_lengths": torch.tensor(labels),
    }


@pytest.mark.parametrize("path", TRAINING, ids=name_of)
def test_a_training_yaml_is_built_and_takes_a_step(path, tmp_path):
    arguments = parse_training(path, tmp_path)
    torch.manual_seed(0)
    model = ASRTask.build_model(arguments).train()
    (optimizer,) = ASRTask.build_optimizers(arguments, model)
    num_tokens = NUM_TOKENS[corpus_of(path)]

    loss, statistics, _ = model(**sound_batch(num_tokens))
    loss.backward()
    assert torch.isfinite(loss)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(bool(torch.isfinite(g).all()) for g in gradients)

    # Each part learns: encoder, prediction network, joint network, CTC head.
    before = {
        name: next(iter(part.parameters())).detach().clone()
        for name, part in model.named_children()
        if any(p.requires_grad for p in part.parameters())
    }
    assert {"encoder", "decoder", "joint_network", "ctc"} <= before.keys()
    optimizer.step()
    for name, value in before.items():
        assert not torch.equal(next(iter(getattr(model, name).parameters())), value)

    size = float(statistics["sampled_vocabulary_size"])
    num_samples = model.sampler.num_samples  # where the YAML has a schedule: the first
    if num_samples == 0:
        assert size == num_tokens
    else:
        assert num_samples < size <= min(1 + 6 + num_samples, num_tokens)


@pytest.mark.parametrize("path", DECODING, ids=name_of)
def test_a_decoding_yaml_decodes(path, tmp_path):
    words = ["--config", str(path), "--output_dir", str(tmp_path)]
    words += ["--data_path_and_name_and_type", "wav.scp,speech,sound"]
    arguments = asr_inference.get_parser().parse_args(words)
    model = build_asr_model().eval()
    search = BeamSearchTransducer(
        decoder=model.decoder,
        joint_network=model.joint_network,
        beam_size=arguments.beam_size,
        **arguments.transducer_conf,
    )
    batch = make_batch(num_labels=(2,), num_frames=(5,))
    with torch.no_grad():
        encoded, _ = model.encode(batch["speech"], batch["speech_lengths"])
        (best, *_) = search(encoded[0])
    assert best.yseq[0] == 0


@pytest.mark.parametrize("folder", FOLDERS, ids=corpus_of)
def test_the_trainings_of_a_recipe_differ_in_model_conf_only(folder):
    paths = sorted(folder.glob("conf/train_*.yaml"))
    confs = {path.stem: load(path) for path in paths}
    model_confs = {name: conf.pop("model_conf") for name, conf in confs.items()}
    first, *others = confs.values()
    assert others
    assert all(conf == first for conf in others)
    if corpus_of(folder) in CORPORA:
        prefix = "train_asr_transducer_"
        assert set(confs) == {prefix + n for n in ("full", "sampled", "sampled_ctc")}
        common = [
            {key: value for key, value in conf.items() if key not in SAMPLING}
            for conf in model_confs.values()
        ]
        assert common[0] == common[1] == common[2]
        assert model_confs[f"{prefix}full"]["num_samples"] == 0


@pytest.mark.parametrize("path", TRAINING, ids=name_of)
def test_the_model_that_the_recipe_decodes_with_is_one_that_training_keeps(path):
    """A transducer has no "acc", which asr.sh would take by default."""
    run = (path.parents[1] / "run.sh").read_text(encoding="utf-8")
    (part, criterion) = re.search(
        r"--inference_asr_model (\w+)\.(\w+)\.ave\.pth", run
    ).groups()
    kept = [tuple(row[:2]) for row in load(path)["best_model_criterion"]]
    assert (part, criterion) in kept
    assert not criterion.startswith("acc")


def test_no_yaml_of_a_recipe_is_left_out():
    found = set(RECIPES.glob("[a-z]*/*/conf/*.yaml"))
    assert found == {*TRAINING, *DECODING}
    assert {corpus_of(path) for path in TRAINING} == set(NUM_TOKENS)
    assert {corpus_of(path) for path in DECODING} == set(NUM_TOKENS)
