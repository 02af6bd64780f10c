"""The files of budgets: those of the configuration, and those that `cedos budget` writes."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from cedos.config import Config
from cedos.errors import ConfigError, PrivilegeError
from cedos.kernel import own_file
from cedos.model import Budget
from cedos.selector.budgets.keeper import period_at, wall

# A file in the state directory.
FILE: Final = "budgets.json"

# A file in the state directory: when each configured budget that does not recur was first seen.
BEGINNINGS: Final = "beginnings.json"


def configured_budgets(config: Config, now: datetime, state: Path) -> dict[str, Budget]:
    """Return the budgets of the configuration.

    A budget that does not recur begins when a daemon first saw it (`keep_beginnings`), else now:
    earlier use does not count.
    """
    found = {name: budget.budget(name, now) for name, budget in config.budgets.items()}
    seen = _beginnings(state / BEGINNINGS)
    for name, budget in found.items():
        if budget.every is None and datetime.fromisoformat(budget.until) > now:
            found[name] = begin_budget(budget, now, seen.get(name))
    return found


def keep_beginnings(budgets: Iterable[Budget], state: Path) -> bool:
    """Store when each of these budgets began; return whether any of that is new.

    Errors: ConfigError, the file cannot be written.
    """
    once = {each.name: each for each in budgets if each.every is None and each.since}
    news = once != _beginnings(state / BEGINNINGS)
    if news:
        write(state / BEGINNINGS, once)
    return news


def _beginnings(path: Path) -> dict[str, Budget]:
    try:
        return _read(path)
    except (OSError, ValueError):
        return {}  # they begin anew


def read(path: Path) -> dict[str, Budget]:
    """Return the budgets of a file by name; none if there is no file.

    Errors: ConfigError, the file cannot be used; PrivilegeError, it is not for everybody.
    """
    try:
        return _read(path)
    except PermissionError as error:
        raise PrivilegeError(
            f"{path} cannot be read by you. While no daemon answers, only root sees the budgets"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be used ({_describe_error(error)}); the next `cedos budget set` keeps it"
            f" as {own_file.free_name_beside(path).name}, and begins a new one"
        ) from error


def read_or_move_aside(path: Path) -> tuple[dict[str, Budget], str]:
    """Return the budgets of a file that is about to be written; moves a bad file aside.

    Errors: ConfigError, the file cannot be used, and not be renamed either.

    Returns:
        the budgets by name, and what was kept aside where and why, in words; "": nothing was.
    """
    try:
        return _read(path), ""
    except (OSError, ValueError) as error:
        why = _describe_error(error)
    aside = own_file.free_name_beside(path)
    try:
        path.rename(aside)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used ({why}), nor be renamed to {aside.name} ({_describe_error(error)})"
        ) from error
    return {}, f"{path} cannot be used ({why}); it is kept as {aside}, and a new one begins"


def kept_aside(path: Path) -> list[str]:
    """Return the warnings of files that `read_or_move_aside` moved aside and that are still there."""
    return [
        f"budgets are not in force: {aside} could not be used; set them anew with `cedos budget set`,"
        " and remove that file"
        for aside in sorted(path.parent.glob(f"{path.name}.aside-*"))
    ]


def _read(path: Path) -> dict[str, Budget]:
    try:
        budgets = msgspec.json.decode(own_file.read(path), type=list[Budget])
    except FileNotFoundError:
        return {}
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return {budget.name: budget for budget in budgets}


def _describe_error(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def write(path: Path, budgets: dict[str, Budget]) -> None:
    """Write the file, whole or not at all. Errors: ConfigError, it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(list(budgets.values())))
        own_file.write(path, content)
    except PermissionError as error:
        raise PrivilegeError(
            f"{path} cannot be written by you. While no daemon answers, only root sets and removes"
            " budgets"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def begin_budget(budget: Budget, now: datetime, earlier: Budget | None) -> Budget:
    """Return a budget with what it takes from the one it replaces: its beginning, and whether it is hard.

    `earlier`: the one of this name until now; what was spent of it in its period stays spent. Errors:
    ConfigError, the budget would be over already, or a hard one would silently be none.
    """
    if budget.hard is None:
        hard = earlier is not None and bool(earlier.hard)
        if hard and not budget.resource.meter.can_bar:
            raise ConfigError(
                f'the budget "{budget.name}" is hard, and one of {budget.resource.value} cannot be.'
                " Another name for the new one, or --soft, would be right"
            )
        budget = replace(budget, hard=hard)
    if budget.every is not None:
        return budget
    if why := describe_end(budget, now):
        raise ConfigError(why)
    if budget.since:
        return budget
    now_s = now.timestamp()
    since = now.isoformat(timespec="seconds")
    if earlier is not None and _is_same(earlier, budget):
        period = period_at(earlier, now_s)
        if period.begins_s <= now_s < period.ends_s:
            since = earlier.since
            if earlier.every is not None:
                since = wall(period.begins_s).isoformat(timespec="seconds")
    return replace(budget, since=since)


def describe_end(budget: Budget, now: datetime) -> str:
    """Return in words that a budget's only period is over; "": it is not."""
    ends = datetime.fromisoformat(budget.until)
    if budget.every is not None or ends > now:
        return ""
    return (
        f'the end of the budget "{budget.name}" ({ends:%Y-%m-%d %H:%M}) has passed: it limits nothing.'
        " A later end would be right, or one that recurs (every month, say)"
    )


def _is_same(one: Budget, other: Budget) -> bool:
    return (one.resource, one.battery) == (other.resource, other.battery)
