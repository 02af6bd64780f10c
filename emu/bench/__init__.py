"""The figures: one file a bench, run by hand or by `./test --long`, never as timed tests.

Each file has `run(progress) -> dict[str, float]`: `progress` is told what is being done, the answer
holds the figures by name.
"""

import importlib
import pkgutil
import time
from collections import deque
from collections.abc import Callable, Sequence

from cedos.errors import ConfigError
from emu.statistics import percentile

_WARM_UP = 500
_KEPT = 1_000


def names() -> list[str]:
    """Return the names of the bench modules; a package holds what one of them is made of."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def run(name: str, progress: Callable[[str], None], parts: Sequence[str] = ()) -> dict[str, float]:
    """Run a bench, or these of its parts.

    ConfigError lists the benches or parts there are; EmulationError: the bench failed.
    """
    if name not in names():
        raise ConfigError(f"no bench is called {name!r}: there are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    known: Sequence[str] = getattr(module, "PARTS", ())
    if unknown := [each for each in parts if each not in known]:
        there = f"there are {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{name} has no part {unknown[0]!r}: {there}")
    figures: dict[str, float] = module.run(progress, parts) if parts else module.run(progress)
    return figures


def told(progress: Callable[[str], None], figures: dict[str, float]) -> dict[str, float]:
    """Tell figures as they are known, and return them."""
    progress(", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    return figures


def timed(key: str, make: Callable[[int], Callable[[], object]], count: int) -> dict[str, float]:
    """Time decisions: `p50KEY_us` and `p99KEY_us` of the clock, `cpu_p99KEY_us` of the processor.

    `make` prepares the decision of a number, which is not timed. The last results are kept, as the daemon
    keeps decisions for its history.
    """
    kept: deque[object] = deque(maxlen=_KEPT)
    wall_us, cpu_us = [], []
    for number in range(count + _WARM_UP):
        decide = make(number)
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        kept.append(decide())
        wall_us.append((time.perf_counter_ns() - wall_ns) / 1e3)
        cpu_us.append((time.thread_time_ns() - cpu_ns) / 1e3)
    return {
        f"p50{key}_us": percentile(wall_us[_WARM_UP:], 0.50),
        f"p99{key}_us": percentile(wall_us[_WARM_UP:], 0.99),
        f"cpu_p99{key}_us": percentile(cpu_us[_WARM_UP:], 0.99),
    }
