"""An experiment: run each policy at the same place from the same instant, and write a run folder.

The *zero* of a run is the instant at which its load begins. Traces and programs begin `warm_up_s`
earlier.
"""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cedos.errors import ConfigError, EmulationError
from cedos.model import Direction, NetworkKind
from emu import policies
from emu.places.places import Place, Places
from emu.policies import Stage
from emu.runs import browsing, runs, summary
from emu.runs.browsing import Browsed, BrowsingPlan, Person
from emu.runs.calibration import by_network_and_size
from emu.runs.decisions import recorded
from emu.runs.runs import RunFolder, claimed, refuse_foreign, tables_of
from emu.runs.scenario import Scenario
from emu.runs.summary import run_energy_j
from emu.simulator.run import simulate
from emu.terminal import Report
from emu.testbed.access import INTERFACES
from emu.testbed.counters import CarriedBytes, Connection, Sample, Sampler, SubflowBytes, TcpMemory
from emu.testbed.phones import Laptop, replay
from emu.testbed.programs.servers import HTTP_PORT, Servers
from emu.workloads import mixed
from emu.workloads.mixed import PlannedTransfer, schedule

# The greatest delay of a transfer's start. On a quiet machine of two cores it is 0.1 s.
_LATE_S = 0.25


def disturbances(*, most_pages: int, free_pages: int, latest_s: float) -> Iterator[str]:
    """Yield the disturbances of a run from outside, in words.

    Args:
        most_pages: the most pages of TCP memory that the host used (`emu.testbed.counters.TcpMemory`).
        free_pages: from so many pages on, the kernel holds connections back.
        latest_s: the greatest delay of a transfer's start.
    """
    if most_pages > free_pages:
        yield (
            f"the host's TCP memory was short: {most_pages} pages were in use, and from {free_pages}"
            " on (net.ipv4.tcp_mem) the kernel holds all connections back, also emulated ones"
        )
    if latest_s > _LATE_S:
        yield f"the machine was too busy: a transfer began {latest_s:.1f} s late"


# The time to build and remove one policy's emulation, and to end its last transfers.
_OVERHEAD_S = 4.0
# A policy that is not ready after `warm_up_s` gets so many times as long, in one try after the other.
_PATIENCE = (3.0, 9.0)
# The least speed of the simulator, in seconds of a place per second.
_SIMULATED_SPEED = 50.0
# The time to start a browser with all its tabs.
_BROWSER_S = 10.0


def resolve(scenario: Scenario, places: Places) -> Scenario:
    """Return the scenario with its place and duration filled in; ConfigError if they do not fit."""
    place = places[scenario.place] if scenario.place else next(iter(places.values()))
    duration_s = scenario.duration_s or place.common_s - scenario.start_s
    if duration_s <= 0:
        raise ConfigError(
            f"start_s = {scenario.start_s:g}, but {place.name} is {place.common_s} s long; with a"
            " duration_s its traces repeat"
        )
    for name in scenario.policies:
        # Refuse a policy that is unknown, or that this engine cannot run, before anything starts.
        if scenario.engine == "simulator":
            policies.simulated(name, scenario.policy.get(name))
        else:
            policies.make(name)
    return msgspec.structs.replace(scenario, place=place.name, duration_s=duration_s)


def run(scenario: Scenario, places: Places, directory: Path, report: Report) -> RunFolder:
    """Run a resolved scenario and return its folder, complete but for the page.

    EmulationError: the testbed or a policy failed, or a policy was not ready in time; what ran so far
    stays in the folder. DataSetError: the folder is no run's, or another run writes to it.
    """
    refuse_foreign(directory)
    with claimed(directory):
        return _run(scenario, places, directory, report)


