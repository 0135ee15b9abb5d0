"""What follows training: decoding, packing, quantizing, aligning and streaming.

One transducer with a streaming encoder is trained, with a vocabulary of letters, and
goes through ESPnet's commands and classes as any of its own models does.
"""

from __future__ import annotations

import shutil
import string
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from support.espnet_commands import (
    STOCK_DECODER,
    TRANSCRIPTS,
    Corpus,
    run,
    run_side_by_side,
)

SEARCHES = {
    "default": {"search_type": "default"},
    "tsd": {"search_type": "tsd", "max_sym_exp": 2},
    "alsd": {"search_type": "alsd", "u_max": 10},
    "nsc": {"search_type": "nsc", "nstep": 2, "prefix_alpha": 2},
    "maes": {"search_type": "maes", "nstep": 2, "prefix_alpha": 2},
}
ENCODER = {
    "encoder": "contextual_block_transformer",
    "encoder_conf": {
        "output_size": 8,
        "attention_heads": 2,
        "linear_units": 8,
        "num_blocks": 1,
        "block_size": 8,
        "hop_size": 4,
        "look_ahead": 2,
    },
}
EPOCHS = 8  # until blank is likely: the default search takes long where it is not


class Experiment:
    """A trained model, and a language model of the same tokens."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        tokens = ["<blank>", "<unk>", "<space>", *string.ascii_lowercase, "<sos/eos>"]
        token_list = corpus.folder / "letters.txt"
        token_list.write_text("\n".join(tokens) + "\n", "utf-8")
        options = ("--token_list", token_list)
        train_asr, self.folder = corpus.train(
            "inference",
            *options,
            **STOCK_DECODER,
            **ENCODER,
            optim_conf={"lr": 0.02},
            max_epoch=EPOCHS,
        )
        self.lm_folder = corpus.folder / "lm"
        config = corpus.folder / "lm.yaml"
        settings = {
            "lm": "seq_rnn",
            "lm_conf": {"unit": 8, "nlayers": 1},
            "max_epoch": 1,
            "batch_type": "unsorted",
            "num_workers": 0,
            "best_model_criterion": [["valid", "loss", "min"]],
            "use_tensorboard": False,
            "use_matplotlib": False,
        }
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        train_lm = ["espnet2.bin.lm_train", "--config", config, "--ngpu", 0]
        train_lm += ["--output_dir", self.lm_folder, "--token_type", "char", *options]
        for part in ("train", "valid"):
            text = f"{corpus.folder / 'text'},text,text"
            train_lm += [f"--{part}_data_path_and_name_and_type", text]
            shapes = corpus.stats / part / "text_shape"
            train_lm += [f"--{part}_shape_file", shapes]
        run_side_by_side(train_asr, train_lm)

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def model(self) -> Path:
        return self.folder / "valid.loss.best.pth"

    @property
    def lm(self) -> dict[str, Path]:
        return {
            "lm_train_config": self.lm_folder / "config.yaml",
            "lm_file": self.lm_folder / "valid.loss.best.pth",
        }

    def recording(self, index: int = 0) -> np.ndarray:
        samples, _ = soundfile.read(self.corpus.folder / f"utt{index}.wav")
        return samples.astype(np.float32)

    def decode(
        self, name: str, *options: object, beam_size: int, **search: object
    ) -> tuple[list[str], Path]:
        """The command ``asr_inference``, and the folder that it writes."""
        command, text = self.corpus.decode(
            self.folder, self.model.name, name, beam_size, search
        )
        return [*command, *map(str, options)], text.parents[1]


@pytest.fixture(scope="module")
def experiment(corpus) -> Experiment:
    return Experiment(corpus)


def test_every_search_with_a_language_model(experiment):
    commands, outputs = [], {}
    with_lm = [f"--{name}={path}" for name, path in experiment.lm.items()]
    for name, search in SEARCHES.items():
        command, outputs[name] = experiment.decode(
            f"lm_{name}",
            "--nbest",
            3,
            "--lm_weight",
            0.3,
            *with_lm,
            beam_size=4,
            nbest=3,
            **search,
        )
        commands.append(command)
    run_side_by_side(*commands)
    for name, output in outputs.items():
        for rank in (1, 2, 3):
            lines = (output / f"{rank}best_recog" / "text").read_text().splitlines()
            assert len(lines) == len(TRANSCRIPTS), (name, rank)


def speech2text(experiment: Experiment, config: Path, **options: object):
    from espnet2.bin.asr_inference import Speech2Text

    return Speech2Text(config, experiment.model, **options)


@pytest.mark.parametrize("search", SEARCHES)
def test_beams_and_espnets_own_classes(
    experiment, espnets_own_transducer, tmp_path, search
):
    """The checkpoint decodes alike in the model of ESPnet, for each width and LM."""
    config = yaml.safe_load(experiment.config.read_text(encoding="utf-8"))
    config.update(model="espnet", model_conf={"ctc_weight": 0.3})
    stock = tmp_path / "stock.yaml"
    stock.write_text(yaml.safe_dump(config), encoding="utf-8")
    for beam_size in (1, 2, 3, 6, 10):
        lm = experiment.lm if beam_size % 2 == 0 else {}
        options = {
            "beam_size": beam_size,
            "nbest": beam_size,
            "transducer_conf": {**SEARCHES[search], "nbest": beam_size},
            **lm,
        }
        found = []
        for path in (experiment.config, stock):
            results = speech2text(experiment, path, **options)(experiment.recording())
            found.append([(result[2], float(result[3].score)) for result in results])
        assert found[0] == found[1]
        assert len(found[0]) > (beam_size > 1)


def test_quantized(experiment):
    """Every search takes linear layers of 8 bits, ESPnet's batched ones or not."""
    commands, outputs = [], {}
    for name, search in {"greedy": {}, **SEARCHES}.items():
        command, outputs[name] = experiment.decode(
            f"quantized_{name}",
            "--quantize_asr_model",
            "true",
            beam_size=3 if search else 1,
            **search,
        )
        commands.append(command)
    run_side_by_side(*commands)
    for name, output in outputs.items():
        lines = (output / "1best_recog" / "text").read_text().splitlines()
        assert len(lines) == len(TRANSCRIPTS), name


