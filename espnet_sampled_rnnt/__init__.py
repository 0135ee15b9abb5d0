"""Memory-efficient training of RNN-Transducers with sampled softmax, for ESPnet.

Method: J. Lee, L. Lee, S. Watanabe, "Memory-Efficient Training of RNN-Transducer
with Sampled Softmax", Interspeech 2022, arXiv 2203.16868.

Importing this package registers its classes with ESPnet (see
``docs/registration.md``). The public names are loaded on first use, because
``import torch`` itself imports this package through the ``torch.backends``
entry point and must stay cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from espnet_sampled_rnnt.registration import autoload as _autoload

if TYPE_CHECKING:
    from espnet_sampled_rnnt.loss.transducer import transducer_loss
    from espnet_sampled_rnnt.registration import provide_warprnnt
    from espnet_sampled_rnnt.vocabulary import SampledVocabulary, sample_vocabulary

__all__ = [
    "SampledVocabulary",
    "provide_warprnnt",
    "sample_vocabulary",
    "transducer_loss",
]

__version__ = "0.1.0"

_HOME = {
    "SampledVocabulary": "espnet_sampled_rnnt.vocabulary",
    "provide_warprnnt": "espnet_sampled_rnnt.registration",
    "sample_vocabulary": "espnet_sampled_rnnt.vocabulary",
    "transducer_loss": "espnet_sampled_rnnt.loss.transducer",
}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_autoload()
