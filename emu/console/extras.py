"""Which optional part of an installation a missing module belongs to."""

import re
from collections.abc import Iterable
from importlib.metadata import requires
from typing import Final

_MODULES: Final = {"scikit-learn": "sklearn", "tomli-w": "tomli_w"}
"""Distributions whose module has another name."""

_OF_THE_TESTBED: Final = {"emu", "train"}
"""`emu` brings `train` along; who runs `cedos-emu` will need both."""

_REQUIREMENT: Final = re.compile(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]")


def missing(error: ModuleNotFoundError, requirements: Iterable[str] | None = None) -> str | None:
    """Return what to install if the module belongs to an extra; None if its absence is our fault.

    `requirements` are those of the distribution; None: of this one, as it is installed.
    """
    module = (error.name or "").partition(".")[0]
    found = (requires("cedos") or []) if requirements is None else requirements
    extras = {
        match[2]
        for each in found
        if (match := _REQUIREMENT.match(each)) and _MODULES.get(match[1], match[1]) == module
    }
    if not extras:
        return None
    extra = "emu" if extras & _OF_THE_TESTBED else min(extras)
    return (
        f"the Python package {module} is missing: cedos was installed without its extra [{extra}]."
        f" In its source folder: pip install '.[{extra}]'"
    )