def test_quantized_scores(experiment):
    """Quantizing moves the joint network's scores a little, and hardly a choice."""
    plain, quantized = (
        speech2text(experiment, experiment.config, quantize_asr_model=is_quantized)
        for is_quantized in (False, True)
    )
    generator = torch.Generator().manual_seed(29)
    enc, dec = torch.randn(2, 50, 8, generator=generator)
    joint = quantized.asr_model.joint_network
    assert not isinstance(joint.lin_out, torch.nn.Linear)
    with torch.no_grad():
        expected = plain.asr_model.joint_network(enc, dec).log_softmax(-1)
        rows = torch.stack([joint(e, d) for e, d in zip(enc, dec, strict=True)])
    assert rows.shape == expected.shape
    assert (rows.log_softmax(-1) - expected).abs().max() < 0.2


def test_packed(experiment, tmp_path, monkeypatch):
    """`espnet2.bin.pack asr`, and what is loaded from the archive alone."""
    archive = tmp_path / "packed.zip"
    files = {
        "asr_train_config": experiment.config,
        "asr_model_file": experiment.model,
        **experiment.lm,
    }
    monkeypatch.chdir(tmp_path)
    command: list[object] = ["espnet2.bin.pack", "asr", "--outpath", archive]
    for name, path in files.items():
        copy = Path(name).with_suffix(path.suffix)
        shutil.copy(path, copy)
        command += [f"--{name}", copy]
    run(command)
    for name, path in files.items():
        Path(name).with_suffix(path.suffix).unlink()
    plain = speech2text(experiment, experiment.config, beam_size=3, **experiment.lm)
    from espnet2.bin.asr_inference import Speech2Text

    if find_spec("espnet_model_zoo") is not None:
        monkeypatch.setenv("HOME", str(tmp_path))
        unpacked = Speech2Text.from_pretrained(str(archive), beam_size=3)
    else:  # from_pretrained asks for it (pip install espnet_model_zoo), then does this
        from espnet2.main_funcs.pack_funcs import unpack

        unpacked = Speech2Text(**unpack(archive, tmp_path / "unpacked"), beam_size=3)
    for index in range(len(TRANSCRIPTS)):
        recording = experiment.recording(index)
        (_, _, tokens, left), *_ = plain(recording)
        (_, _, unpacked_tokens, right), *_ = unpacked(recording)
        assert tokens == unpacked_tokens
        assert float(left.score) == float(right.score)


