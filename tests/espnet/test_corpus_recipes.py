"""The recipes of LibriSpeech, AISHELL-1 and CSJ: miniatures end to end, real shapes.

A miniature is a few sentences spoken by espeak-ng in the layout that the corpus has on
disk; it goes through stages 1 to 13 of the unmodified asr.sh, with the recipe's YAML
narrowed to a tiny model by options. The real shapes go through the models as they are.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import soundfile
import torch
import yaml
from espnet2.tasks.asr import ASRTask
from support.recipe_runs import (
    NO_TREE,
    NO_TREE_REASON,
    RECIPES,
    call,
    copy_recipes,
    espnet_tree,
    state_of,
)

from espnet_sampled_rnnt.commands.report.experiment import read_experiment

needs_espeak = pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None,
    reason="espeakng-loader is not installed (extra: study)",
)
NUM_SAMPLES = 4
# Narrows each of the recipes' YAMLs; what is not named stays as it is there.
TINY_MODEL = """
    --max_epoch 1 --num_iters_per_epoch 2 --num_workers 0 --accum_grad 1
    --batch_type folded --batch_size 4
    --encoder_conf output_size=32 --encoder_conf linear_units=32
    --encoder_conf attention_heads=2 --encoder_conf num_blocks=3
    --encoder_conf interctc_layer_idx=[1] --encoder_conf cnn_module_kernel=7
    --decoder_conf hidden_size=16 --joint_net_conf joint_space_size=16
