"""Columns of a data set from the indicators of this host's networks.

Columns are those that predictors are trained on: `wifi_rtt_s` is the `rtt_s` of the network that
has the role `wifi`. An unknown indicator has no column.

Rates are those in the transfer's direction: for an upload `wifi_past1_bps` is the network's
`past1_up_bps`, or, if that is unknown, its downlink's `past1_bps`. The trains of probes of a data set
came downwards: `udp_bps` and `udp_loss` say of an upload what they say of a download.

An old rate is handed on as it was measured. Models take its age as an input, and learned on rates
of that age how much it still says (`docs/decisions/old-rates.md`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf, isnan

from cedos.model import Context, Direction, Indicator, Network, Transfer
from cedos.selector.decision.case import ROLES, Roles
from predictors.inputs import LARGEST_AGE_S

# The recent rates of a network towards the host. Those from the host have `_up_bps` for `_bps`.
RATES = ("past1_bps", "past5_bps", "past10_bps")

# The recent delivery rate by direction, a lower bound of the network's rate.
DELIVERY = {Direction.DOWN: "delivery_down_bps", Direction.UP: "delivery_up_bps"}

UPLINK = {name: name.replace("_bps", "_up_bps") for name in RATES}

# The last finished small download: its bytes and its completion time.
RECENT = ("recent_bytes", "recent_s")

# A younger measurement counts as new. Flows are looked at once a second at least.
FRESH_S = 1.5

# The geometric mean of the rates of all places. Until a network's rate is measured, a delivery counts
# only if it was faster than this.
_USUAL_BPS = {"wifi": 8.3e6, "cellular": 10.4e6}

# The predictors' columns of rates and recent downloads. Only this module reads them.
RATE_COLUMNS = (*RATES, "rate_age_s", *RECENT, "recent_age_s")

_COLUMN = {(role, name): f"{role}_{name}" for role in ROLES for name in RATE_COLUMNS}


def indicator_of(
    indicators: Mapping[str, Indicator], name: str, direction: Direction
) -> Indicator | None:
    """Return a network's indicator for a transfer in this direction, if it is known."""
    if direction == Direction.UP and name in UPLINK and (up := indicators.get(UPLINK[name])):
        return up
    return indicators.get(name)


def rates_of(context: Context, roles: Roles, direction: Direction) -> Iterator[tuple[str, float]]:
    """Yield the predictors' columns of rates, their ages and the last small transfers.

    A rate measured at another access point counts as very old. A network that delivered more since
    its measurement is taken to reach at least that; an uplink is taken to be no better than a
    downlink that has faded since.
    """
    for role, network in roles.players():
        indicators = context.networks.get(network.name)
        if not indicators:
            continue
        attached = context.attachments.get(network.name)
        # Rates of another access point are as old as can be.
        attached_at_s = attached.since_s if attached else -inf
        rates, measured_at_s = _measured_rates(indicators, direction)
        # An old measurement may be too low: deliveries since then are a lower bound.
        if context.at_s - measured_at_s > FRESH_S or measured_at_s < attached_at_s:
            rates, measured_at_s = _raise_rates(
                role, indicators, direction, rates, measured_at_s, attached_at_s
            )
        for name, rate_bps in rates.items():
            yield _COLUMN[role, name], rate_bps
        if rates:
            age_s = inf if measured_at_s < attached_at_s else context.at_s - measured_at_s
            if age_s > FRESH_S:
                yield _COLUMN[role, "rate_age_s"], min(age_s, LARGEST_AGE_S)
        # The last small transfer, if it was at this access point.
        took, size = indicators.get("recent_s"), indicators.get("recent_bytes")
        if took is not None and size is not None and took.measured_at_s >= attached_at_s:
            yield _COLUMN[role, "recent_bytes"], size.value
            yield _COLUMN[role, "recent_s"], took.value
            age_s = max(context.at_s - took.measured_at_s, 0.0)
            yield _COLUMN[role, "recent_age_s"], min(age_s, LARGEST_AGE_S)


