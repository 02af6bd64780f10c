"""Joules of one transfer of a data set, its strategy named as there."""

from cedos.model import Direction, NetworkKind
from cedos.selector.decision.roles import ROLES_OF
from cedos.selector.energy.power_model import DELPHI, PowerModel

_KIND_OF_ROLE = {"wifi": NetworkKind.WIFI, "cellular": NetworkKind.CELLULAR}


def transfer_energy_j(
    role_strategy: str,
    size_bytes: float,
    direction: Direction | str,
    time_s: float,
    *,
    cellular_idle_s: float | None = None,
    power: PowerModel = DELPHI,
) -> float:
    """Joules of one transfer of a data set, its strategy named as in the data set.

    Args:
        role_strategy: `wifi`, `cellular`, `mptcp_wifi`, `mptcp_cellular` or `redundant`.
        size_bytes: bytes carried; nothing is sent, and nothing paid, for none.
        direction: `down` or `up`.
        time_s: how long it took.
        cellular_idle_s: seconds since the cellular radio was last used; None: long ago, as in Delphi.
        power: watts and tails.

    Raises:
        KeyError: for an unknown strategy.
    """
    radios = [power.radios[_KIND_OF_ROLE[role]] for role in ROLES_OF[role_strategy]]
    if size_bytes <= 0:
        return 0.0
    active_w = sum(radio.active_w(Direction(direction)) for radio in radios)
    return active_w * time_s + sum(radio.added_tail_j(cellular_idle_s) for radio in radios)
