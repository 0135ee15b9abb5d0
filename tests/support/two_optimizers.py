"""ESPnet's ASR task with two optimizers, in the way that ESPnet foresees.

Its tasks have one; a task with more says so in ``num_optimizers`` and overrides
``build_optimizers``. Run as a module it is ``asr_train`` for this task.
"""

from __future__ import annotations

from espnet2.tasks.abs_task import optim_classes
from espnet2.tasks.asr import ASRTask


class TwoOptimizerTask(ASRTask):
    """The encoder has an optimizer of its own."""

    num_optimizers = 2

    @classmethod
    def build_optimizers(cls, args, model):
        encoder = list(model.encoder.parameters())
        inside = {id(parameter) for parameter in encoder}
        others = [p for p in model.parameters() if id(p) not in inside]
        return [
            optim_classes[args.optim](encoder, **args.optim_conf),
            optim_classes[args.optim2](others, **args.optim2_conf),
        ]


if __name__ == "__main__":
    TwoOptimizerTask.main()
