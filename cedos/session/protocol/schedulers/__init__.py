"""Path schedulers: which label's bytes go over which network. All pure.

They share the Protocol in `interface` and one conformance test: nothing waits for ever, nothing is
granted that is not there. One is chosen by its name, which stands in `_MADE`.
"""

from collections.abc import Callable
from typing import Final

from cedos.errors import ConfigError
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.schedulers.plain import (
    Anticipatory,
    LabelMapping,
    LowestRtt,
    RedundantScheduler,
    RoundRobin,
)
from cedos.session.protocol.schedulers.swtc import Swtc

DEFAULT: Final = "intnw"

_MADE: Final[dict[str, Callable[[], Scheduler]]] = {
    "intnw": lambda: Anticipatory(LabelMapping()),
    "labels": LabelMapping,
    "lowest-rtt": LowestRtt,
    "redundant": RedundantScheduler,
    "round-robin": RoundRobin,
    "swtc": Swtc,
    "prompt-swtc": lambda: Anticipatory(Swtc(), bulk=True),
}

# The schedulers that `scheduler` makes; `DecidedScheduler` wraps one where the daemon decides.
NAMES: Final = tuple(_MADE)


def scheduler(name: str = DEFAULT) -> Scheduler:
    """Return a new scheduler for one session; ConfigError: there is none of this name."""
    if name not in _MADE:
        raise ConfigError(f"no scheduler is called {name!r}: there are {', '.join(NAMES)}")
    return _MADE[name]()
