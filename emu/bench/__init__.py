"""The figures: one file a bench, run by hand or by `./test --long`, never as timed tests.

Each file has `run(progress) -> dict[str, float]`: `progress` is told what is being done, the answer
holds the figures by name.
"""

import importlib
import pkgutil
from collections.abc import Callable

from cedos.errors import ConfigError


def names() -> list[str]:
    """Return the names of the bench modules; a package holds what one of them is made of."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def run(name: str, progress: Callable[[str], None]) -> dict[str, float]:
    """Run a bench; ConfigError lists those there are, EmulationError where it fails."""
    if name not in names():
        raise ConfigError(f"no bench is called {name!r}: there are {', '.join(names())}")
    figures: dict[str, float] = importlib.import_module(f"{__name__}.{name}").run(progress)
    return figures
