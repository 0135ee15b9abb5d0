"""Two processes by ESPnet's own options, over gloo, as its launcher starts them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.espnet_commands import (
    CONFIG,
    OUR_DECODER,
    STOCK_DECODER,
    TRANSCRIPTS,
    assert_same_parameters,
    load,
    run,
)
from support.hostile import LEFT_OUT, make_hostile_corpus, replace_option
from support.sabotage import sabotaged

RANKS = (0, 1)
UNDROPPED = {
    **CONFIG["encoder_conf"],
    "dropout_rate": 0.0,
    "positional_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}


def by_options(rank: int) -> tuple[list[str], dict[str, str]]:
    """As ``espnet2.bin.launch --host`` starts a rank."""
    options = ["--multiprocessing_distributed", "false"]
    return [*options, "--dist_world_size", "2", "--dist_rank", str(rank)], {}


def by_slurm(rank: int) -> tuple[list[str], dict[str, str]]:
    """As ``espnet2.bin.launch --num_nodes 2`` does under srun, a process a node."""
    variables = {
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    return ["--dist_launcher", "slurm"], variables


def train_on_two(
    command: list[str], folder: Path, start: Callable = by_options
) -> tuple[list[str], list[dict]]:
    """What two ranks print, and what ``sabotage.record`` keeps of them."""
    meet = ["--dist_backend", "gloo", "--dist_init_method", f"file://{folder}/meet"]

    def train(rank: int) -> str:
        options, variables = start(rank)
        return run(
            sabotaged("record", folder, [*command, *meet, *options]), **variables
        )

    with ThreadPoolExecutor(len(RANKS)) as pool:
        printed = list(pool.map(train, RANKS))
    return printed, [load(folder / f"rank{rank}.pth") for rank in RANKS]


@pytest.mark.parametrize(
    ("decoder", "distribution", "start"),
    [(OUR_DECODER, "uniform", by_options), (STOCK_DECODER, "ctc", by_slurm)],
)
def test_ranks_agree_and_draw_differently(
    corpus, tmp_path, decoder, distribution, start
):
    """Batches of three and two utterances, so of one or two a rank, one of them empty.

    The two have the same transcript, and dropout takes no random numbers: without the
    rank in the seed, both ranks would draw the same tokens for them.
    """
    text = tmp_path / "text"
    transcripts = ["", *["ab"] * (len(TRANSCRIPTS) - 1)]
    text.write_text("".join(f"utt{i} {t}\n" for i, t in enumerate(transcripts)))
    model_conf = {
        "num_samples": {"points": {0: 2, 3: 3}, "unit": "updates"},
        "sampling_distribution": distribution,
        "ctc_weight": 0.3,
    }
    name = f"distributed_{distribution}"
    command, folder = corpus.train(
        name, **{**decoder, "encoder_conf": UNDROPPED, "model_conf": model_conf}
    )
    command = replace_option(command, f"{corpus.folder / 'text'},", f"{text},")
    printed, (first, second) = train_on_two(command, tmp_path, start)
    assert printed[0].count("epoch results") == 2
    assert_same_parameters(first["state"], second["state"])
    saved = load(folder / "2epoch.pth")
    assert int(saved.pop("sampler.updates")) == 4
    for name, value in saved.items():
        assert torch.equal(value, first["state"][name]), name
    sizes = [[len(batch) for batch in rank["drawn"]] for rank in (first, second)]
    assert sorted(sizes[0]) == [1, 1, 2, 2]
    assert sizes[1] == [1, 1, 1, 1]
    assert {len(row) for batch in first["drawn"] for row in batch} == {2, 3}
    pairs = [
        (one, other)
        for one, other in zip(first["drawn"], second["drawn"], strict=True)
        if len(one) == len(other) == 1
    ]
    assert len(pairs) == 2  # of the batch of two, in each epoch
    assert any(set(one[0]) != set(other[0]) for one, other in pairs)


def test_utterances_of_no_use_hang_no_rank(corpus, tmp_path):
    """An empty transcript, and batches of which one rank can use nothing."""
    hostile = make_hostile_corpus(corpus, tmp_path)
    command, folder = hostile.train("distributed", **OUR_DECODER)
    printed, (first, second) = train_on_two(command, tmp_path)
    assert all(f"Utterance {name} is" in "".join(printed) for name in LEFT_OUT)
    assert_same_parameters(first["state"], second["state"])
    for name, value in load(folder / "2epoch.pth").items():
        assert value.isfinite().all(), name
