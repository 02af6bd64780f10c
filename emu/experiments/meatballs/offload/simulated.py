"""Offloaded computations in virtual time: replayed Wi-Fi, a shared server, a device of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from emu.experiments.meatballs.client import Client, Policy, Record
from emu.experiments.meatballs.driver import Agenda, Side, VirtualClock, play
from emu.experiments.meatballs.offload.shared_processor import SharedProcessor
from emu.experiments.meatballs.offload.utterances import (
    ANSWER_BYTES,
    LOCAL,
    REMOTE,
    WIFI,
    Utterance,
)
from emu.experiments.meatballs.simulated_network import SimulatedNetwork
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import ReplayedNetwork


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
    def __init__(self) -> None:
        self.busy_s = 0.0

    def worked(self, seconds: float) -> None:
        self.busy_s += seconds


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
    """One trial, as `driver.play`.

    `wifi`: the network that leads to the server.
    `server`: its processor; its clock is the trial's.
    `speeds`: of the device and of the server alone.
    `start_s`: the second of the replay at which the trial begins.
    """
    agenda = Agenda()
    network = SimulatedNetwork(agenda, WIFI, wifi, usage, start_s)
    carrier = SimulatedOffload(agenda, network, server, speeds, policy, processor)
    carrier.client.attached(LOCAL, 0.0)
    return play(
        VirtualClock(),
        agenda,
        [Side(carrier, tasks)],
        {REMOTE: wifi},
        start_s=start_s,
        duration_s=duration_s,
    )[0]


class SimulatedOffload:
    def __init__(
        self,
        agenda: Agenda,
        network: SimulatedNetwork,
        server: SharedProcessor,
        speeds: Speeds,
        policy: ComputePolicy,
        processor: Processor,
    ) -> None:
        self._agenda, self._network, self._server, self._speeds = agenda, network, server, speeds
        self._policy, self._processor = policy, processor
        self._began_s: dict[int, float] = {}
        self.client = Client(policy, self)

    def connect(self, way: str, now_s: float) -> None:
        self._network.connect(now_s, lambda at_s: self.client.connected(way, at_s - now_s, at_s))

    def disconnect(self, way: str, now_s: float) -> None:
        """Exchanges end by themselves where their network does."""

    def start(self, task: Utterance, way: str, now_s: float) -> None:
        work_s = self._speeds.work_s(way, task.length_s, task.number)
        if way == LOCAL:
            self._began_s[task.number] = now_s
            self._agenda.at(now_s + work_s, lambda at_s: self._computed_here(task, at_s))
            return
        self._network.start(
            task.number,
            task.up_bytes,
            ANSWER_BYTES,
            now_s,
            lambda at_s, compute_s: self._answered(task, way, compute_s, at_s),
            lambda at_s: self._server.finished_s(at_s, work_s) - at_s,
        )

    def cancel(self, task: Utterance, way: str, now_s: float) -> None:
        """The processor stops at once."""
        if way == LOCAL:
            self._processor.worked(now_s - self._began_s.pop(task.number))
        else:
            self._network.cancel(task.number, now_s)

    def _computed_here(self, task: Utterance, at_s: float) -> None:
        began_s = self._began_s.pop(task.number, None)
        if began_s is not None:
            self._processor.worked(at_s - began_s)
            self._answered(task, LOCAL, at_s - began_s, at_s)

    def _answered(self, task: Utterance, way: str, compute_s: float, at_s: float) -> None:
        self._policy.computed(task, way, compute_s, at_s)
        self.client.answered(task.number, way, at_s)
