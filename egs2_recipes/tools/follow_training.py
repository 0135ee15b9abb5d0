#!/usr/bin/env python3
"""Pass asr.sh's output through and show, while it trains, one line an epoch.

asr.sh says where its training log goes and then is silent until training ends. This
filter copies stdin to stdout; once it reads that announcement it follows the log and
prints the losses and error rates of each epoch as they are written.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path

STARTED = re.compile(r"(?:ASR|LM) training started\.\.\. log: '([^']+)'")
AFTER = re.compile(r"Stage \d+:|Successfully finished")
RESULTS = re.compile(r"(\d+)epoch results: (.*)")
SECTION = re.compile(r"\[(train|valid)\] ([^\[]*)")
SHOWN = re.compile(r"\b(loss(?!_scale)\w*|acc|cer\w*)=([-+.\w]+)")
POLL_SECONDS = 0.5


def epoch_line(text: str) -> str | None:
    """One short line from a line of ESPnet's training log, None if it is another.

    Left out are byte counts, timings, and what is nan because the model has none.
    """
    found = RESULTS.search(text)
    if found is None:
        return None
    parts = []
    for name, values in SECTION.findall(found[2]):
        pairs = [
            f"{key}={value}"
            for key, value in SHOWN.findall(values)
            if value != "nan" and "bytes" not in key
        ]
        parts.append(f"{name}: {' '.join(pairs)}")
    return f"  epoch {found[1]:>3}  " + "   ".join(parts)


def state_of(log: Path) -> tuple[int | None, int]:
    """The inode and size of a log; None and 0 where there is none yet."""
    if not log.exists():
        return None, 0
    status = log.stat()
    return status.st_ino, status.st_size


def follow(log: Path, start: tuple[int | None, int], finished: threading.Event) -> None:
    """Print the epochs of the log as they come, until ``finished`` and its end.

    ESPnet moves an earlier log aside when training resumes; a log that was there
    before (``start``) is therefore skipped until it is replaced or grows.
    """
    inode, position = start
    while True:
        last_round = finished.is_set()
        current, size = state_of(log)
        if current is not None:
            if current != inode or size < position:
                inode, position = current, 0
            with log.open("rb") as stream:
                stream.seek(position)
                for line in stream:
                    if not line.endswith(b"\n") and not last_round:
                        break  # half written: read it again in the next round
                    position += len(line)
                    shown = epoch_line(line.decode("utf-8", "replace"))
                    if shown is not None:
                        print(shown, flush=True)
        if last_round:
            return
        time.sleep(POLL_SECONDS)


def main() -> int:
    finished = threading.Event()
    follower: threading.Thread | None = None

    def stop() -> None:
        nonlocal follower, finished
        if follower is not None:
            finished.set()
            follower.join()
            follower, finished = None, threading.Event()

    for line in sys.stdin:
        started = STARTED.search(line)
        # asr.sh speaks again: training is over, its last epochs come first
        if follower is not None and AFTER.search(line):
            stop()
        if started is not None:
            stop()
            # before the line goes out: nobody may replace the log in between
            log = Path(started[1])
            arguments = (log, state_of(log), finished)
        print(line, end="", flush=True)
        if started is not None:
            follower = threading.Thread(target=follow, args=arguments, daemon=True)
            follower.start()
    stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
