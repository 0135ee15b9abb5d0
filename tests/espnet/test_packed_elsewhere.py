"""A packed model where this package is missing: what is said, what to install."""

from __future__ import annotations

import zipfile

import pytest
import yaml
from espnet2.main_funcs.pack_funcs import unpack
from espnet2.tasks.asr import ASRTask, model_choices
from support.espnet_commands import OUR_DECODER, run

from espnet_sampled_rnnt import __version__
from espnet_sampled_rnnt.requirement import DISTRIBUTION, check_requirement

REQUIRES = "espnet-sampled-rnnt>=0.1"


def test_the_packed_configuration_names_what_to_install(corpus, tmp_path, monkeypatch):
    options = {"ctc_weight": 0.3, "num_samples": 2, "requires": REQUIRES}
    command, folder = corpus.train(
        "packed_elsewhere",
        "--dry_run",
        "true",
        **{**OUR_DECODER, "model_conf": options},
    )
    run(command)
    model_file = folder / "model.pth"
    model_file.touch()
    archive = tmp_path / "packed.zip"
    command = ["espnet2.bin.pack", "asr", "--outpath", archive]
    command += ["--asr_train_config", folder / "config.yaml"]
    run([*command, "--asr_model_file", model_file])

    with zipfile.ZipFile(archive) as packed:
        [name] = [x for x in packed.namelist() if x.endswith("config.yaml")]
        config = yaml.safe_load(packed.read(name))
    assert config["model"] == "sampled_transducer"
    assert config["model_conf"]["requires"] == REQUIRES

    # What ESPnet says where it does not know the class; it knows it here.
    unpacked = unpack(archive, tmp_path / "unpacked")["asr_train_config"]
    ASRTask.build_model_from_file(unpacked)
    monkeypatch.delitem(model_choices.classes, "sampled_transducer")
    with pytest.raises(ValueError, match=r"must be one of .* sampled_transducer"):
        ASRTask.build_model_from_file(unpacked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{DISTRIBUTION}>=99", f"but {DISTRIBUTION} {__version__} is installed; pip"),
        ("Espnet_Sampled.RNNT<0", "is installed; pip install 'Espnet_Sampled.RNNT<0'"),
        ("torch>=2", "allowed: espnet-sampled-rnnt and"),
        ("install it", "is 'install it'; allowed"),
    ],
)
def test_a_requirement_that_is_not_met(text, message):
    with pytest.raises(ValueError, match=message):
        check_requirement(text, __version__)


@pytest.mark.parametrize(
    "text", [None, REQUIRES, "espnet_sampled_rnnt", "espnet-sampled-rnnt<9"]
)
def test_a_requirement_that_is_met(text):
    check_requirement(text, __version__)
