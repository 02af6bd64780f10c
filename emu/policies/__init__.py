"""The policies, one file each (see `base`)."""

import importlib
import pkgutil

from cedos.errors import ConfigError
from emu.policies.base import Policy


def names() -> list[str]:
    return sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(__path__)
        if module.name != "base"
    )


def make(name: str) -> Policy:
    """A new policy of that name; ConfigError lists the names there are."""
    if name not in names():
        raise ConfigError(f"no policy is called {name!r}: there are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    policy: Policy = module.policy()
    return policy
