"""Token lists: BPE, words, one like Whisper's, 250,000 tokens, a blank that is not 0.

Characters are what the other tests of this folder have.
"""

from __future__ import annotations

import math
import string
from pathlib import Path

import pytest
import sentencepiece
import torch
from support.asr_models import TOKENS, build_asr_model, make_batch
from support.espnet_commands import (
    STOCK_DECODER,
    TRANSCRIPTS,
    Corpus,
    load,
    run,
    run_side_by_side,
)


def write_list(path: Path, tokens: list[str]) -> Path:
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


def bpe(folder: Path) -> list[object]:
    """Options for pieces that sentencepiece learned from the transcripts."""
    text = folder / "bpe.txt"
    text.write_text("\n".join(TRANSCRIPTS * 20) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "bpe"), model_type="bpe",
        vocab_size=14, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(str(folder / "bpe.model"))
    pieces = [model.id_to_piece(index) for index in range(model.get_piece_size())]
    pieces = [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]
    tokens = ["<blank>", "<unk>", *pieces, "<sos/eos>"]
    return [
        *("--token_type", "bpe", "--bpemodel", folder / "bpe.model"),
        *("--token_list", write_list(folder / "bpe_tokens.txt", tokens)),
    ]


def words(folder: Path) -> list[object]:
    """Options for whole words."""
    known = sorted({word for text in TRANSCRIPTS for word in text.split()})
    tokens = ["<blank>", "<unk>", *known, "<sos/eos>"]
    token_list = write_list(folder / "words.txt", tokens)
    return ["--token_type", "word", "--token_list", token_list]


def like_whisper(folder: Path) -> list[object]:
    """Options for a list with Whisper's punctuation, pieces and many special tokens.

    Its start and end are two tokens, in front of languages and time stamps.
    """
    pieces = [*string.punctuation, *string.ascii_letters]
    pieces += [f"Ġ{one}{two}" for one in string.ascii_lowercase for two in "aeiou"]
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>"]
    special += [f"<|{index * 0.02:.2f}|>" for index in range(1501)]
    tokens = ["<blank>", "<unk>", "<space>", *pieces, *special]
    token_list = write_list(folder / "whisper.txt", tokens)
    return ["--token_type", "char", "--token_list", token_list]


LISTS = {"bpe": bpe, "words": words, "like_whisper": like_whisper}


@pytest.mark.parametrize("name", LISTS)
def test_training_and_decoding(corpus: Corpus, name):
    model_conf = {"ctc_weight": 0.3, "num_samples": 4}
    if name == "like_whisper":
        model_conf["sym_sos"] = "<|startoftranscript|>"
        model_conf["sym_eos"] = "<|endoftext|>"
    train, folder = corpus.train(
        f"tokens_{name}",
        *LISTS[name](corpus.folder),
        **{**STOCK_DECODER, "max_epoch": 1, "model_conf": model_conf},
    )
    printed = run(train)
    assert "wer_transducer=" in printed
    decode, text = corpus.decode(folder, "1epoch.pth", f"decode_{name}", 1, {})
    run(decode)
    assert len(text.read_text(encoding="utf-8").splitlines()) == len(TRANSCRIPTS)


def test_blank_anywhere(corpus: Corpus):
    """Training, validation and greedy decoding where blank is the last but one."""
    tokens = [*TOKENS[1:-1], "<blank>", "<sos/eos>"]
    token_list = write_list(corpus.folder / "blank_late.txt", tokens)
    commands = []
    for name, model_conf in (
        ("sampled", {"num_samples": 2, "sampling_distribution": "uniform"}),
        ("full", {"num_samples": 0, "sampling_distribution": "uniform"}),
    ):
        command, folder = corpus.train(
            f"blank_late_{name}",
            *("--token_list", token_list),
            decoder="sampled_transducer",
            decoder_conf={
                "hidden_size": 8,
                "embed_pad": len(tokens) - 2,
                "joint_net_conf": {"joint_space_size": 8},
            },
            model_conf={"ctc_weight": 0.0, **model_conf},
            max_epoch=1,
        )
        commands.append(command)
    printed, _ = run_side_by_side(*commands)
    assert f"<blank> is token {len(tokens) - 2}" in printed
    decode, text = corpus.decode(folder, "1epoch.pth", "decode_blank_late", 1, {})
    run(decode)
    assert "<blank>" not in text.read_text(encoding="utf-8")