def _measured_rates(
    indicators: Mapping[str, Indicator], direction: Direction
) -> tuple[dict[str, float], float]:
    """Return the measured rates by name, and the instant of the newest one."""
    rates, newest_s = {}, -inf
    for name in RATES:
        measured = indicator_of(indicators, name, direction)
        if measured is None:
            continue
        # An uplink is no better than a downlink that has faded since.
        down = indicators.get(name)
        if (
            down is not None
            and down.measured_at_s > measured.measured_at_s
            and down.value < measured.value
        ):
            measured = down
        rates[name] = measured.value
        newest_s = max(newest_s, measured.measured_at_s)
    return rates, newest_s


def _raise_rates(
    role: str,
    indicators: Mapping[str, Indicator],
    direction: Direction,
    rates: dict[str, float],
    measured_at_s: float,
    attached_at_s: float,
) -> tuple[dict[str, float], float]:
    """Return the rates that deliveries since the measurement prove too low, raised."""
    least = indicators.get(DELIVERY[direction])
    # Only a delivery after the measurement proves it too low: before it, the network may have faded.
    if least is None or least.measured_at_s < max(attached_at_s, measured_at_s):
        return rates, measured_at_s
    # Nothing was measured: the delivery counts if it is better than usual.
    if not rates:
        if least.value <= _USUAL_BPS[role]:
            return rates, measured_at_s
        return dict.fromkeys(RATES, least.value), least.measured_at_s
    if least.value <= next(iter(rates.values())):
        return rates, measured_at_s
    raised = {name: max(rate_bps, least.value) for name, rate_bps in rates.items()}
    return raised, least.measured_at_s


_NOTHING: Mapping[str, Indicator] = {}


def features(
    context: Context,  # indicators by this host's network names
    # Its median size becomes `size_bytes`, its direction `direction_up` (0 or 1).
    transfer: Transfer,
    roles: Roles,  # which network has which role
    columns: Sequence[str],  # those a model asks for
) -> dict[str, float]:
    """Return the columns by which the predictors see a transfer.

    Returns:
        Column -> value in the data set's unit; a column without a measurement is left out.
    """
    found: dict[str, float] = {
        "size_bytes": float(transfer.size.median_bytes),
        "direction_up": 1.0 if transfer.direction == Direction.UP else 0.0,
    }
    sources = (_of(context, roles.wifi), _of(context, roles.cellular))
    columns = tuple(columns)
    wanted, way = _set(columns), transfer.direction
    for column, source, uplink, name in _plan(columns, way):
        # An indicator of the host itself (its speed) may be stored with any network; all others are
        # stored with the network of the role.
        if source < 0:
            indicator = _newest_indicator(context, name)
        else:
            known = sources[source]
            indicator = (known.get(uplink) if uplink else None) or known.get(name)
        if indicator is not None and not isnan(indicator.value):
            found[column] = indicator.value
    found.update([each for each in rates_of(context, roles, way) if each[0] in wanted])
    return found


def _of(context: Context, network: Network | None) -> Mapping[str, Indicator]:
    return _NOTHING if network is None else context.networks.get(network.name, _NOTHING)


def _newest_indicator(context: Context, name: str) -> Indicator | None:
    """Return the newest indicator of this name: the host's speed is stored with any network."""
    known = [of[name] for of in context.networks.values() if name in of]
    return max(known, key=lambda indicator: indicator.measured_at_s) if known else None


@lru_cache(maxsize=32)
def _set(columns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(columns)


@lru_cache(maxsize=32)
def _plan(
    columns: tuple[str, ...], direction: Direction
) -> tuple[tuple[str, int, str | None, str], ...]:
    """Return the source of each column: (column, role, preferred indicator, indicator).

    The role is an index of `ROLES`, or -1 for an indicator of the host itself. The preferred indicator
    (of an upload: its uplink's) is taken where it is known.

    The plan follows the rules of `indicator_of`, which is too slow to call for each column.
    """
    uplinks = UPLINK if direction == Direction.UP else {}
    plan = []
    for column in columns:
        if column in {"size_bytes", "direction_up"}:
            continue
        source, name = -1, column
        for index, role in enumerate(ROLES):
            if column.startswith(f"{role}_"):
                source, name = index, column.removeprefix(f"{role}_")
        if name not in RATE_COLUMNS:
            plan.append((column, source, uplinks.get(name), name))
    return tuple(plan)
