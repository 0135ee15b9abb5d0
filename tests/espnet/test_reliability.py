"""Hostile data and configurations: one clear message each, and no harm to the rest."""

from __future__ import annotations

import math
import os
import re

import pytest
import soundfile
import torch
from support.asr_models import TOKENS, build_asr_model, tiny_asr_config
from support.espnet_commands import OUR_DECODER, Corpus, load, run
from support.hostile import (
    HOSTILE,
    LEFT_OUT,
    TONE,
    assert_one_message,
    make_hostile_corpus,
    replace_option,
)
from support.sabotage import sabotaged

NUM_FEATURES = 16
NAMES = ["first", "second", "third"]


def build(**changes) -> torch.nn.Module:
    """A model with batch normalisation and a convolution that takes seven frames."""
    conf = {
        **tiny_asr_config()["encoder_conf"],
        "input_layer": "conv2d",
        "output_size": 8,
        "cnn_module_kernel": 3,
        "use_cnn_module": True,
    }
    return build_asr_model(
        **{
            "encoder": "conformer",
            "encoder_conf": conf,
            "input_size": NUM_FEATURES,
            "model_conf": {"ctc_weight": 0.3, "num_samples": 0},
            **changes,
        }
    )


def make_batch(frames=(60, 50, 40)) -> dict:
    generator = torch.Generator().manual_seed(3)
    return {
        "speech": torch.randn(3, max(frames), NUM_FEATURES, generator=generator),
        "speech_lengths": torch.tensor(frames),
        "text": torch.tensor([[3, 4, 5], [6, 5, -1], [-1, -1, -1]]),
        "text_lengths": torch.tensor([3, 2, 0]),
        "utt_id": list(NAMES),
    }


def rows_of(batch: dict, rows: list[int]) -> dict:
    return {
        name: [value[row] for row in rows] if isinstance(value, list) else value[rows]
        for name, value in batch.items()
    }


def learn(model, batch) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
    model.zero_grad()
    loss, _, weight = model(
        **{k: list(v) if isinstance(v, list) else v.clone() for k, v in batch.items()}
    )
    loss.backward()
    return float(loss), {n: p.grad for n, p in model.named_parameters()}, weight


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_an_utterance_that_is_not_finite_is_as_if_not_there(value, mode, caplog):
    # In evaluation mode the utterances of a batch do not see each other; in training
    # batch normalisation lets them, so there the gradients are only to be finite.
    model = getattr(build(), mode)()
    batch = make_batch(frames=(60, 60, 60))
    loss_without, without, _ = learn(model, rows_of(batch, [0, 2]))
    batch["speech"][1, 7, 3] = value
    loss, gradients, weight = learn(model, batch)
    assert "Utterance second is left out: its audio holds NaN" in caplog.text
    assert int(weight) == 2
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        if mode == "eval":
            torch.testing.assert_close(gradient, without[name], rtol=1e-4, atol=1e-6)
    if mode == "eval":
        assert loss == pytest.approx(loss_without, rel=1e-5)
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def test_an_utterance_too_short_for_the_encoder_is_left_out(caplog):
    model = build().eval()
    batch = make_batch((60, 60, 3))
    if model.encode(batch["speech"], batch["speech_lengths"])[1].min() > 0:
        pytest.skip("ESPnet 202511 lends it a frame of its padding")
    loss_without, without, _ = learn(model, rows_of(batch, [0, 1]))
    loss, gradients, weight = learn(model, make_batch((60, 60, 3)))
    assert "Utterance third is left out: it is so short" in caplog.text
    assert int(weight) == 2
    assert loss == pytest.approx(loss_without, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, without[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_an_empty_recording_is_left_out_by_encoders_that_take_a_frame_of_padding(
    mode, caplog
):
    conf = {"num_layers": 1, "hidden_size": 8, "output_size": 8, "subsample": [1]}
    front_end = {"n_fft": 256, "hop_length": 128, "n_mels": NUM_FEATURES}
    model = build(
        encoder="rnn",
        encoder_conf=conf,
        input_size=None,
        frontend="default",
        frontend_conf=front_end,
    )
    getattr(model, mode)()
    batch = make_batch()
    batch["speech"] = torch.from_numpy(TONE[:3000]).repeat(3, 1)
    batch["speech_lengths"] = torch.tensor([3000, 2000, 0])
    loss_without, _, _ = learn(model, rows_of(batch, [0, 1]))
    loss, _, weight = learn(model, batch)
    assert caplog.text.count("Utterance third is left out: it is empty") == 1
    assert int(weight) == 2
    assert loss == pytest.approx(loss_without, rel=1e-5)
    batch["speech_lengths"] = torch.tensor([0, 0, 0])
    loss, _, weight = learn(model, batch)
    assert (loss, int(weight)) == (0.0, 0)


@pytest.mark.parametrize("frames", [(3, 2, 1), (60, 60, 60)])
def test_a_batch_without_a_usable_utterance(frames, caplog):
    """Gradients of 0 for each parameter: another rank waits for them."""
    model = build().train()
    batch = make_batch(frames)
    if max(frames) > 10:
        batch["speech"][:, 0] = math.nan
    loss, gradients, weight = learn(model, batch)
    assert int(weight) == 0
    assert all(f"Utterance {name} is left out" in caplog.text for name in NAMES)
    assert loss == 0.0
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert not gradient.any(), name
    stats = model.eval()(**batch)[1]
    assert float(stats["loss"]) == 0.0


def test_an_utterance_is_named_once(caplog):
    model = build().train()
    batch = make_batch()
    batch["speech"][0, 0] = math.nan
    for _ in range(2):
        learn(model, batch)
    assert caplog.text.count("Utterance first is left out") == 1


def test_statistics_for_global_mvn_leave_a_bad_utterance_out(caplog):
    batch = make_batch()
    batch["speech"][1, 0] = math.nan
    collected = build().collect_feats(**batch)
    assert collected["feats_lengths"].tolist() == [60, 0, 40]
    assert collected["feats"].isfinite().all()
    assert "Utterance second is left out" in caplog.text


@torch.no_grad()
def test_decoding_sees_no_nan():
    batch = make_batch()
    batch["speech"][0, 0] = math.nan
    encoder_out, _ = build().eval().encode(batch["speech"], batch["speech_lengths"])
    assert encoder_out.isfinite().all()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (len(TOKENS), "label 1 of utterance second is 9; allowed: 0 to 8"),
        (-7, "label 1 of utterance second is -7; allowed: 0 to 8"),
        (0, r"label 1 of utterance second is 0 \(blank\)"),
    ],
)
def test_a_label_outside_the_token_list(label, message):
    batch = make_batch()
    batch["text"][1, 1] = label
    with pytest.raises(ValueError, match=message):
        build()(**batch)


