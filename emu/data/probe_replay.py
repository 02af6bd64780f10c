"""Probing rules on recorded probes: what a rule would have asked, when, at what price, and then known.

A place that was probed second by second (`traces/probe_series.parquet`) holds the answer to every
probe that a rule might send. Delphi's own simulation (section 5.2) did the same with its collected
runs.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cedos.errors import DataSetError
from cedos.model import Evaluation, Indicator, NetworkKind
from cedos.selector.probing.cost import probe_cost
from emu.data.probe_rules import Moment, ProbeRule, passive

# The columns of the file, described in `traces/README.md`. All but the first four are numbers.
COLUMNS = (
    "place", "group", "scenario", "network", "t_s", "true_down_bps", "true_up_bps",
    "pings", "ping_loss", "rtt_s", "rtt_min_s", "dns_asked", "dns_s",
    "udp_answered", "udp_bps", "udp_loss", "udp_max_bps", "udp_min_bps", "udp_mdev_bps",
    "udp_gap_mean_s", "udp_gap_p50_s", "udp_gap_p90_s",
    "udp_bytes_up", "udp_bytes_down", "udp_probe_s", "host_late_s",
    "rssi_dbm", "link_bps", "chan_util", "rsrp_dbm", "rsrq_db", "sinr_db", "cqi", "speed_mps",
)  # fmt: skip

# The columns of pings. Pings follow a schedule under every rule, because a dead network must be
# noticed at once.
PINGED = ("rtt_s", "rtt_min_s", "ping_loss")

# The columns of a full probe (a look-up and a train), which is sent when the rule says so.
ACTIVE = ("dns_s", "udp_bps", "udp_loss")

NETWORKS = ("wifi", "cellular")
# On the wire, both ways, of one ping and one lookup.
PING_BYTES, DNS_BYTES = 2 * 84, 150
_TRANSFERS_PER_S, _PINGS_EVERY_S = 0.5, 2

# Lower edges of the 5 dB bins of RSSI, for the delivered rate of a client that moves past access
# points.
_RSSI_DBM = (-85.0, -80.0, -75.0, -70.0, -65.0, -60.0)
_RSSI_LOG_MBPS = tuple(log10(rate) for rate in (0.3, 2.5, 3.7, 7.0, 14.0, 38.0))
_RSSI_STEP_DB = 3.1
# Signal and rate within one drive: rank correlation, and the share that is left after one second.
_RSRP_CORRELATION, _RSRP_KEPT, _RSRP_DBM, _RSRP_SIGMA_DB = 0.43, 0.93, -98.0, 8.0


@dataclass(frozen=True, slots=True)
class Walk:
    """A place that was probed second by second: per network one record of `COLUMNS` a second.

    `synthetic` names the networks whose passive indicators were drawn, since they were not measured.
    """

    place: str
    group: str
    seconds: int
    networks: Mapping[str, Sequence[Mapping[str, float]]]
    synthetic: frozenset[str]


@dataclass(slots=True)
class Asked:
    """Probes that a rule sent at a place, and what was known because of them.

    `known[second]` are columns of a data set at its beginning; probes, bytes and joules (tails
    included) are of both networks; `errors` is Delphi's equation 2, by second and network that was
    not probed in it.
    """

    known: list[dict[str, float]] = field(default_factory=list)
    probes: int = 0
    bytes: float = 0.0
    energy_j: float = 0.0
    errors: list[float] = field(default_factory=list)


def load(file: Path, seed: int = 1) -> dict[str, Walk]:
    """Read a file of probed places; passive indicators that are missing are drawn from `seed`.

    DataSetError: it cannot be read, or lacks a column.
    """
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DataSetError(
            f"{file}: cannot be read: {getattr(error, 'strerror', '') or error}"
        ) from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise DataSetError(f"{file}: column {missing[0]} is missing")
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    groups: dict[str, str] = {}
    for row in table.to_pylist():
        groups[row["place"]] = row["group"]
        found.setdefault(row["place"], {}).setdefault(row["network"], []).append(row)
    return {place: _walk(place, groups[place], networks, seed) for place, networks in found.items()}


def _walk(place: str, group: str, networks: dict[str, list[dict[str, Any]]], seed: int) -> Walk:
    records: dict[str, list[Mapping[str, float]]] = {}
    drawn = set()
    for network, rows in networks.items():
        rows.sort(key=lambda row: row["t_s"])
        numbers = [
            {name: float(v) for name, v in row.items() if isinstance(v, int | float)}
            for row in rows
        ]
        if not any(passive(_indicators(row)) for row in numbers):
            drawn.add(network)
            draw = random.Random(f"{seed}/{place}/{network}")
            rates_bps = [row.get("true_down_bps", 0.0) for row in numbers]
            radio = _rssi(rates_bps, draw) if network == "wifi" else _rsrp(rates_bps, draw)
            name = "rssi_dbm" if network == "wifi" else "rsrp_dbm"
            numbers = [{**row, name: value} for row, value in zip(numbers, radio, strict=True)]
        records[network] = list(numbers)
    seconds = min(len(rows) for rows in records.values())
    return Walk(place, group, seconds, records, frozenset(drawn))


def _rssi(rates_bps: Sequence[float], draw: random.Random) -> list[float]:
    """Return the signal at which a moving client has this rate, with a place's bias and noise."""
    bias_db = draw.gauss(0.0, 5.0)
    found = []
    for rate_bps in rates_bps:
        level = float(np.interp(log10(max(rate_bps / 1e6, 0.1)), _RSSI_LOG_MBPS, _RSSI_DBM))
        found.append(level + bias_db + draw.gauss(0.0, _RSSI_STEP_DB / sqrt(2.0)))
    return found