@pytest.mark.skipif(
    find_spec("ctc_segmentation") is None,
    reason="pip install ctc-segmentation==1.7.5 to run this",
)
def test_ctc_segmentation(experiment, tmp_path):
    """`asr_align`: where in the recording each of two utterances is."""
    text, output = tmp_path / "text", tmp_path / "segments"
    text.write_text("one b\ntwo ca\n", encoding="utf-8")
    command = ["espnet2.bin.asr_align", "--asr_train_config", experiment.config]
    command += ["--asr_model_file", experiment.model, "--text", text]
    command += ["--audio", experiment.corpus.folder / "utt1.wav", "--output", output]
    run(command)
    segments = [line.split() for line in output.read_text().splitlines()]
    assert [segment[0] for segment in segments] == ["one", "two"]
    for _, _, start, end, score, *_ in segments:
        assert 0 <= float(start) < float(end)
        assert float(score) <= 0


@pytest.mark.skipif(
    find_spec("espnet2.bin.align") is None, reason="ESPnet 202511 has no such module"
)
def test_forced_alignment(experiment):
    from espnet2.bin.align import ForcedAligner

    aligner = ForcedAligner(
        asr_train_config=experiment.config, asr_model_file=experiment.model
    )
    segments = aligner(experiment.corpus.folder / "utt1.wav", ["b", "ca"])
    assert [segment.text for segment in segments] == ["b", "ca"]
    assert 0 <= segments[0].start <= segments[0].end <= segments[1].start


def test_streaming(experiment):
    """Block by block by ESPnet's streaming encoder, as docs/inference.md does it."""
    docs = Path(__file__).parents[2] / "docs" / "inference.md"
    snippet = docs.read_text(encoding="utf-8").split("```python\n# streaming")[1]
    names = {
        "config": experiment.config,
        "checkpoint": experiment.model,
        "recording": experiment.corpus.folder / "utt4.wav",
    }
    exec(compile(snippet.split("```")[0], str(docs), "exec"), names)
    blocks = [block for block in names["encoded"] if len(block)]
    assert len(blocks) > 1
    with torch.no_grad():  # all frames at once
        encoded, *_ = names["model"].encoder(
            names["features"], names["lengths"], infer_mode=True
        )
        best, *_ = names["search"](encoded[0])
    torch.testing.assert_close(torch.cat(blocks), encoded[0], rtol=1e-4, atol=1e-5)
    assert names["best"].yseq == best.yseq


def test_espnets_streaming_search_forgets(experiment):
    """A fault of ESPnet's, told in docs/limits.md; where it is gone, so may that be."""
    from espnet2.asr.transducer.beam_search_transducer_streaming import (
        BeamSearchTransducerStreaming,
    )

    model = speech2text(experiment, experiment.config).asr_model
    search = BeamSearchTransducerStreaming(
        model.decoder, model.joint_network, beam_size=3, search_type="tsd"
    )
    first, second = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(31))
    with torch.no_grad():
        alone, *_ = search(second, is_final=True)
        search(first)
        after, *_ = search(second)
    assert list(map(int, after.yseq)) == list(map(int, alone.yseq))
    assert float(after.score) == float(alone.score)


def test_espnets_streaming_command_takes_no_transducer(experiment, tmp_path):
    """A limit of ESPnet's, told in docs/inference.md."""
    command = ["espnet2.bin.asr_inference_streaming", "--ngpu", 0]
    command += ["--output_dir", tmp_path / "streaming"]
    command += ["--asr_train_config", experiment.config]
    command += ["--asr_model_file", experiment.model]
    command += ["--data_path_and_name_and_type"]
    command += [f"{experiment.corpus.folder / 'wav.scp'},speech,sound"]
    assert "AssertionError" in run(command, expect_failure=True)