def test_more_samples_than_tokens_is_the_full_softmax():
    conf = {"ctc_weight": 0.3, "num_samples": 10**9}
    assert learn(build(model_conf=conf).eval(), make_batch())[0] == pytest.approx(
        learn(build().eval(), make_batch())[0], rel=1e-6
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_adapter_at_the_output_layer_is_seen(dropout):
    lora = pytest.importorskip("loralib")
    model, plain = build().eval(), build().eval()
    old = model.joint_network.lin_out
    layer = lora.Linear(
        old.in_features, old.out_features, r=2, lora_alpha=4, lora_dropout=dropout
    )
    layer.load_state_dict(old.state_dict(), strict=False)
    torch.nn.init.normal_(layer.lora_B)
    model.joint_network.lin_out = layer
    if dropout:
        with pytest.raises(ValueError, match="dropout_rate is 0"):
            learn(model, make_batch())
        return
    with torch.no_grad():
        plain.joint_network.lin_out.weight += 2.0 * layer.lora_B @ layer.lora_A
    loss, gradients, _ = learn(model, make_batch())
    expected, plain_gradients, _ = learn(plain, make_batch())
    assert loss == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(
        gradients["joint_network.lin_out.lora_A"],
        2.0 * layer.lora_B.t() @ plain_gradients["joint_network.lin_out.weight"],
        rtol=1e-4,
        atol=1e-6,
    )
    # Evaluation by ESPnet merges the adapter into the weight.
    model.train()
    model.eval()
    assert layer.merged
    assert learn(model, make_batch())[0] == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def hostile(corpus, tmp_path_factory) -> Corpus:
    return make_hostile_corpus(corpus, tmp_path_factory.mktemp("hostile"))


def test_statistics_of_a_hostile_corpus_are_finite(hostile):
    import numpy as np

    stats = np.load(hostile.stats / "train" / "feats_stats.npz")
    assert all(np.isfinite(stats[name]).all() for name in stats.files)


def test_training_on_a_hostile_corpus(hostile):
    config = {**OUR_DECODER, "max_epoch": 4, "optim_conf": {"lr": 0.01}}
    command, folder = hostile.train("training", **config)
    printed = run(command)
    found = re.findall(r"Utterance (\S+) is left out", printed)
    assert sorted(found) == sorted(LEFT_OUT)
    assert "Traceback" not in printed
    for name, value in load(folder / "4epoch.pth").items():
        assert value.isfinite().all(), name
    for name, least_fall in (("loss", 0.95), ("loss_ctc", 0.6)):
        first, *_, last = (
            float(value)
            for value in re.findall(rf"\[train\].*?\b{name}=([^,]+)", printed)
        )
        assert last < least_fall * first, name


def test_what_the_recordings_are_made_of():
    assert {"silent", "empty-transcript"} & LEFT_OUT == set()
    assert {"nan", "one-frame"} <= LEFT_OUT
    assert len(HOSTILE["more-labels-than-frames"][1]) > len(TONE) / 128


def alone(corpus: Corpus, name: str, file: str, line: str) -> list[str]:
    """Options that put one line in the place of a file of the training data."""
    path = corpus.folder / f"{name}.{file}"
    lines = (corpus.folder / file).read_text("utf-8").splitlines()
    path.write_text("\n".join([line, *lines[1:]]) + "\n", "utf-8")
    return [str(path)]


def test_a_truncated_flac_ends_in_one_message(corpus):
    """ESPnet reads recordings, so the message is that of its library."""
    whole, torn = corpus.folder / "whole.flac", corpus.folder / "torn.flac"
    soundfile.write(whole, TONE, 16000)
    torn.write_bytes(whole.read_bytes()[: whole.stat().st_size // 3])
    [scp] = alone(corpus, "flac", "wav.scp", f"utt0 {torn}")
    command, folder = corpus.train("flac", **OUR_DECODER)
    printed = run(
        replace_option(command, str(corpus.folder / "wav.scp"), scp),
        expect_failure=True,
    )
    assert_one_message(printed, "flac")
    assert not (folder / "1epoch.pth").exists()


def test_ids_outside_the_token_list(corpus):
    """Transcripts as token ids, of a token list that was longer."""
    ids = corpus.folder / "token_ids"
    rows = [f"utt{row} 3 {99 if row == 2 else 4}\n" for row in range(5)]
    ids.write_text("".join(rows), "utf-8")
    command, folder = corpus.train("ids", **OUR_DECODER)
    command = replace_option(
        command, f"{corpus.folder / 'text'},text,text", f"{ids},text,text_int"
    )
    printed = run([*command, "--use_preprocessor", "false"], expect_failure=True)
    assert_one_message(
        printed, "label 1 of utterance utt2 is 99; allowed: 0 to 8, as the token list"
    )
    assert not (folder / "1epoch.pth").exists()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("", "the token list is empty"),
        ("<blank>\na\nb\n", "Unknown symbol '<unk>' doesn't exist in the token_list"),
    ],
)
def test_a_token_list_that_cannot_work(corpus, tokens, message):
    path = corpus.folder / "bad_tokens.txt"
    path.write_text(tokens, "utf-8")
    command, _ = corpus.train("tokens", **OUR_DECODER)
    good = str(corpus.folder / "tokens.txt")
    printed = run(replace_option(command, good, str(path)), expect_failure=True)
    assert_one_message(printed, message)


def test_a_checkpoint_with_another_vocabulary(corpus):
    other = corpus.folder / "other_tokens.txt"
    other.write_text("\n".join([*TOKENS[:-1], "f", "g", TOKENS[-1]]) + "\n", "utf-8")
    once = {**OUR_DECODER, "max_epoch": 1, "optim_conf": {"lr": 0.0}}
    command, folder = corpus.train("vocabulary", **once)
    run(command)
    good, checkpoint = str(corpus.folder / "tokens.txt"), folder / "1epoch.pth"
    command, folder = corpus.train(
        "other_vocabulary", "--init_param", checkpoint, **once
    )
    command = replace_option(command, good, str(other))
    assert_one_message(
        run(command, expect_failure=True),
        "the checkpoint was trained with 9 tokens, but the token list of this model "
        "has 11: give the token list of the checkpoint",
    )
    run([*command, "--ignore_init_mismatch", "true"])
    before, after = load(checkpoint), load(folder / "1epoch.pth")
    same = {n for n in before if before[n].shape == after[n].shape}
    assert all(torch.equal(before[name], after[name]) for name in same)
    assert "encoder.embed.conv.0.weight" in same
    assert "joint_network.lin_out.weight" not in same


def test_a_folder_that_cannot_be_written(corpus):
    command, folder = corpus.train("read_only", **OUR_DECODER)
    folder.mkdir(mode=0o555)
    if os.geteuid() == 0:
        command = sabotaged("obey_modes", "-", command)
    printed = run(command, expect_failure=True)
    assert_one_message(printed, f"Permission denied: '{folder / 'config.yaml'}'")
