"""The times at which each network is pinged. Pure."""

from collections.abc import Iterable

from cedos.model import Network, NetworkKind

_ASLEEP = 10.0
# The time after which a ping or a look-up without an answer counts as lost.
TIMEOUT_S = 2.0


class ProbeSchedule:
    """When each network that is up is pinged.

    Every `in_use_s` while in use, every `idle_s` while idle, ten times as seldom where it is cellular
    (each ping wakes the radio for its tail), and every `hurry_s` while it has fallen silent. One that did
    not answer last is pinged like an idle one of any kind: that it is dead is believed for a minute
    only. What programs receive tells as much as a ping: in use, none goes before the network was quiet
    for `quiet_s`.
    """

    def __init__(
        self,
        in_use_s: float = 1.0,
        idle_s: float = 5.0,
        hurry_s: float = 0.2,
        quiet_s: float = 0.5,
    ) -> None:
        self._quiet_s = min(quiet_s, in_use_s)
        self._heard_s: dict[str, float] = {}
        self._in_use_s = in_use_s
        self._idle_s = idle_s
        self._asleep_s = _ASLEEP * idle_s
        self._hurry_s = hurry_s
        self._unanswered: set[str] = set()
        self._silent: frozenset[str] = frozenset()
        self._cellular: frozenset[str] = frozenset()
        self._up: dict[str, bool] = {}
        self._in_use: frozenset[str] = frozenset()
        self._last_s: dict[str, float] = {}

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Take all networks; one that is down pauses, one that came up is due at once."""
        networks = list(networks)
        self._cellular = frozenset(n.name for n in networks if n.kind is NetworkKind.CELLULAR)
        up = {network.name: network.up for network in networks}
        for name, is_up in up.items():
            if is_up and not self._up.get(name, False):
                self._last_s.pop(name, None)
        self._up = up
        self._last_s = {name: at_s for name, at_s in self._last_s.items() if name in up}
        self._heard_s = {name: at_s for name, at_s in self._heard_s.items() if name in up}
        self._unanswered.intersection_update(up)

    def in_use(self, names: Iterable[str]) -> None:
        self._in_use = frozenset(names)

    def on_heard(self, name: str, at_s: float) -> None:
        """Note that something came back from beyond the network's router."""
        self._heard_s[name] = max(at_s, self._heard_s.get(name, at_s))

    def silent(self, names: Iterable[str]) -> None:
        self._silent = frozenset(names)

    def on_answer(self, name: str, answered: bool) -> None:
        if answered:
            self._unanswered.discard(name)
        else:
            self._unanswered.add(name)

    def _due_s(self, name: str) -> float:
        if name not in self._last_s:
            return float("-inf")
        rests = name not in self._unanswered
        idle_s = self._asleep_s if rests and name in self._cellular else self._idle_s
        in_use_s = self._in_use_s if name in self._in_use else idle_s
        if name in self._silent:
            return self._last_s[name] + min(self._hurry_s, in_use_s)
        heard_s = self._heard_s.get(name, float("-inf"))
        if name in self._in_use:
            return max(self._last_s[name] + in_use_s, heard_s + self._quiet_s)
        return max(self._last_s[name], heard_s) + idle_s

    def next_s(self) -> float | None:
        """Return when the next ping is due; in the past if at once, None while no network is up."""
        return min((self._due_s(name) for name, up in self._up.items() if up), default=None)

    def take_due(self, now_s: float) -> list[str]:
        """Return the networks whose ping is due now; each is then due again after its interval."""
        due = [name for name, up in self._up.items() if up and self._due_s(name) <= now_s]
        for name in due:
            self._last_s[name] = now_s
        return due
