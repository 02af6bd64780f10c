"""From what is known of this host's networks to the columns that predictors are trained on.

Columns are those of a transfer data set: `wifi_rtt_s` is the `rtt_s` of the network that plays Wi-Fi.
Rates are those in the transfer's direction: for an upload `wifi_past1_bps` is the network's
`past1_up_bps`, or where that is not known, as good as nothing else, its downlink's `past1_bps`; likewise
`udp_bps` and `udp_loss` are those of a train upwards, as in the data sets that models learn from.
A column `X_age_s` is the age of the indicator in column `X`. What is unknown is absent.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isnan

from cedos.model import Context, Direction, Indicator, Network, Transfer
from cedos.selector.decision.roles import ROLES, Roles

RATES = ("past1_bps", "past5_bps", "past10_bps")
"""What a network carried of late, towards the host; `_up_bps` in place of `_bps`: from it."""

DELIVERY = {Direction.DOWN: "delivery_down_bps", Direction.UP: "delivery_up_bps"}
"""What a network delivered of late, in each direction: it can do that at least."""

_AGE = "_age_s"
_HOST_SPEED = "speed_mps"
_UPLINK = {name: name.replace("_bps", "_up_bps") for name in RATES} | {
    "udp_bps": "udp_up_bps",
    "udp_loss": "udp_up_loss",
}
_NOTHING: Mapping[str, Indicator] = {}


def features(
    context: Context, transfer: Transfer, roles: Roles, columns: Sequence[str] | None = None
) -> dict[str, float]:
    """The predictors' view of a transfer.

    Args:
        context: indicators by this host's network names.
        transfer: its median size becomes `size_bytes`, its direction `direction_up` (0 or 1).
        roles: which network plays which part.
        columns: those a model asks for; None: all that are known, without ages.

    Returns:
        Column -> value in the data set's unit; a column without a measurement is left out.
    """
    found: dict[str, float] = {
        "size_bytes": float(transfer.size.median_bytes),
        "direction_up": 1.0 if transfer.direction == Direction.UP else 0.0,
    }
    sources = (_of(context, roles.wifi), _of(context, roles.cellular))
    if columns is None:
        columns = [
            f"{role}_{name}"
            for role, indicators in zip(ROLES, sources, strict=True)
            for name in indicators
            if name != _HOST_SPEED and name not in _UPLINK.values()
        ]
        columns.append(_HOST_SPEED)
    way = transfer.direction
    for column, source, name, is_age in _plan(tuple(columns)):
        indicator = (
            _newest(context, name) if source < 0 else indicator_of(sources[source], name, way)
        )
        if indicator is not None:
            value = context.at_s - indicator.measured_at_s if is_age else indicator.value
            if not isnan(value):
                found[column] = value
    return found


def indicator_of(
    indicators: Mapping[str, Indicator], name: str, direction: Direction
) -> Indicator | None:
    """A network's indicator for a transfer in a direction; None where it is not known."""
    if direction == Direction.UP and name in _UPLINK and (up := indicators.get(_UPLINK[name])):
        return up
    return indicators.get(name)


def _of(context: Context, network: Network | None) -> Mapping[str, Indicator]:
    return _NOTHING if network is None else context.networks.get(network.name, _NOTHING)


def _newest(context: Context, name: str) -> Indicator | None:
    """The host's own properties (its speed) stand with any of its networks."""
    known = [of[name] for of in context.networks.values() if name in of]
    return max(known, key=lambda indicator: indicator.measured_at_s) if known else None


@lru_cache(maxsize=32)
def _plan(columns: tuple[str, ...]) -> tuple[tuple[str, int, str, bool], ...]:
    """Where each column comes from: (column, index of its role or -1, indicator, is an age)."""
    plan = []
    for column in columns:
        if column in {"size_bytes", "direction_up"}:
            continue
        is_age = column.endswith(_AGE)
        name = column.removesuffix(_AGE)
        source = -1
        for index, role in enumerate(ROLES):
            if name.startswith(f"{role}_"):
                source, name = index, name.removeprefix(f"{role}_")
        plan.append((column, source, name, is_age))
    return tuple(plan)
