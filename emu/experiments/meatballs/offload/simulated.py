"""Offloaded computations without a clock: replayed Wi-Fi, a shared server, a device of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from emu.experiments.meatballs.client import Client, Policy, Record
from emu.experiments.meatballs.exchanges.simulated import Events, follow, play
from emu.experiments.meatballs.offload.shared_processor import SharedProcessor
from emu.experiments.meatballs.offload.utterances import (
    ANSWER_BYTES,
    LOCAL,
    REMOTE,
    WIFI,
    Utterance,
)
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import HEADER_BYTES, Exchange, ReplayedNetwork


class ComputePolicy(Policy[Utterance], Protocol):
    """A policy that is also told how long the computation alone took."""

    def computed(self, task: Utterance, way: str, compute_s: float, now_s: float) -> None:
        """Comes right before the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of processor time for an utterance: `base_s + per_s * length`, by way, and its spread.

    Attributes:
        base_s: whatever the length.
        per_s: for each second of speech.
        spread: standard deviation of a computation's time, as a share of it.
    """

    base_s: Mapping[str, float]
    per_s: Mapping[str, float]
    spread: float = 0.0

    def work_s(self, way: str, length_s: float, number: int) -> float:
        """Seconds on a processor that nobody else uses; the same for the same number."""
        # A deterministic draw that needs no state: halves of a golden-ratio sequence.
        unit = (number * 0.6180339887498949 + (0.5 if way == REMOTE else 0.0)) % 1.0
        wobble = self.spread * math.sqrt(3.0) * (2.0 * unit - 1.0)
        return (self.base_s[way] + self.per_s[way] * length_s) * (1.0 + wobble)


class Processor:
    """Counts the seconds for which the device's own processor works."""

    def __init__(self) -> None:
        self.busy_s = 0.0


def simulate(
    tasks: Sequence[Utterance],
    wifi: ReplayedNetwork,
    server: SharedProcessor,
    speeds: Speeds,
    policy: ComputePolicy,
    usage: Usage,
    processor: Processor,
    *,
    start_s: float = 0.0,
    duration_s: float,
) -> list[Record]:
    """One trial; simulated.

    Args:
        tasks: with instants from the trial's beginning.
        wifi: the network that leads to the server.
        server: its processor; its clock is the trial's.
        speeds: of the device and of the server alone.
        policy: decides.
        usage: of the Wi-Fi; filled.
        processor: the device's; filled.
        start_s: the second of the replay at which the trial begins.
        duration_s: when nobody asks any more.
    """
    events = Events()
    carrier = _Carrier(events, wifi, server, speeds, policy, usage, processor, start_s)
    client = Client(policy, carrier)
    carrier.client = client
    client.attached(LOCAL, 0.0)
    follow(WIFI, wifi, client, events, usage, start_s, way=REMOTE)
    return play(client, events, tasks, duration_s)


class _Carrier:
    def __init__(
        self,
        events: Events,
        wifi: ReplayedNetwork,
        server: SharedProcessor,
        speeds: Speeds,
        policy: ComputePolicy,
        usage: Usage,
        processor: Processor,
        start_s: float,
    ) -> None:
        self._events, self._wifi, self._server, self._speeds = events, wifi, server, speeds
        self._policy, self._usage, self._processor = policy, usage, processor
        self._start_s = start_s
        self._local: dict[int, float] = {}
        self._remote: dict[int, tuple[Exchange, float]] = {}
        self.client: Client[Utterance] | None = None

    def start(self, task: Utterance, way: str, now_s: float) -> None:
        if way == LOCAL:
            self._local[task.number] = now_s
            work_s = self._speeds.work_s(LOCAL, task.length_s, task.number)
            self._events.at(now_s + work_s, lambda at_s: self._computed_here(task, at_s))
            return
        begin_s = self._start_s + now_s
        sent = self._wifi.exchange(begin_s, task.up_bytes, ANSWER_BYTES)
        compute_s = 0.0
        if sent.served_at_s < math.inf:
            at_s = sent.served_at_s - self._start_s
            work_s = self._speeds.work_s(REMOTE, task.length_s, task.number)
            compute_s = self._server.finished_s(at_s, work_s) - at_s
        found = self._wifi.exchange(begin_s, task.up_bytes, ANSWER_BYTES, server_s=compute_s)
        self._remote[task.number] = (found, compute_s)
        # The sound goes up as it can: told at its end, as one burst.
        self._events.at(found.served_at_s - self._start_s, lambda at_s: self._sent(found, at_s))
        self._events.at(
            found.ended_at_s - self._start_s, lambda at_s: self._answered(task, found, at_s)
        )

    def cancel(self, task: Utterance, way: str, now_s: float) -> None:
        """The processor stops at once; the server when it hears of it, half a round trip later."""
        if way == LOCAL:
            self._processor.busy_s += now_s - self._local.pop(task.number)
            return
        if task.number not in self._remote:
            return  # lost at this very instant, and the host is about to notice
        found, compute_s = self._remote[task.number]
        self._usage.carried(WIFI, now_s, HEADER_BYTES, 0)
        heard_s = now_s + self._start_s + self._wifi.rtt_s / 2
        if found.served_at_s + compute_s > heard_s:
            del self._remote[task.number]

    def _computed_here(self, task: Utterance, at_s: float) -> None:
        began_s = self._local.pop(task.number, None)
        if began_s is None:
            return
        self._processor.busy_s += at_s - began_s
        self._policy.computed(task, LOCAL, at_s - began_s, at_s)
        assert self.client is not None
        self.client.answered(task.number, LOCAL, at_s)

    def _sent(self, found: Exchange, at_s: float) -> None:
        up, _ = found.carried(found.served_at_s)
        self._usage.carried(WIFI, at_s, up, 0)

    def _answered(self, task: Utterance, found: Exchange, at_s: float) -> None:
        under_way = self._remote.get(task.number)
        if under_way is None or under_way[0] is not found:
            return
        del self._remote[task.number]
        up, down = found.carried()
        if found.served_at_s < math.inf:
            up -= found.carried(found.served_at_s)[0]
        self._usage.carried(WIFI, at_s, up, down)
        if found.completed_at_s < math.inf:
            self._policy.computed(task, REMOTE, under_way[1], at_s)
            assert self.client is not None
            self.client.answered(task.number, REMOTE, at_s)
