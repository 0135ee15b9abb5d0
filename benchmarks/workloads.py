"""Named problems: shapes to run the loss on.

A family is what ``--workloads`` takes; it holds one workload, or for a sweep one
for each point. To add one, write a function and put it in ``FAMILIES``.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Shapes = tuple[tuple[int, ...], tuple[int, ...]]

# What the published figures were measured on: a batch of 30 in file order.
LIBRISPEECH_BATCH = 30

FULL = ("torchaudio-full", "ours-full", "gemms-full")
SAMPLED = ("nemo-like", "ours-example", "gemms-example", "ours-batch", "gemms-batch")
# Other people's losses; where one is not installed, the run says so and goes on.
EXTERNAL = (
    "warp-rnnt",
    "optimized-transducer",
    "k2",
    "k2-pruned",
    "fast-rnnt",
    "fast-rnnt-pruned",
)
LATTICES = (
    "lattice-torchaudio",
    "lattice:auto",
    "lattice:numba",
    "lattice:torchaudio",
    "lattice:warp_rnnt",
    "lattice:reference",
)
DRAWS = ("draw-uniform", "draw-weighted", "draw-weighted-rows")


@dataclass(frozen=True)
class Workload:
    """One problem.

    Attributes:
        family: the name that ``--workloads`` takes.
        frames: T_b of each utterance.
        labels: U_b of each utterance.
        vocab_size: V.
        joint_size: J.
        num_samples: S.
        contenders: who runs where ``--contenders`` does not say.
        axis: for a point of a sweep what is swept: "V", "S" or "B".
    """

    family: str
    frames: tuple[int, ...]
    labels: tuple[int, ...]
    vocab_size: int
    joint_size: int
    num_samples: int
    contenders: tuple[str, ...]
    axis: str | None = None

    @property
    def name(self) -> str:
        """The family, for a point of a sweep with the swept value."""
        if self.axis is None:
            return self.family
        return f"{self.family}/{self.axis}={self.axis_value}"

    @property
    def axis_value(self) -> int | None:
        """The swept value, None where nothing is swept."""
        values = {"V": self.vocab_size, "S": self.num_samples, "B": self.batch}
        return None if self.axis is None else values[self.axis]

    @property
    def batch(self) -> int:
        """B."""
        return len(self.frames)

    @property
    def nodes(self) -> int:
        """N, the valid nodes."""
        pairs = zip(self.frames, self.labels, strict=True)
        return sum(frames * (labels + 1) for frames, labels in pairs)

    @property
    def padded_nodes(self) -> int:
        """B T (U + 1), the nodes of a padded tensor."""
        return self.batch * max(self.frames) * (max(self.labels) + 1)

    def softmax_size(self, softmax: str) -> int:
        """K for softmax "full", "example" or "batch"; an upper bound if sampled."""
        if softmax == "full":
            return self.vocab_size
        labels = max(self.labels) if softmax == "example" else sum(self.labels)
        return min(self.vocab_size, 1 + labels + self.num_samples)


@dataclass(frozen=True)
class Family:
    """What ``--workloads`` takes.

    Attributes:
        description: one line for ``--list``.
        make: gives the workloads, from the LibriSpeech shapes where it needs them.
        needs_shapes: whether it does.
    """

    description: str
    make: Callable[[Shapes], Iterator[Workload]]
    needs_shapes: bool = False


def _even(batch: int, frames: int, labels: int) -> Shapes:
    return (frames,) * batch, (labels,) * batch


def _tiny(_: Shapes) -> Iterator[Workload]:
    yield Workload(
        "tiny", (9, 7), (3, 2), 40, 8, 5, ("dense-gradient", *FULL, *SAMPLED)
    )


def _method(_: Shapes) -> Iterator[Workload]:
    contenders = (
        *FULL,
        "torchaudio-full-kept",
        *SAMPLED,
        "ours-example:torchaudio",
        "ours-example:reference",
        "ours-full:torchaudio",
        *EXTERNAL,
    )
    yield Workload("method", *_even(8, 150, 15), 4233, 320, 256, contenders)


def _aishell(_: Shapes) -> Iterator[Workload]:
    contenders = (*FULL, *SAMPLED, *EXTERNAL)
    yield Workload("aishell", *_even(16, 471, 19), 4233, 320, 256, contenders)


def _csj(_: Shapes) -> Iterator[Workload]:
    # Made up: lectures, so longer utterances than AISHELL's, of uneven length.
    frames, labels = (600, 520, 430, 350), (45, 38, 30, 26)
    yield Workload("csj", frames, labels, 3262, 320, 256, (*FULL, *SAMPLED))


def _librispeech(shapes: Shapes) -> Iterator[Workload]:
    contenders = ("torchaudio-full", "ours-full", "gemms-full", "ours-example")
    yield Workload("librispeech", *shapes, 500, 512, 128, (*contenders, *EXTERNAL))


def _large(_: Shapes) -> Iterator[Workload]:
    yield Workload("large", *_even(16, 512, 60), 21_800, 512, 512, (*FULL, *SAMPLED))


def _multilingual(_: Shapes) -> Iterator[Workload]:
    contenders = ("dense-gradient", *FULL, *SAMPLED)
    yield Workload("multilingual", *_even(8, 150, 15), 250_000, 320, 512, contenders)


def _v_sweep(_: Shapes) -> Iterator[Workload]:
    contenders = ("dense-gradient", "ours-example", "nemo-like")
    for vocab_size in (1_000, 4_000, 16_000, 64_000, 250_000):
        full = ("ours-full",) if vocab_size <= 16_000 else ()
        # Above that a step takes half a minute and more.
        full += ("torchaudio-full",) if vocab_size <= 4_000 else ()
        yield Workload(
            "v-sweep",
            *_even(8, 150, 15),
            vocab_size,
            320,
            512,
            (*contenders, *full),
            axis="V",
        )


def _s_sweep(_: Shapes) -> Iterator[Workload]:
    for num_samples in (32, 64, 128, 256, 512, 1024, 2048):
        contenders = ("ours-example", "nemo-like")
        # The exact loss does not depend on S: once, as the line to compare with.
        exact = ("ours-full",) if num_samples == 2048 else ()
        yield Workload(
            "s-sweep",
            *_even(8, 150, 15),
            4233,
            320,
            num_samples,
            (*contenders, *exact),
            axis="S",
        )


def _b_sweep(_: Shapes) -> Iterator[Workload]:
    for batch in (8, 16, 32, 64, 128, 256):
        contenders = ("ours-full", "ours-example")
        # Padded logits grow with B; four points are enough to draw them.
        others = ("torchaudio-full", "nemo-like") if batch <= 64 else ()
        yield Workload(
            "b-sweep",
            *_even(batch, 150, 15),
            500,
            128,
            64,
            (*contenders, *others),
            axis="B",
        )


def _lattice(shapes: Shapes) -> Iterator[Workload]:
    yield Workload("lattice", *shapes, 500, 512, 128, LATTICES)


def _sampling(_: Shapes) -> Iterator[Workload]:
    contenders = ("ours-example", *DRAWS)
    yield Workload("sampling", *_even(8, 150, 15), 5000, 320, 256, contenders)


FAMILIES: dict[str, Family] = {
    "tiny": Family("milliseconds, for trying the commands out", _tiny),
    "method": Family("B 8, T 150, U 15, V 4233, J 320, S 256", _method),
    "aishell": Family("B 16, T 471, U 19, V 4233, J 320, S 256", _aishell),
    "csj": Family("made up: B 4, T 350 to 600, U 26 to 45, V 3262, J 320", _csj),
    "librispeech": Family(
        "30 LibriSpeech utterances, V 500, J 512, from the shapes given",
        _librispeech,
        needs_shapes=True,
    ),
    "large": Family("B 16, T 512, U 60, V 21800, J 512, S 512", _large),
    "multilingual": Family("B 8, T 150, U 15, V 250000, J 320, S 512", _multilingual),
    "v-sweep": Family("V from 1,000 to 250,000 at S 512", _v_sweep),
    "s-sweep": Family("S from 32 to 2,048 at V 4233", _s_sweep),
    "b-sweep": Family("B from 8 to 256 at T 150, U 15, V 500, J 128", _b_sweep),
    "lattice": Family(
        "the lattice alone on 30 LibriSpeech utterances",
        _lattice,
        needs_shapes=True,
    ),
    "sampling": Family("drawing the vocabulary beside a step, V 5000", _sampling),
}


def read_shapes(path: Path, count: int = LIBRISPEECH_BATCH) -> Shapes:
    """Frames and labels of the first ``count`` utterances of a CSV file.

    Args:
        path: rows ``num_frames,num_tokens`` under such a header, plain or gzip.
        count: how many, in file order.

    Raises:
        ValueError: no such columns, or fewer rows.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    frames, labels = [], []
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        wanted = {"num_frames", "num_tokens"}
        if not wanted <= set(reader.fieldnames or ()):
            raise ValueError(
                f"{path} must have the columns num_frames and num_tokens, "
                f"but has {reader.fieldnames}"
            )
        for row in reader:
            if len(frames) == count:
                break
            frames.append(int(row["num_frames"]))
            labels.append(int(row["num_tokens"]))
    if len(frames) < count:
        raise ValueError(f"{path} has {len(frames)} rows, but {count} are needed")
    return tuple(frames), tuple(labels)


def make_workloads(family: str, shapes: Shapes | None) -> list[Workload]:
    """The workloads of a family.

    Raises:
        ValueError: an unknown family, or one that needs ``shapes`` without them.
    """
    if family not in FAMILIES:
        raise ValueError(
            f"workload {family!r} is not known; known: {', '.join(FAMILIES)}"
        )
    known = FAMILIES[family]
    if known.needs_shapes and shapes is None:
        raise ValueError(
            f"workload {family!r} needs --librispeech-shapes, a CSV file of "
            f"num_frames,num_tokens"
        )
    return list(known.make(shapes or ((), ())))
