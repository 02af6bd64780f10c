"""Interfaces and networks that are named, but are not there: misspelt, or not plugged in yet."""

import difflib
from collections.abc import Collection, Iterable

from cedos.config import Config
from cedos.model import Budget


def unknown_names(
    config: Config,
    budgets: Iterable[Budget],
    *,
    interfaces: Collection[str],
    networks: Collection[str],
) -> list[str]:
    """What is named but not among these, in words; ignored interfaces are never networks."""
    named = {
        **{f"[networks.{name}]": name for name, each in config.networks.items() if not each.ignore},
        **{f"[providers] series.{name}": name for name in config.providers.series},
    }
    found = [
        f"{where} names the interface {name}, which is not there now{_hint(name, interfaces)}"
        for where, name in named.items()
        if name not in interfaces
    ]
    return found + [
        f'the budget "{budget.name}" names the network {name},'
        f" which is not there now{_hint(name, networks)}"
        for budget in budgets
        for name in budget.networks
        if name not in networks
    ]


def _hint(name: str, known: Collection[str]) -> str:
    if near := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {near[0]}?"
    are = "is" if len(known) == 1 else "are"
    return f"; there {are} {', '.join(sorted(known))}" if known else ""
