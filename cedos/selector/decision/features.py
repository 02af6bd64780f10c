"""From what is known of this host's networks to the columns that predictors are trained on.

Columns are those of a transfer data set: `wifi_rtt_s` is the `rtt_s` of the network that plays Wi-Fi.
Rates are those in the transfer's direction: for an upload `wifi_past1_bps` is the network's
`past1_up_bps`, or where that is not known, as good as nothing else, its downlink's `past1_bps`; likewise
`udp_bps` and `udp_loss` are those of a train upwards, as in the data sets that models learn from.
What is unknown is absent.
"""

from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from math import isnan

from cedos.model import Context, Direction, Indicator, Network, Transfer
from cedos.selector.decision.rates import COLUMNS as OF_RATES
from cedos.selector.decision.rates import UPLINK, rates_of
from cedos.selector.decision.roles import ROLES, Roles

_HOST_SPEED = "speed_mps"
_NOTHING: Mapping[str, Indicator] = {}


def features(
    context: Context, transfer: Transfer, roles: Roles, columns: Sequence[str] | None = None
) -> dict[str, float]:
    """The predictors' view of a transfer.

    Args:
        context: indicators by this host's network names.
        transfer: its median size becomes `size_bytes`, its direction `direction_up` (0 or 1).
        roles: which network plays which part.
        columns: those a model asks for; None: all that are known.

    Returns:
        Column -> value in the data set's unit; a column without a measurement is left out.
    """
    found: dict[str, float] = {
        "size_bytes": float(transfer.size.median_bytes),
        "direction_up": 1.0 if transfer.direction == Direction.UP else 0.0,
    }
    sources = (_of(context, roles.wifi), _of(context, roles.cellular))
    wanted: Container[str] | None = None
    if columns is None:
        columns = [
            f"{role}_{name}"
            for role, indicators in zip(ROLES, sources, strict=True)
            for name in indicators
            if name != _HOST_SPEED and name not in UPLINK.values()
        ]
        columns.append(_HOST_SPEED)
    else:
        columns = tuple(columns)
        wanted = _set(columns)
    way = transfer.direction
    for column, source, uplink, name in _plan(tuple(columns), way):
        if source < 0:
            indicator = _newest(context, name)
        else:
            known = sources[source]
            indicator = (known.get(uplink) if uplink else None) or known.get(name)
        if indicator is not None and not isnan(indicator.value):
            found[column] = indicator.value
    of_rates = rates_of(context, roles, way)
    found.update(of_rates if wanted is None else [each for each in of_rates if each[0] in wanted])
    return found


def _of(context: Context, network: Network | None) -> Mapping[str, Indicator]:
    return _NOTHING if network is None else context.networks.get(network.name, _NOTHING)


def _newest(context: Context, name: str) -> Indicator | None:
    """The host's own properties (its speed) stand with any of its networks."""
    known = [of[name] for of in context.networks.values() if name in of]
    return max(known, key=lambda indicator: indicator.measured_at_s) if known else None


@lru_cache(maxsize=32)
def _set(columns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(columns)


@lru_cache(maxsize=32)
def _plan(
    columns: tuple[str, ...], direction: Direction
) -> tuple[tuple[str, int, str | None, str], ...]:
    """Where each column comes from: (column, index of its role or -1, better indicator, indicator).

    As `indicator_of` takes them, which is not asked once a column.
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
        if name not in OF_RATES:
            plan.append((column, source, uplinks.get(name), name))
    return tuple(plan)
