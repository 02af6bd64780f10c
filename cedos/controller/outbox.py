"""The controller's outbox, commands for its caller, and the beat of its periodic work.

Equal intervals end at the same instants, so that an idle host wakes once. `cedos.kernel.netlink` does the
same for descriptors.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar

from cedos.controller.commands import Command

# A beat comes this long after each full multiple of its interval, when data that others write each
# second are complete.
LATE_S: Final = 0.02
# Rules of the kernel that are remembered, so that what it refused to withdraw is withdrawn later. All
# rules of a user's own have fewer.
MOST_LED: Final = 2_048
# Stands for the network of a rule that the kernel refused to change. No network is called so.
_UNSURE: Final = "/"
_Key = TypeVar("_Key")


class Outbox:
    """The commands that the caller has not taken yet.

    Attributes:
        woken: there may be a reason to decide again.
        urgent: there is one.
    """

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self.woken = self.urgent = False

    def give(self, command: Command) -> None:
        self._commands.append(command)

    def take(self) -> list[Command]:
        """Return the commands since the last call, in order."""
        taken, self._commands = self._commands, []
        return taken

    def wake(self, urgent: bool = False) -> None:
        """Ask for a look at the facts; `urgent`: decide in any case."""
        self.woken = True
        self.urgent = self.urgent or urgent


class LedConnections(Generic[_Key]):
    """The networks over which the kernel leads connections, by place or mark, as was commanded.

    A refused change counts as a rule that may lead anywhere: the next `change` gives it again, or
    withdraws it where nothing is wanted any more.
    """

    def __init__(self) -> None:
        self._led: dict[_Key, str] = {}

    @property
    def withdrawn(self) -> dict[_Key, str | None]:
        """Return the wish that nothing is led."""
        return dict.fromkeys(self._led)

    def get(self, key: _Key) -> str | None:
        """Return the network of a rule; None: there is no rule, or its network is not sure."""
        network = self._led.get(key)
        return None if network == _UNSURE else network

    def change(self, wanted: Mapping[_Key, str | None]) -> dict[_Key, str | None]:
        """Return what must be commanded so that these are led as wanted, and count it as done."""
        news = {key: each for key, each in wanted.items() if self._led.get(key) != each}
        for key, network in news.items():
            if network is None:
                del self._led[key]
            else:
                self._led[key] = network
        return news

    def on_refused(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            if key in self._led or len(self._led) < MOST_LED:
                self._led[key] = _UNSURE


def next_beat_s(now_s: float, interval_s: float) -> float:
    """Return the next beat, which is later than now, however the division is rounded.

    Equal intervals end at the same instants, so that an idle host wakes once for all of them.
    """
    beat_s = (math.floor((now_s - LATE_S) / interval_s) + 1) * interval_s + LATE_S
    return beat_s if beat_s > now_s else beat_s + interval_s
