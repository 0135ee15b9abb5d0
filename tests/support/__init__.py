"""What several test modules compute with: references, batches, byte counters.

Importing it sets torch to one thread: the tensors here are so small that a second
one only waits, for long where something else runs. And it chooses hypothesis's
profile by the variable HYPOTHESIS_PROFILE: "default" with 100 examples a test, or
"long" with 2,000. Both draw the same examples at every run.
"""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)

for _name, _examples in (("default", 100), ("long", 2000)):
    settings.register_profile(
        _name, max_examples=_examples, derandomize=True, deadline=None
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