def _run(scenario: Scenario, places: Places, directory: Path, report: Report) -> RunFolder:
    place = places[scenario.place]
    # Write configuration and environment first, so that a run that breaks has them, too.
    folder = RunFolder.create(
        directory,
        scenario,
        runs.describe(scenario.seed)
        | {"duration_s": scenario.duration_s, "synthetic": place.synthetic},
    )
    folder.write_table("capacity", _capacity(place, scenario))
    results: dict[str, list[_Result]] = {name: [] for name in scenario.policies}
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in tables_of(scenario) if name != "capacity"
    }
    runs_of_all, number = len(scenario.policies) * scenario.repeats, 0
    with _simulations(scenario, place) as simulated:
        for repeat in range(scenario.repeats):
            # All policies of a repeat get the same transfers and visits.
            plan = _plan(scenario, repeat)
            wanted = browsing.plan(scenario, scenario.seed + repeat)
            for name in scenario.policies:
                report(number / runs_of_all, f"{policies.title(name)}, {_amount(plan, wanted)}")
                number += 1
                if simulated:
                    result = simulated[name, repeat].result()
                else:
                    result = _run_ready_policy(name, repeat, plan, wanted, scenario, place, folder)
                results[name].append(result)
                for table, rows in result.tables().items():
                    if table in tables:
                        tables[table] += [{"policy": name, "repeat": repeat, **row} for row in rows]
    # Write tables once, at the end: a Parquet file cannot be appended to.
    for table, rows in tables.items():
        folder.write_table(table, rows)
    figures = summary.summarise(
        {name: _policy_run(each) for name, each in results.items()}, scenario.seed
    )
    for name, each in results.items():
        # Only policies that predict have a calibration.
        held = by_network_and_size(row for result in each for row in result.predictions)
        if held:
            figures["policies"][name]["calibration"] = held
        disturbed = list(dict.fromkeys(why for result in each for why in result.disturbed))
        if disturbed:
            figures["policies"][name]["disturbed"] = disturbed
    folder.write_json("summary.json", figures)
    return folder


@dataclass(frozen=True, slots=True)
class _Result:
    zero_at_s: float
    completed: Sequence[mixed.Completed]
    carried: Mapping[Connection, CarriedBytes]
    samples: Sequence[Sample]
    browsed: Browsed
    decisions: Sequence[Mapping[str, Any]] = ()
    switches: Sequence[Mapping[str, Any]] = ()
    predictions: Sequence[Mapping[str, Any]] = ()
    disturbed: Sequence[str] = ()

    def of_interface(self, kind: NetworkKind) -> list[Sample]:
        return [sample for sample in self.samples if sample.interface == INTERFACES[kind]]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "flows": [self._flow(completed) for completed in self.completed],
            "rates": [
                {**dataclasses.asdict(sample), "at_s": sample.at_s - self.zero_at_s}
                for sample in self.samples
            ],
            "decisions": [dict(row) for row in self.decisions],
            "switches": [dict(row) for row in self.switches],
            "predictions": [dict(row) for row in self.predictions],
            **self.browsed.tables(self.zero_at_s),
        }

    def received_bytes(self, completed: mixed.Completed) -> int:
        """Return the bytes of a transfer: all, or what its connection carried until the limit."""
        size_bytes = completed.planned.size_bytes
        if not completed.censored:
            return size_bytes
        moved = self._carried(completed)
        return min(size_bytes, moved.wifi + moved.cellular)

    def _carried(self, completed: mixed.Completed) -> CarriedBytes:
        connection = (completed.local_ip, completed.local_port, completed.planned.host)
        return self.carried.get(connection, CarriedBytes())

    def _flow(self, completed: mixed.Completed) -> dict[str, Any]:
        planned = completed.planned
        moved = self._carried(completed)
        return {
            "number": planned.number,
            "name": planned.name,
            "host": planned.host,
            "direction": str(planned.direction),
            "size_bytes": planned.size_bytes,
            "mptcp": planned.mptcp,
            "planned_s": planned.at_s,
            "started_s": completed.started_at_s - self.zero_at_s,
            "time_s": completed.time_s,
            "censored": completed.censored,
            "problem": completed.problem,
            "local_ip": completed.local_ip,
            "local_port": completed.local_port,
            "network": moved.network,
            "wifi_bytes": moved.wifi,
            "cellular_bytes": moved.cellular,
        }


class _StartedLateError(EmulationError):
    """A policy whose programs were not ready when the load was to begin."""


def _run_ready_policy(
    name: str,
    repeat: int,
    plan: Sequence[PlannedTransfer],
    wanted: BrowsingPlan,
    scenario: Scenario,
    place: Place,
    folder: RunFolder,
) -> _Result:
    """Run a policy; on a busy machine again, with a longer time to start before the same load."""
    warm_up_s = scenario.warm_up_s
    for longer in _PATIENCE:
        try:
            return _run_policy(name, repeat, plan, wanted, scenario, place, folder)
        except _StartedLateError:
            shutil.rmtree(folder.logs / f"{name}-{repeat}")
            scenario = msgspec.structs.replace(scenario, warm_up_s=longer * warm_up_s)
    return _run_policy(name, repeat, plan, wanted, scenario, place, folder)


