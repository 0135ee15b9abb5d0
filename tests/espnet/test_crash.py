"""A run that ends in any way goes on from its last whole epoch."""

from __future__ import annotations

import os
import signal
import stat

import pytest
import torch
from support.checkpoints import load_checkpoint
from support.espnet_commands import OUR_DECODER, assert_same_parameters, load, run
from support.hostile import assert_one_message
from support.sabotage import TORN_BYTES, sabotaged

from espnet_sampled_rnnt import safe_saving
from espnet_sampled_rnnt.safe_saving import SWITCH

SAFE = {SWITCH: "1"}


@pytest.fixture(scope="module")
def whole(corpus):
    """Two epochs of two batches each that nothing disturbed."""
    command, folder = corpus.train("undisturbed", **OUR_DECODER)
    run(command)
    return folder


def assert_same_run(folder, whole) -> None:
    for name in ("2epoch.pth", "valid.loss.ave_2best.pth"):
        assert_same_parameters(load(folder / name), load(whole / name))
    moments = [
        [value for state in checkpoint["optimizers"] for value in tensors_of(state)]
        for checkpoint in (load_checkpoint(path) for path in (folder, whole))
    ]
    assert len(moments[0]) > 0
    for left, right in zip(*moments, strict=True):
        assert torch.equal(left, right)


def tensors_of(optimizer_state: dict) -> list[torch.Tensor]:
    return [
        value
        for moments in optimizer_state["state"].values()
        for value in moments.values()
    ]


@pytest.mark.parametrize(
    ("action", "number", "safe", "last_whole_epoch"),
    [
        ("kill_in_batch", 4, {}, 1),
        # ESPnet saves checkpoint.pth and then the model, at each epoch's end. Safe
        # saving puts the model before as well, so these are of the second epoch:
        ("kill_in_save", 4, SAFE, 1),  # that model
        ("kill_in_save", 5, SAFE, 1),  # checkpoint.pth
        ("kill_in_save", 6, SAFE, 2),  # the model once more
    ],
)
def test_goes_on_from_the_last_whole_epoch(
    corpus, whole, action, number, safe, last_whole_epoch
):
    name = f"{action}_{number}"
    command, folder = corpus.train(name, "--resume", "true", **OUR_DECODER)
    run(sabotaged(action, number, command), expect_failure=True, **safe)
    checkpoint = load_checkpoint(folder)
    assert checkpoint["reporter"]["epoch"] == last_whole_epoch
    run(command, **safe)
    assert_same_run(folder, whole)


def test_a_full_disk_costs_no_epoch(corpus, whole):
    command, folder = corpus.train("full_disk", "--resume", "true", **OUR_DECODER)
    printed = run(sabotaged("full_disk_in_save", 5, command), True, **SAFE)
    path = folder / "checkpoint.pth"
    assert_one_message(printed, f"cannot save {path}: File too large; what was there")
    assert load_checkpoint(folder)["reporter"]["epoch"] == 1
    assert not list(folder.glob(".*.unfinished"))
    run(command, **SAFE)
    assert_same_run(folder, whole)


def test_what_espnet_itself_leaves_of_a_checkpoint(corpus):
    """Without safe saving; were this put right in ESPnet, that would be of no use."""
    command, folder = corpus.train("torn", "--resume", "true", **OUR_DECODER)
    run(sabotaged("kill_in_save", 3, command), expect_failure=True)
    assert (folder / "checkpoint.pth").stat().st_size == TORN_BYTES
    run(command, expect_failure=True)


def test_two_runs_in_one_folder(corpus):
    command, folder = corpus.train("shared", "--resume", "true", **OUR_DECODER)
    folder.mkdir()
    path = folder / "checkpoint.pth"
    safe_saving.save({"of": "the first run"}, path)  # held as long as this process is
    path.rename(folder / "first.pth")  # else the second would try to go on from it
    printed = run(command, expect_failure=True, **SAFE)
    assert_one_message(printed, f"another run is saving checkpoints in {folder}")
    assert not path.exists()


def test_a_file_is_replaced_whole(tmp_path):
    target, link = tmp_path / "target.pth", tmp_path / "link.pth"
    target.write_bytes(b"before")
    os.symlink(target, link)
    safe_saving.save({"a": torch.arange(3)}, str(link))
    assert link.is_symlink()
    assert torch.equal(load(target)["a"], torch.arange(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "link.pth",
        "target.pth",
    ]


def test_what_cannot_be_pickled_spoils_nothing(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(b"before")
    with pytest.raises((AttributeError, TypeError), match=r"pickle|local object"):
        safe_saving.save({"a": lambda: 0}, path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match=r"cannot save .*No such file or directory"):
        safe_saving.save({}, tmp_path / "nowhere" / "a.pth")


def test_a_stream_is_written_as_ever(tmp_path):
    with open(tmp_path / "a.pth", "wb") as stream:
        safe_saving.save({"a": 1}, stream)
    assert load(tmp_path / "a.pth") == {"a": 1}


def test_a_pipe_is_written_into_and_stays_one(tmp_path):
    """So does a device: /dev/null must not become a file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        safe_saving.save({"a": 1}, path)
        assert os.read(reader, 4).startswith(b"PK")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_file_that_others_may_not_read_stays_so(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(b"before")
    path.chmod(0o600)
    safe_saving.save({}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "checkpoint", [torch.zeros(2), {"reporter": {"epoch": "../x"}}]
)
def test_a_checkpoint_that_is_not_espnets(tmp_path, checkpoint):
    safe_saving.save(checkpoint, tmp_path / "checkpoint.pth")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint.pth", safe_saving.LOCK_NAME}


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"cannot save .*Not a directory"):
        safe_saving.save({}, tmp_path / "file" / "a.pth")


def test_workers_that_outlive_a_killed_run_do_not_hold_its_folder(tmp_path):
    path = tmp_path / "checkpoint.pth"
    ready, told = os.pipe()
    run_id = os.fork()
    if run_id == 0:
        safe_saving.save({}, path)
        worker = os.fork()
        if worker == 0:
            signal.pause()
        os.write(told, str(worker).encode())
        signal.pause()
    worker = int(os.read(ready, 20))
    os.kill(run_id, signal.SIGKILL)
    os.waitpid(run_id, 0)
    try:
        safe_saving.save({}, path)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(ready)
        os.close(told)
