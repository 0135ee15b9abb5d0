"""``model_conf.requires``: the package that a configuration needs, named in itself.

ESPnet keeps the configuration beside the model and packs it with it. On a machine
without this package it only says that it knows no model ``sampled_transducer``; whoever
then opens the configuration finds there what to install.
"""

from __future__ import annotations

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "espnet-sampled-rnnt"


def check_requirement(text: str | None, installed: str) -> None:
    """Raise unless this package is what a configuration asks for.

    Args:
        text: a requirement as pip takes it, such as "espnet-sampled-rnnt>=0.1"; None
            asks for nothing.
        installed: the version of this package.

    Raises:
        ValueError: no requirement, one of another package, or of other versions.
    """
    if text is None:
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or canonicalize_name(requirement.name) != DISTRIBUTION:
        raise ValueError(
            f"model_conf.requires is {text!r}; allowed: {DISTRIBUTION} and, as pip "
            f"takes them, versions, such as {DISTRIBUTION}>=0.1"
        )
    if not requirement.specifier.contains(installed, prereleases=True):
        raise ValueError(
            f"model_conf.requires is {text!r}, but {DISTRIBUTION} {installed} is "
            f"installed; pip install {text!r}"
        )