"""


@dataclass(frozen=True)
class Miniature:
    """A recipe's run.

    Attributes:
        recipe: folder of the recipe under egs2_recipes.
        corpus: what miniature.py calls it.
        training: which train_asr_transducer_*.yaml.
        options: of asr.sh beside those that all have.
        train_set: as asr.sh calls it, and its number of utterances, each three times
            by speed perturbation.
        test_sets: decoded and scored.
        num_tokens: length of the token list, None where the sentences decide.
    """

    recipe: str
    corpus: str
    training: str
    options: tuple[str, ...]
    train_set: tuple[str, int]
    test_sets: frozenset[str]
    num_tokens: int | None = None


MINIATURES = (
    Miniature(
        "librispeech",
        "librispeech",
        "sampled",
        ("--nbpe", "40", "--test_sets", "test_other"),
        ("train_960_sp", 36),
        frozenset({"test_other"}),
        40,
    ),
    Miniature(
        "librispeech_100",
        "librispeech",
        "full",
        ("--nbpe", "30", "--gpu_inference", "false", "--test_sets", "test_clean"),
        ("train_clean_100_sp", 12),
        frozenset({"test_clean"}),
        30,
    ),
    Miniature(
        "aishell",
        "aishell",
        "sampled_ctc",
        (),
        ("train_sp", 36),
        # asr.sh reads "dev", which it validates on too, from another folder
        frozenset({"org/dev", "test"}),
    ),
    Miniature(
        "csj",
        "csj",
        "sampled_ctc",
        # The tree's part of stage 1 has nothing left to do at its own stage 2.
        ("--local_data_opts", "--stage 2", "--test_sets", "eval1"),
        ("train_nodup_aps_sp", 24),
        frozenset({"eval1"}),
    ),
)


def make_miniature(corpus: str, output: Path, *options: object) -> None:
    tool = RECIPES / "tools/miniature.py"
    call([sys.executable, tool, corpus, output, *options], output.parent, 120)


@needs_espeak
def test_miniatures_have_the_layout_of_the_corpora(tmp_path):
    make_miniature("librispeech", tmp_path / "libri")
    root = tmp_path / "libri/LibriSpeech"
    sounds = sorted(root.glob("*/*/*/*.flac"))
    assert len({path.parts[-4] for path in sounds}) == 7
    for path in sounds:
        part, reader, chapter = path.parts[-4:-1]
        assert path.name.startswith(f"{reader}-{chapter}-")
        lines = (path.parent / f"{reader}-{chapter}.trans.txt").read_text()
        assert f"{path.stem} " in lines
        assert f"{reader:<5}|" in (root / "SPEAKERS.TXT").read_text()
        assert part in (root / "SPEAKERS.TXT").read_text()
        assert soundfile.info(path).samplerate == 16000

    make_miniature("aishell", tmp_path / "aishell")
    root = tmp_path / "aishell/data_aishell"
    transcript = (root / "transcript/aishell_transcript_v0.8.txt").read_text("utf-8")
    sounds = sorted(root.glob("wav/*/S????/*.wav"))
    assert {path.parts[-3] for path in sounds} == {"train", "dev", "test"}
    assert {line.split()[0] for line in transcript.splitlines()} == {
        path.stem for path in sounds
    }


@needs_espeak
def test_a_miniature_is_never_written_over_a_corpus(tmp_path):
    (tmp_path / "LibriSpeech").mkdir()
    with pytest.raises(AssertionError, match="is not empty"):
        make_miniature("librispeech", tmp_path)


@needs_espeak
@pytest.mark.slow
@pytest.mark.skipif(NO_TREE, reason=NO_TREE_REASON)
@pytest.mark.parametrize("case", MINIATURES, ids=lambda case: case.recipe)
def test_a_miniature_goes_through_all_stages(case, tmp_path):
    tree = espnet_tree()
    before = state_of(tree)
    recipe = copy_recipes(tmp_path) / case.recipe / "asr1"
    data = ("--data", recipe / "data") if case.corpus == "csj" else ()
    make_miniature(case.corpus, tmp_path / "corpus", *data)
    model = "" if case.training == "full" else f"--model_conf num_samples={NUM_SAMPLES}"
    options = {
        "--corpus": tmp_path / "corpus",
        "--stage": 1,
        "--stop_stage": 13,
        "--ngpu": 0,
        "--nj": 1,
        "--inference_nj": 1,
        "--asr_tag": "mini",
        "--asr_config": f"conf/train_asr_transducer_{case.training}.yaml",
        "--asr_args": " ".join(f"{TINY_MODEL} {model}".split()),
        "--inference_args": "--beam_size 1",
    }
    words = [word for option in options.items() for word in option]
    call(["./run.sh", *words, *case.options], recipe, 3600)
    assert state_of(tree) == before, "the ESPnet tree is only to be read"
    assert (recipe / "asr.sh").resolve().is_relative_to(tree.resolve())
    if case.corpus != "csj":
        prepared_by = (recipe / "local/data.sh").resolve()
        assert prepared_by.is_relative_to(tree.resolve() / "egs2" / case.recipe)

    train_set, utterances = case.train_set
    for file in ("wav.scp", "text"):
        lines = (recipe / "dump/raw" / train_set / file).read_text("utf-8")
        assert len(lines.splitlines()) == utterances

    # The recipe's YAML, but for what the options say.
    config = yaml.safe_load((recipe / "exp/asr_mini/config.yaml").read_text("utf-8"))
    assert config["specaug"] == "specaug"
    assert config["encoder_conf"]["output_size"] == 32
    assert config["encoder_conf"]["input_layer"].startswith("conv2d")
    assert config["model_conf"]["interctc_weight"] > 0
    assert case.num_tokens in (None, len(config["token_list"]))

    experiment = read_experiment(recipe / "exp/asr_mini")
    size = experiment.curves["train/sampled_vocabulary_size"][1]
    if case.training == "full":
        assert size == experiment.vocabulary_size
    else:
        assert NUM_SAMPLES < size < experiment.vocabulary_size
    scores = recipe.glob("exp/asr_mini/decode_*/**/score_cer/result.txt")
    folders = {path.parents[1] for path in scores}
    root = next(iter(recipe.glob("exp/asr_mini/decode_*")))
    assert {str(path.relative_to(root)) for path in folders} == case.test_sets
    assert "decode_asr_transducer" in (recipe / "exp/asr_mini/RESULTS.md").read_text()


@dataclass(frozen=True)
class RealShape:
    """The longest utterance that training may meet, and a usual one.

    Attributes:
        seconds: of the two.
        num_labels: of the two.
        num_tokens: length of the token list.
    """

    seconds: tuple[float, float]
    num_labels: tuple[int, int]
    num_tokens: int


# LibriSpeech: frames (of 40 ms) and tokens of the longest and of the mean utterance of
# train-clean-100, speed-perturbed, as published in
# csukuangfj/transducer-loss-benchmarking; with a vocabulary of 500, so with more labels
# than 5,000 tokens would give. The others: 20 s is the longest that asr.sh keeps.
# AISHELL-1 is 178 hours in 141,600 utterances, and its test set has 14.6 characters an
# utterance; CSJ's 4,000 utterances for validation take 6 h 31 min, and its eval1 has
# 34.5 characters an utterance. The longest has labels at that rate.
REAL_SHAPES = {
    "librispeech": RealShape((27.2, 12.7), (151, 68), 5000),
    "librispeech_100": RealShape((27.2, 12.7), (151, 68), 5000),
    "aishell": RealShape((20.0, 4.5), (65, 15), 4233),
    "csj": RealShape((20.0, 5.9), (117, 35), 3300),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "training"),
    [
        ("librispeech", "sampled"),
        ("librispeech_100", "sampled_ctc"),
        ("aishell", "full"),
        ("csj", "sampled_ctc"),
    ],
)
def test_a_training_step_at_real_shapes(corpus, training, tmp_path):
    shape = REAL_SHAPES[corpus]
    tokens = ["<blank>", "<unk>", *(f"t{n}" for n in range(shape.num_tokens - 3))]
    token_list = tmp_path / "tokens.txt"
    token_list.write_text("\n".join([*tokens, "<sos/eos>"]) + "\n")
    path = RECIPES / corpus / f"asr1/conf/train_asr_transducer_{training}.yaml"
    words = ["--config", str(path), "--token_list", str(token_list)]
    words += ["--output_dir", str(tmp_path)]
    arguments = ASRTask.get_parser().parse_args(words)
    torch.manual_seed(0)
    model = ASRTask.build_model(arguments).train()
    (optimizer,) = ASRTask.build_optimizers(arguments, model)

    generator = torch.Generator().manual_seed(1)
    samples = torch.tensor([int(16000 * seconds) for seconds in shape.seconds])
    labels = torch.tensor(shape.num_labels)
    text = torch.full((2, int(labels.max())), -1)
    for row, length in enumerate(shape.num_labels):
        text[row, :length] = torch.randint(
            2, shape.num_tokens - 1, (length,), generator=generator
        )
    speech = 0.1 * torch.randn(2, int(samples.max()), generator=generator)
    loss, statistics, _ = model(speech, samples, text, labels)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    # What the loss takes beside its inputs: gigabytes as logits, below 200 MB here.
    assert float(statistics["loss_peak_bytes"]) < 200e6
