"""The load of an experiment in the simulator: every transfer of a plan over a place's networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cedos.model import Direction, NetworkKind
from emu.places.places import Place
from emu.policies import Simulated
from emu.simulator.connection import Transfer
from emu.simulator.gateway import ProxiedTransfer, SimulatedGateway
from emu.simulator.laptop import SimulatedLaptop
from emu.simulator.link import SAMPLE_S, Clock, Network
from emu.simulator.tcp import PAYLOAD_BYTES
from emu.testbed.access import INTERFACES, Access
from emu.testbed.counters import CarriedBytes, Connection, Sample
from emu.workloads.mixed import Completed, PlannedTransfer

_FIRST_PORT = 20_000


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of a simulated run, in the form that the testbed's programs and counters have.

    Instants are seconds of the simulation, which begins `warm_up_s` before the load.
    """

    completed: Sequence[Completed]
    carried: Mapping[Connection, CarriedBytes]
    samples: Sequence[Sample]


def simulate(
    place: Place,
    plan: Sequence[PlannedTransfer],
    # Its networks, the one of first SYNs first, or its daemon. Programs that speak MPTCP use all
    # networks, others the first.
    policy: Simulated,
    *,
    start_s: float,
    warm_up_s: float,
    limit_s: float,  # transfers end after so long, and are censored
) -> SimulatedRun:
    """Carry out a plan over a place, replayed from `start_s` on after `warm_up_s`."""
    # The replay begins early by the warm-up, as in a live run.
    clock = Clock()
    networks = {
        NetworkKind(name): Network(
            clock,
            Access(NetworkKind(name), up=each.up, down=each.down, rtt_s=each.rtt_s).rotated(
                start_s - warm_up_s
            ),
        )
        for name, each in place.networks.items()
    }
    transfers: dict[int, Transfer | ProxiedTransfer] = {}
    daemon, kinds = policy.daemon, policy.networks
    laptop = SimulatedLaptop(clock, networks, daemon) if daemon is not None else None
    gateway = None
    if laptop is not None and policy.gateway:
        gateway = SimulatedGateway(clock, networks, laptop)

    # A program that speaks MPTCP uses all networks of the policy, others the first.
    def begin(planned: PlannedTransfer) -> None:
        if gateway is not None:
            carried = transfers[planned.number] = gateway.begin(planned)
            clock.after(limit_s, gateway.stop, carried)
            return
        if laptop is not None:
            steered = transfers[planned.number] = laptop.begin(planned)
            clock.after(limit_s, laptop.stop, steered)
            return
        used = [networks[kind] for kind in (kinds if planned.mptcp else kinds[:1])]
        transfer = Transfer(
            clock, used, planned.size_bytes, down=planned.direction is Direction.DOWN
        )
        transfers[planned.number] = transfer
        clock.after(limit_s, transfer.stop)

    # A second after the last transfer the daemon is told nothing more, unless a session may ask it. What
    # is under way still arrives.
    def end_daemon(ended: bool) -> None:
        if not ended:
            clock.after(1.0, end_daemon, all(each.stopped for each in transfers.values()))
        elif laptop is not None and gateway is None:
            laptop.close()

    # Begin each transfer at its time, and let the last one reach its limit.
    for planned in plan:
        clock.at(warm_up_s + planned.at_s, begin, planned)
    last_s = max((planned.at_s for planned in plan), default=0.0)
    clock.at(warm_up_s + last_s, end_daemon, False)
    (clock if gateway is None else gateway).run(warm_up_s + last_s + limit_s)
    completed = [
        _completed(planned, transfers[planned.number], warm_up_s, limit_s) for planned in plan
    ]
    # Answer in the form of a live run: transfers, bytes by connection, counters.
    ended_s = max((each.started_at_s + each.time_s for each in completed), default=warm_up_s)
    return SimulatedRun(
        completed,
        {
            (each.local_ip, each.local_port, each.planned.host): _carried(
                transfers[each.planned.number]
            )
            for each in completed
        },
        [
            sample
            for kind in NetworkKind
            if kind in networks
            for sample in _samples(networks[kind], warm_up_s, ended_s)
        ],
    )


def _completed(
    planned: PlannedTransfer,
    transfer: Transfer | ProxiedTransfer,
    warm_up_s: float,
    limit_s: float,
) -> Completed:
    started_s = warm_up_s + planned.at_s
    censored = transfer.ended_s is None
    return Completed(
        planned=planned,
        started_at_s=started_s,
        time_s=limit_s if transfer.ended_s is None else transfer.ended_s - started_s,
        censored=censored,
        local_ip=transfer.local_ip,
        local_port=_FIRST_PORT + planned.number,
        problem=f"not complete after {limit_s:g} s" if censored else None,
    )


def _carried(transfer: Transfer | ProxiedTransfer) -> CarriedBytes:
    moved = {network.kind: PAYLOAD_BYTES * count for network, count in transfer.packets.items()}
    return CarriedBytes(moved.get(NetworkKind.WIFI, 0), moved.get(NetworkKind.CELLULAR, 0))


def _samples(network: Network, from_s: float, to_s: float) -> list[Sample]:
    """Return the interface's counters every `SAMPLE_S`, as the testbed's sampler reads them."""
    samples = []
    received = sent = 0
    for number in range(int(from_s / SAMPLE_S), int(to_s / SAMPLE_S) + 2):
        samples.append(Sample(number * SAMPLE_S, INTERFACES[network.kind], received, sent))
        received += network.down.bytes_by_sample.get(number, 0)
        sent += network.up.bytes_by_sample.get(number, 0)
    return samples