def _plan(scenario: Scenario, repeat: int) -> list[PlannedTransfer]:
    return schedule(
        scenario.load,
        duration_s=scenario.duration_s,
        seed=scenario.seed + repeat,
    )


@contextmanager
def _simulations(
    scenario: Scenario, place: Place
) -> Iterator[Mapping[tuple[str, int], "Future[_Result]"]]:
    """Simulate all policies and repeats on all cores; for a live run, yield an empty mapping."""
    if scenario.engine != "simulator":
        yield {}
        return
    pool = ProcessPoolExecutor(os.cpu_count())
    try:
        yield {
            (name, repeat): pool.submit(
                _simulate_policy, name, _plan(scenario, repeat), scenario, place
            )
            for repeat in range(scenario.repeats)
            for name in scenario.policies
        }
    finally:
        pool.shutdown(cancel_futures=True)


def _simulate_policy(
    name: str, plan: Sequence[PlannedTransfer], scenario: Scenario, place: Place
) -> _Result:
    """Simulate the transfers of a policy; the simulation begins with the warm-up."""
    simulated = simulate(
        place,
        plan,
        policies.simulated(name, scenario.policy.get(name)),
        start_s=scenario.start_s,
        warm_up_s=scenario.warm_up_s,
        limit_s=scenario.limit_s,
    )
    return _Result(
        zero_at_s=scenario.warm_up_s,
        completed=simulated.completed,
        carried=simulated.carried,
        samples=simulated.samples,
        browsed=Browsed(),
    )


def _run_policy(
    name: str,
    repeat: int,
    plan: Sequence[PlannedTransfer],
    wanted: BrowsingPlan,
    scenario: Scenario,
    place: Place,
    folder: RunFolder,
) -> _Result:
    policy = policies.make(name)
    directory = folder.logs / f"{name}-{repeat}"
    directory.mkdir()
    # cedos has rules of its own, which must work without those of the testbed.
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(source_rules=not name.startswith("cedos"), nice=-5))
        servers = stack.enter_context(browsing.serve(wanted, laptop) if wanted else Servers(laptop))
        variables: dict[str, str] = {}
        person = _person(stack, laptop, servers, wanted, scenario, directory)
        # The replay begins `warm_up_s` before the second of the place at which the load begins.
        offset_s = scenario.start_s - scenario.warm_up_s
        replay_at_s = replay(laptop, place, offset_s)
        zero_at_s = replay_at_s + scenario.warm_up_s
        zero_unix_s = time.time() + zero_at_s - time.monotonic()
        stage = Stage(
            laptop,
            place,
            directory,
            replay_at_s,
            offset_s,
            scenario.seed + repeat,
            scenario.policy.get(name, {}),
            variables,
        )
        # Files are made before the clock runs.
        uploads = _prepare(plan, servers, laptop.directory)
        try:
            policy.start(stage)
            if time.monotonic() > zero_at_s:
                raise _StartedLateError(
                    f"{name} took longer than warm_up_s = {scenario.warm_up_s:g} to start; a host that"
                    " runs nothing else, or a larger warm_up_s, would be right"
                )
            with (
                Sampler(laptop.client, list(INTERFACES.values())) as sampler,
                SubflowBytes(laptop.client) as carried,
                TcpMemory(laptop.client) as memory,
            ):
                # Browsing runs in a thread of its own beside the transfers.
                browsed = person(zero_at_s)
                given = ["env", *(f"{key}={value}" for key, value in variables.items())]
                completed = mixed.run(
                    laptop.client,
                    plan,
                    port=HTTP_PORT,
                    upload_file=uploads.__getitem__,
                    zero_at_s=zero_at_s,
                    limit_s=scenario.limit_s,
                    prefix=given if variables else (),
                )
                seen = browsed.result()
                time.sleep(0.2)  # wait for the destroy notifications of the last sockets
            if not laptop.alive():
                raise EmulationError("an emulated link died during the run")
        finally:
            policy.stop()
    # The daemon has written its history by now.
    decisions, switches, predictions = recorded(directory, zero_unix_s)
    return _Result(
        zero_at_s,
        completed,
        carried.by_connection(),
        sampler.samples,
        seen,
        decisions,
        switches,
        predictions,
        tuple(
            disturbances(
                most_pages=memory.most_pages,
                free_pages=memory.free_pages,
                latest_s=max(
                    (each.started_at_s - zero_at_s - each.planned.at_s for each in completed),
                    default=0.0,
                ),
            )
        ),
    )