@pytest.mark.parametrize("num_samples", [0, 3])
def test_place_of_blank_changes_nothing(num_samples):
    """Tokens in another order, parameters in the same one: the same loss."""
    options = {"ctc_weight": 0.0, "num_samples": num_samples}
    model_conf = {**options, "sampling_distribution": "unigram"}
    model = build_asr_model(model_conf=model_conf)
    order = [*range(1, len(TOKENS) - 1), 0, len(TOKENS) - 1]  # new to old
    moved = build_asr_model(
        token_list=[TOKENS[old] for old in order], model_conf=model_conf
    )
    state = model.state_dict()
    for name in ("decoder.embed.weight", "joint_network.lin_out.weight"):
        state[name] = state[name][order]
    state["joint_network.lin_out.bias"] = state["joint_network.lin_out.bias"][order]
    moved.load_state_dict({**moved.state_dict(), **state})
    batch = make_batch()
    expected = model.eval()(**batch)[0]
    place = torch.tensor([order.index(old) for old in range(len(TOKENS))])
    text = batch["text"]
    batch["text"] = torch.where(text < 0, text, place[text.clamp(min=0)])
    torch.testing.assert_close(moved.eval()(**batch)[0], expected)
    moved.train()(**batch)[0].backward()  # sampling knows where blank is, too
    assert moved.joint_network.lin_out.weight.grad[order.index(0)].abs().sum() > 0


def test_list_without_blank_is_told():
    """Whisper's own list has none; ESPnet then takes token 0, which is a label."""
    tokens = ["!", "<unk>", "<space>", *TOKENS[3:]]
    model = build_asr_model(token_list=tokens)
    batch = make_batch()
    batch["text"][0, 0] = 0
    with pytest.raises(ValueError, match=r"0 \(blank\)"):
        model(**batch)


@pytest.mark.parametrize("distribution", ["uniform", "unigram", "ctc"])
def test_250000_tokens(distribution):
    """A step of training, and the full softmax of validation."""
    count = 250_000
    tokens = ["<blank>", "<unk>", *(f"t{n}" for n in range(count - 3)), "<sos/eos>"]
    model = build_asr_model(
        token_list=tokens,
        model_conf={
            "ctc_weight": 0.3,
            "num_samples": 64,
            "sampling_distribution": distribution,
            "report_wer": False,
        },
    )
    batch = make_batch()
    batch["text"][0, :2] = torch.tensor([count - 2, 123_456])
    loss, stats, _ = model.train()(**batch)
    loss.backward()
    assert 64 < stats["sampled_vocabulary_size"].item() <= 64 + 5
    gradient = model.joint_network.lin_out.weight.grad
    assert gradient[count - 2].abs().sum() > 0
    assert 64 < (gradient.abs().sum(1) > 0).sum().item() <= 3 * (64 + 5)
    # Exact, and close to log V a label and frame, as an untrained softmax is.
    with torch.no_grad():
        validation = model.eval()(**batch)[1]["loss_transducer"].item()
    nodes = sum((12 + 4, 9 + 2, 5)) / 3
    assert validation == pytest.approx(nodes * math.log(count), rel=0.3)


@pytest.mark.slow
def test_250000_tokens_by_the_command(corpus: Corpus):
    """ESPnet writes and reads the list in config.yaml, which takes most of the time."""
    tokens = [*TOKENS[:-1], *(f"t{n}" for n in range(250_000)), TOKENS[-1]]
    token_list = write_list(corpus.folder / "huge.txt", tokens)
    command, folder = corpus.train(
        "huge",
        *("--token_list", token_list),
        **{**STOCK_DECODER, "max_epoch": 1},
    )
    assert "wer_transducer=" in run(command, timeout=1200)
    weight = load(folder / "1epoch.pth")["joint_network.lin_out.weight"]
    assert len(weight) == len(tokens)
    decode, text = corpus.decode(folder, "1epoch.pth", "decode_huge", 1, {})
    run(decode, timeout=1200)
    assert len(text.read_text(encoding="utf-8").splitlines()) == len(TRANSCRIPTS)


def test_fastemit(corpus: Corpus):
    """The loss is reported as without it; training goes elsewhere."""
    commands, folders = [], []
    for strength in (0.0, 0.5):
        model_conf = {"ctc_weight": 0.3, "num_samples": 2, "fastemit_lambda": strength}
        command, folder = corpus.train(
            f"fastemit_{strength}",
            **{**STOCK_DECODER, "max_epoch": 1, "model_conf": model_conf},
        )
        commands.append([*command, "--log_interval", "1"])
        folders.append(folder)
    printed = run_side_by_side(*commands)
    first = [
        next(line for line in text.splitlines() if "1epoch:train:1-1batch" in line)
        .split("loss_transducer=")[1]
        .split(",")[0]
        for text in printed
    ]
    assert first[0] == first[1]
    left, right = (load(folder / "1epoch.pth") for folder in folders)
    name = "joint_network.lin_out.bias"
    assert not torch.equal(left[name], right[name])