def _rsrp(rates_bps: Sequence[float], draw: random.Random) -> list[float]:
    """Return a slowly moving signal that goes with the rate as weakly as on real drives."""
    ranks = np.argsort(np.argsort(rates_bps)) / max(len(rates_bps) - 1, 1)
    level, found = draw.gauss(0.0, 1.0), []
    for rank in ranks:
        level = _RSRP_KEPT * level + sqrt(1 - _RSRP_KEPT**2) * draw.gauss(0.0, 1.0)
        z = (rank - 0.5) * sqrt(12.0)
        mixed = _RSRP_CORRELATION * z + sqrt(1 - _RSRP_CORRELATION**2) * level
        found.append(_RSRP_DBM + _RSRP_SIGMA_DB * mixed)
    return found


def replay(
    walk: Walk,
    rule: ProbeRule,
    evaluate: Callable[[Mapping[str, float]], tuple[Evaluation, ...]] | None = None,
) -> Asked:
    """Let a rule probe its way through a place, with a person at the host.

    At the beginning of each second the rule sees the passive indicators of the second before, and
    what its own probes have told. A probe sent then tells that second's answers, which are known at
    the beginning of the next one. `evaluate`: what the next transfer would cost by what is known
    (columns of a data set).
    """
    asked = Asked()
    answers: dict[str, dict[str, float]] = {network: {} for network in NETWORKS}
    last_s: dict[str, float] = {}
    for second in range(walk.seconds):
        known: dict[str, float] = {}
        indicators = {}
        for network in NETWORKS:
            # What is known at the beginning of a second: the radio's last second, the probes' answers.
            before = walk.networks[network][second - 1] if second else {}
            radio = _indicators(before)
            indicators[network] = radio
            known |= {f"{network}_{name}": value for name, value in answers[network].items()}
            if network not in walk.synthetic:
                known |= {
                    (name if name == "speed_mps" else f"{network}_{name}"): each.value
                    for name, each in radio.items()
                }
        asked.known.append(known)
        moment = Moment(
            float(second),
            indicators=indicators,
            evaluations=evaluate(known) if evaluate else (),
            transfers_per_s=_TRANSFERS_PER_S,
        )
        for network in NETWORKS:
            # Pings come at a fixed rate, whatever the rule.
            record = _merged(walk.networks[network], second)
            up = down = took_s = 0.0
            if second % _PINGS_EVERY_S == 0:
                _learn(answers[network], record, PINGED)
                up, down = PING_BYTES / 2, PING_BYTES / 2 * (1 - record.get("ping_loss", 0.0))
                took_s = record.get("rtt_s", 0.1)
            # Ask the rule. What is not probed is judged by what was known (equation 2).
            if not rule.weigh(network, moment):
                asked.errors.append(_error(answers[network], record))
            else:
                rule.probed(network, moment)
                asked.probes += 1
                _learn(answers[network], record, ACTIVE)
                up += DNS_BYTES / 2 + record.get("udp_bytes_up", 0.0)
                down += DNS_BYTES / 2 + record.get("udp_bytes_down", 0.0)
                took_s += record.get("udp_probe_s", 0.0)
            # The joules depend on how long ago the radio was last used.
            if up:
                idle_s = second - last_s[network] if network in last_s else None
                last_s[network] = float(second)
                asked.bytes += up + down
                asked.energy_j += probe_cost(
                    NetworkKind(network),
                    bytes_up=up,
                    bytes_down=down,
                    seconds=took_s,
                    idle_s=idle_s,
                ).energy_j
    return asked


def _learn(known: dict[str, float], record: Mapping[str, float], names: Sequence[str]) -> None:
    """Forget indicators that were asked for and not answered."""
    for name in names:
        known.pop(name, None)
        if name in record:
            known[name] = record[name]


def _indicators(record: Mapping[str, float]) -> dict[str, Indicator]:
    # One instant serves all: rules look at values, not at ages.
    known = {name: Indicator(value, 0.0) for name, value in record.items()}
    return {name: known[name] for name in passive(known)}


def _merged(records: Sequence[Mapping[str, float]], second: int) -> Mapping[str, float]:
    """Return a probe's answer in this second; trains and lookups were recorded in every other one."""
    now, before = records[second], records[max(second - 1, 0)]
    return {**{k: v for k, v in before.items() if k.startswith(("udp_", "dns_"))}, **now}


def _error(believed: Mapping[str, float], record: Mapping[str, float]) -> float:
    """Equation 2: the sum over the active indicators of their relative errors."""
    total = 0.0
    for name, value in believed.items():
        truth = record.get(name)
        if truth and name in ACTIVE:
            total += abs(value - truth) / truth
    return total