def _person(
    stack: ExitStack,
    laptop: Laptop,
    servers: Servers,
    wanted: BrowsingPlan,
    scenario: Scenario,
    directory: Path,
) -> Callable[[float], "Future[Browsed]"]:
    """Open a browser; return a function that begins browsing at the run's zero."""
    if not wanted:
        nothing: Future[Browsed] = Future()
        nothing.set_result(Browsed())
        return lambda zero_at_s: nothing
    # The stack ends the browser before it waits for the thread, so that an interrupted run ends at once.
    executor = stack.enter_context(ThreadPoolExecutor(1, "person"))
    person = stack.enter_context(
        Person(
            *(laptop, servers, wanted, directory / "chromium.log"),
            mptcp=True,
            nice=-5,
        )
    )
    return lambda zero_at_s: executor.submit(
        person.browse, zero_at_s=zero_at_s, limit_s=scenario.limit_s
    )


def _amount(plan: Sequence[PlannedTransfer], wanted: BrowsingPlan) -> str:
    counts = {"transfers": len(plan), "pages": len(wanted.pages), "videos": len(wanted.videos)}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _prepare(plan: Sequence[PlannedTransfer], servers: Servers, directory: Path) -> dict[int, Path]:
    """Make the files of all transfers before the clock runs and return those to upload, by size."""
    files = {}
    for planned in plan:
        if planned.direction is Direction.DOWN:
            servers.make_size(planned.size_bytes)
        else:
            file = directory / f"upload-{planned.size_bytes}"
            with file.open("wb") as hole:
                hole.truncate(planned.size_bytes)
            files[planned.size_bytes] = file
    return files


def _policy_run(results: Sequence[_Result]) -> summary.PolicyRun:
    completed = [each for result in results for each in result.completed]
    visits = [each for result in results for each in result.browsed.visits]
    watched = [each for result in results for each in result.browsed.watched]
    # A page is one transfer here, and so is a video: the mean one of its segments.
    return summary.PolicyRun(
        time_s=np.array(
            [each.time_s for each in completed]
            + [each.loaded.transfer_s for each in visits]
            + [each.transfer_s for each in watched]
        ),
        size_bytes=np.array(
            [result.received_bytes(each) for result in results for each in result.completed]
            + [each.planned.page.size_bytes for each in visits]
            + [each.segment_bytes for each in watched],
            dtype=float,
        ),
        censored=np.array(
            [each.censored for each in completed]
            + [each.loaded.censored for each in visits]
            + [each.censored for each in watched]
        ),
        browsing=summary.Browsing(
            page_load_s=np.array([each.loaded.load_s for each in visits]),
            page_transfer_s=np.array([each.loaded.transfer_s for each in visits]),
            video_transfer_s=np.array([each.transfer_s for each in watched]),
            video_stall_s=np.array([each.stall_s for each in watched]),
            video_start_s=np.array([each.start_s for each in watched]),
            video_mbps=np.array([each.bitrate_bps / 1e6 for each in watched]),
        ),
        energy_j=[
            sum(run_energy_j(result.of_interface(kind), kind) for kind in INTERFACES)
            for result in results
        ],
        cellular_bytes=[_moved(result.of_interface(NetworkKind.CELLULAR)) for result in results],
    )


def _moved(samples: Sequence[Sample]) -> float:
    first, last = samples[0], samples[-1]
    return float(last.received_bytes + last.sent_bytes - first.received_bytes - first.sent_bytes)


def _capacity(place: Place, scenario: Scenario) -> list[dict[str, Any]]:
    """Return what the traces could carry towards the client in each second of the run."""
    return [
        {
            "network": name,
            "at_s": float(second),
            "rate_bps": network.down.rate_bps(
                scenario.start_s + second, scenario.start_s + second + 1
            ),
        }
        for name, network in place.networks.items()
        for second in range(int(np.ceil(scenario.duration_s)) + 1)
    ]


def expected_s(scenario: Scenario) -> float:
    """Return about how long a resolved scenario takes, s."""
    each_s = scenario.warm_up_s + scenario.duration_s
    if scenario.engine == "simulator":
        each_s /= _SIMULATED_SPEED
    else:
        each_s += _OVERHEAD_S + (_BROWSER_S if scenario.page or scenario.video else 0.0)
    return each_s * len(scenario.policies) * scenario.repeats
