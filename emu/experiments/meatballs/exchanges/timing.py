"""Where an exchange's time goes, live and simulated: what the simulation leaves out, measured."""

import random
import selectors
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

from cedos.errors import EmulationError
from emu.experiments.meatballs.connections import PORT
from emu.experiments.meatballs.exchanges.packet_tap import Passed, Tap
from emu.experiments.meatballs.exchanges.requests import Request
from emu.lab.simulation.network import ReplayedNetwork
from emu.testbed.access import ADDRESSES
from emu.testbed.phones import SERVER, Laptop
from emu.workloads.exchange import ExchangeConnection

PARTS = ("asking", "up", "serving", "down", "hearing")
_LONGEST_S = 5.0


@dataclass(frozen=True, slots=True)
class ExchangeTiming:
    """One exchange: seconds by part, lived and simulated.

    Parts are `asking` (until the last packet of the request has left), `up` (until it is at the
    server), `serving` (until the first packet of the response has left), `down` (until the last one is
    here) and `hearing` (until the program has it). The simulation has `up` and `down`.
    """

    lived: Mapping[str, float]
    simulated: Mapping[str, float]


def timed_exchanges(
    laptop: Laptop, network: ReplayedNetwork, asked: Sequence[Request], start_s: float
) -> list[ExchangeTiming]:
    """Exchanges one after another over one network; the server runs already.

    Args:
        laptop: with the network attached.
        network: the same, to be simulated.
        asked: sizes; `at_s` are seconds between them.
        start_s: the second of the network's traces at which the replay began.

    Raises:
        EmulationError: no connection, or no answer.
    """
    kind = network.kind
    began_s = laptop.links[kind].started_at_s
    found: list[tuple[float, float, Request]] = []
    with ExitStack() as stack:
        here = stack.enter_context(Tap(laptop.client, PORT))
        there = stack.enter_context(Tap(laptop.server, PORT))
        selector = stack.enter_context(selectors.DefaultSelector())
        connection = ExchangeConnection(laptop.client, ADDRESSES[kind], (SERVER, PORT))
        stack.callback(connection.abort)
        selector.register(connection.socket, selectors.EVENT_WRITE)
        if not selector.select(_LONGEST_S) or not connection.writable():
            raise EmulationError(f"no connection to the server over {kind}")
        selector.modify(connection.socket, selectors.EVENT_READ)
        for number, request in enumerate(asked):
            time.sleep(request.at_s)
            at_s = time.monotonic()
            connection.ask(number, request.up_bytes, request.down_bytes)
            while True:
                if connection.failed or not selector.select(_LONGEST_S):
                    raise EmulationError(f"exchange {number} over {kind} was not answered")
                if connection.readable():
                    break
            found.append((at_s, time.monotonic(), request))
    return [
        ExchangeTiming(
            divide(at_s, until_s, here.passed, there.passed),
            simulated(network, start_s + at_s - began_s, request),
        )
        for at_s, until_s, request in found
    ]


def divide(
    at_s: float, until_s: float, here: Sequence[Passed], there: Sequence[Passed]
) -> dict[str, float]:
    """The parts of one exchange, from what passed at both hosts meanwhile."""

    def of(taps: Sequence[Passed], outgoing: bool) -> list[float]:
        return [p.at_s for p in taps if p.outgoing is outgoing and at_s <= p.at_s <= until_s]

    try:
        marks = [
            at_s,
            max(of(here, True)),
            max(of(there, False)),
            min(of(there, True)),
            max(of(here, False)),
            until_s,
        ]
    except ValueError as error:
        raise EmulationError("an exchange's packets were not all seen") from error
    lasted_s = [after - before for before, after in pairwise(marks)]
    return dict(zip(PARTS, lasted_s, strict=True))


def simulated(network: ReplayedNetwork, at_s: float, request: Request) -> dict[str, float]:
    exchange = network.exchange(at_s, request.up_bytes, request.down_bytes)
    up_s = exchange.served_at_s - at_s
    return dict.fromkeys(PARTS, 0.0) | {
        "up": up_s,
        "down": exchange.completed_at_s - exchange.served_at_s,
    }


def pauses(count: int, seed: int) -> Iterator[Request]:
    """So many requests of the experiment's sizes, a tenth of a second apart, at any millisecond."""
    rng = random.Random(f"parts:{seed}")
    for number in range(count):
        yield Request(number, rng.uniform(0.05, 0.15), 1000, 4000)
