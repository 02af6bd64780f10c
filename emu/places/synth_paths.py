"""The movement of a synthetic client: distance from the access point and speed by second.

The four kinds are walking out of a building, driving past access points, staying, and riding a train
that stops at stations with Wi-Fi. Only the durations of contacts and of the gaps between them while
driving are published figures (the two CDFs of vehicular Wi-Fi); how a train runs is our assumption.

Python's own generator is used throughout, whose sequence for a seed is the same in every release: a
synthetic place can be made again years later.
"""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

# Shares of the variance and their time constants in seconds. The shares add up to 1.
Mixture = Sequence[tuple[float, float]]


def autoregressive(rng: random.Random, count: int, tau_s: float) -> list[float]:
    """Return a stationary first-order process: mean 0, variance 1, autocorrelation exp(-k / tau_s)."""
    keep = math.exp(-1.0 / tau_s)
    fresh = math.sqrt(1.0 - keep * keep)
    value = rng.gauss(0.0, 1.0)
    values = []
    for _ in range(count):
        values.append(value)
        value = keep * value + fresh * rng.gauss(0.0, 1.0)
    return values


def mixture(rng: random.Random, count: int, parts: Mixture) -> list[float]:
    """Return a sum of independent first-order processes: mean 0, variance 1.

    Its autocorrelation after k seconds is the sum of share * exp(-k / tau_s).
    """
    total = [0.0] * count
    for share, tau_s in parts:
        for second, value in enumerate(autoregressive(rng, count, tau_s)):
            total[second] += math.sqrt(share) * value
    return total


