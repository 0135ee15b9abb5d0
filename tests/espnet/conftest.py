"""The corpus that the tests of ESPnet's commands share."""

from __future__ import annotations

import pytest
from support.espnet_commands import Corpus, make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """Five tones, their transcripts, and the statistics that ESPnet collects."""
    return make_corpus(tmp_path_factory.mktemp("corpus"))
