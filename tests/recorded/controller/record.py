"""Records two event logs and the fields of all events, for the test of the log's format. By hand:

    .venv/bin/python tests/recorded/controller/record.py

The daemon of a simulated laptop, with a budget, carries transfers while its Wi-Fi dies. `walk.log` begins
with it, and `middle.log` when it has had half of the events. The shipped model decides: where that is a
new one, run this again.
"""

import json
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from unittest import mock

import msgspec

from cedos.budget_kinds import Resource
from cedos.controller import events
from cedos.controller.codec import LOG_FORMAT
from cedos.controller.controller import Controller
from cedos.daemon.event_log import EventLog
from cedos.model import Budget, Direction, NetworkKind
from emu.places.traces import Trace
from emu.policies import simulated
from emu.simulator.laptop import SimulatedLaptop
from emu.simulator.link import Clock, Network
from emu.testbed.access import Access
from emu.workloads.mixed import PlannedTransfer

HERE = Path(__file__).parent
MIDDLE, LAST_S = 150, 16.0


def layout():
    """Return the fields of events and of what is in them, by class."""
    found = [
        each
        for each in vars(events).values()
        if isinstance(each, type) and (is_dataclass(each) or issubclass(each, msgspec.Struct))
    ]
    return {
        each.__name__: [field.name for field in fields(each)]
        if is_dataclass(each)
        else list(each.__struct_fields__)
        for each in sorted(found, key=lambda each: each.__name__)
    }


@contextmanager
def recorded():
    """Write what the controller of the block is told, and what it commands."""
    logs = []
    told = []
    handle, commands = Controller.handle, Controller.commands

    def on_event(controller, event, now_s):
        if not told:
            logs.append(EventLog(HERE / "walk.log", controller, names=True))
        if len(told) == MIDDLE:
            logs.append(EventLog(HERE / "middle.log", controller, names=True))
        told.append((event, now_s))
        handle(controller, event, now_s)

    def on_commands(controller):
        given = commands(controller)
        for log in logs:
            log.add(*told[-1], given)
        return given

    with (
        mock.patch.object(Controller, "handle", on_event),
        mock.patch.object(Controller, "commands", on_commands),
    ):
        yield
    for log in logs:
        log.close()
    assert len(told) > 1.5 * MIDDLE, f"there were {len(told)} events"


def walk():
    """Carry transfers over both networks, of which the Wi-Fi carries nothing from 8 s on."""
    clock = Clock()
    rates = {NetworkKind.WIFI: (20e6, 0.02), NetworkKind.CELLULAR: (10e6, 0.06)}
    networks = {
        kind: Network(clock, Access(kind, Trace.constant(bps), Trace.constant(bps), rtt_s))
        for kind, (bps, rtt_s) in rates.items()
    }
    config = simulated("cedos").daemon
    assert config is not None
    budget = Budget("data", Resource.DATA, 1e8, "2026-12-01T00:00:00", networks=("lte0",))
    daemon = SimulatedLaptop(clock, networks, config, budget=budget)
    for number in range(24):
        planned = PlannedTransfer(
            number,
            "walk",
            0.5 * number,
            f"198.51.100.{1 + number % 3}",
            Direction.UP if number % 5 == 0 else Direction.DOWN,
            (3_000, 200_000, 2_000_000)[number % 3],
            mptcp=number % 2 == 0,
        )
        clock.at(2.0 + planned.at_s, daemon.begin, planned)
    clock.at(8.0, networks[NetworkKind.WIFI].fail)
    clock.run(LAST_S)


def main():
    for name in ("walk.log", "middle.log"):
        (HERE / name).unlink(missing_ok=True)
    with recorded():
        walk()
    fields = {"format": LOG_FORMAT, "fields": layout()}
    (HERE / "layout.json").write_text(json.dumps(fields, indent=1) + "\n")


if __name__ == "__main__":
    main()