def blend(weight: float, first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the sum weight * first + sqrt(1 - weight^2) * second, which keeps a variance of 1."""
    rest = math.sqrt(1.0 - weight * weight)
    return [weight * one + rest * other for one, other in zip(first, second, strict=True)]


def standardized(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / spread if spread > 1e-9 else 0.0 for value in values]


def interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear interpolation in a table of (x, y) with increasing x, constant beyond its ends."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at < x1:
            return y0 + (y1 - y0) * max(0.0, at - x0) / (x1 - x0)
    return points[-1][1]


def geometric(rng: random.Random, mean: float) -> int:
    """Return a whole number from 1 on, geometrically distributed around `mean` (at least 1)."""
    if mean <= 1.0:
        return 1
    return 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))


# Quantiles of the published CDFs of vehicular Wi-Fi contacts and of the gaps between them.
CONTACT_S = ((0.05, 0.9), (0.1, 1.2), (0.25, 2.1), (0.5, 4.5), (0.75, 11.3), (0.9, 28.9))
GAP_S = ((0.05, 1.0), (0.1, 2.3), (0.25, 8.3), (0.5, 31.3), (0.75, 100.0), (0.9, 261.6))

# The level from which on a client joins an access point, and that below which it is about to lose
# it.
JOIN_DBM = -79.0
_EDGE_DBM = -82.0
_TRAIN_ACCELERATION_MPS2 = 0.9
_TRAIN_SPEED_MPS = 22.0


@dataclass(frozen=True, slots=True)
class Movement:
    """The mean received level of the access point in dBm and the client's speed, per second."""

    level_dbm: list[float]
    speed_mps: list[float]


@dataclass(frozen=True, slots=True)
class _Radio:
    """Log-distance path loss: the level at 1 m, and 10 times the exponent in dB per decade."""

    at_1m_dbm: float
    decade_db: float

    def level_dbm(self, distance_m: float) -> float:
        return self.at_1m_dbm - self.decade_db * math.log10(max(distance_m, 1.0))

    def distance_m(self, level_dbm: float) -> float:
        return float(10.0 ** ((self.at_1m_dbm - level_dbm) / self.decade_db))


def _radio(rng: random.Random) -> _Radio:
    return _Radio(rng.uniform(-42.0, -36.0), rng.uniform(24.0, 29.0))


def static(rng: random.Random, seconds: int) -> Movement:
    """Draw a person who stays where the access point is heard at -72 to -48 dBm."""
    level_dbm = rng.uniform(-72.0, -48.0)
    return Movement([level_dbm] * seconds, [0.0] * seconds)


def walk_away(rng: random.Random, seconds: int) -> Movement:
    """Draw a person who gets up, leaves by a door, and walks away from the access point for good.

    The edge of its reach is met at 70 to 98 % of the time.
    """
    radio = _radio(rng)
    wall_db = rng.uniform(3.0, 8.0)
    walk_mps = rng.uniform(1.1, 1.5)
    near_m = rng.uniform(4.0, 8.0)
    door_m = near_m + rng.uniform(4.0, 10.0)
    edge_m = max(door_m + 5.0, radio.distance_m(_EDGE_DBM + wall_db))
    edge_s = rng.uniform(0.70, 0.98) * seconds
    start_s = max(3.0, edge_s - (edge_m - near_m) / walk_mps)
    movement = Movement([], [])
    for second in range(seconds):
        walked_m = max(0.0, second - start_s) * walk_mps
        distance_m = near_m + walked_m
        # A door takes about three metres to be wholly behind one.
        behind = min(1.0, max(0.0, (distance_m - door_m) / 3.0))
        movement.level_dbm.append(radio.level_dbm(distance_m) - wall_db * behind)
        movement.speed_mps.append(walk_mps if walked_m > 0.0 else 0.0)
    return movement


def drive_past(rng: random.Random, seconds: int) -> Movement:
    """Return a car that passes access points: contacts and gaps as long as published.

    Gaps are cut at a third of the time, or most short drives would meet no access point at all.
    """
    radio = _radio(rng)
    reach_m = radio.distance_m(JOIN_DBM)
    # middle, half-length in seconds, speed, closest distance
    passes: list[tuple[float, float, float, float]] = []
    at_s = rng.uniform(0.0, seconds / 6.0)
    while at_s < seconds:
        # The first contact is of the longer half, so that no drive is without any.
        contact_s = interpolated(CONTACT_S, rng.uniform(0.05 if passes else 0.5, 0.9))
        # As fast as the street allows, or slower where a fast car would be through too soon.
        speed_mps = min(rng.uniform(7.0, 18.0), 1.96 * reach_m / contact_s)
        closest_m = math.sqrt(reach_m**2 - (speed_mps * contact_s / 2.0) ** 2)
        passes.append((at_s + contact_s / 2.0, contact_s / 2.0, speed_mps, closest_m))
        gap_s = interpolated(GAP_S, rng.uniform(0.05, 0.9))
        at_s += contact_s + min(gap_s, seconds / 3.0)
    movement = Movement([], [])
    for second in range(seconds):
        middle_s, _, speed_mps, closest_m = min(
            passes, key=lambda one: abs(second + 0.5 - one[0]) - one[1]
        )
        along_m = speed_mps * (second + 0.5 - middle_s)
        movement.level_dbm.append(radio.level_dbm(math.hypot(closest_m, along_m)))
        movement.speed_mps.append(speed_mps)
    return movement


def station(rng: random.Random, seconds: int) -> Movement:
    """Return a train that stops for 25-50 s at stations with Wi-Fi, and rides for 45-100 s in between."""
    radio = _radio(rng)
    carriage_db = rng.uniform(2.0, 6.0)
    stops = []  # arrival, departure, distance from the platform's access point
    at_s = rng.uniform(-20.0, 30.0)
    while at_s < seconds + 120.0:
        dwell_s = rng.uniform(25.0, 50.0)
        stops.append((at_s, at_s + dwell_s, rng.uniform(6.0, 20.0)))
        at_s += dwell_s + rng.uniform(45.0, 100.0)
    movement = Movement([], [])
    for second in range(seconds):
        now_s = second + 0.5
        arrival_s, departure_s, beside_m = min(
            stops, key=lambda stop: max(stop[0] - now_s, now_s - stop[1])
        )
        moving_s = max(0.0, arrival_s - now_s, now_s - departure_s)
        ramp_s = min(moving_s, _TRAIN_SPEED_MPS / _TRAIN_ACCELERATION_MPS2)
        along_m = (
            _TRAIN_ACCELERATION_MPS2 * ramp_s**2 / 2.0 + (moving_s - ramp_s) * _TRAIN_SPEED_MPS
        )
        level_dbm = radio.level_dbm(math.hypot(beside_m, along_m)) - carriage_db
        movement.level_dbm.append(level_dbm)
        movement.speed_mps.append(_TRAIN_ACCELERATION_MPS2 * ramp_s)
    return movement
