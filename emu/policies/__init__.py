"""Policies: ways to choose the emulated laptop's networks during a run.

Each class in a file of this folder that has a `name` and the methods of `Policy` is one policy; scenarios
and `--policy` know it by that name.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from cedos.config import Config
from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu.places.places import Place
from emu.testbed.phones import Laptop


@dataclass(frozen=True, slots=True)
class Stage:
    """The things that a policy may use: the laptop, the place replayed to it, a folder for its logs.

    `replay_at_s` is the monotonic instant at which the replay stood at the place's `offset_s`.
    `seed` is that of the repeat, `settings` are the scenario's `[policy.NAME]` table. A policy may add to
    `variables`, the environment of the client's programs.
    """

    laptop: Laptop
    place: Place
    directory: Path
    replay_at_s: float
    offset_s: float
    seed: int
    settings: Mapping[str, object] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


class Policy(Protocol):
    """A way to choose networks, from `start` to `stop`; the testbed does the rest.

    A policy that reads `Stage.settings` also has a method `wrong_settings`, which is given the settings
    and returns the mistakes in them, by key. An attribute `title` is its name in tables and pictures.

    A fixed policy never changes its choice. It has an attribute `networks`: the kinds of network that
    programs use, the first choice first. The simulator can run it, too.
    """

    name: str

    def start(self, stage: Stage) -> None:
        """Set the client up and return when it is ready for transfers. Errors: EmulationError."""

    def stop(self) -> None:
        """End what `start` started and leave its records in the stage's directory."""


@cache
def _classes() -> dict[str, type[Policy]]:
    """Return the policies by name: of a variant, not of the policy that it inherits."""
    found: dict[str, type[Policy]] = {}
    for each in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{each.name}")
        own = (each for each in vars(module).values() if isinstance(each, type))
        named = (
            each for each in own if each.__module__ == module.__name__ and "name" in vars(each)
        )
        found |= {vars(each)["name"]: each for each in named}
    return found


def names() -> list[str]:
    return sorted(_classes())


def unknown(name: str) -> str:
    """Return the message about a policy that does not exist."""
    close = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names())}"
    return f"no policy is called {name!r}; {hint}"


def make(name: str) -> Policy:
    """Make a policy by its name; ConfigError lists the names that exist."""
    if name not in names():
        raise ConfigError(unknown(name))
    return _classes()[name]()


def title(name: str) -> str:
    """Return a policy's name for people, which its class has as `title`; else `name` itself."""
    if name not in names():
        return name
    # A variant inherits the policy that it varies, but not the title of that policy.
    found: str = vars(type(make(name))).get("title", name)
    return found


@dataclass(frozen=True, slots=True)
class Simulated:
    """A policy as the simulator runs it: fixed networks, that of first SYNs first, or a daemon.

    `gateway`: programs connect through the proxy, beside the daemon.
    """

    networks: Sequence[NetworkKind] = ()
    daemon: Config | None = None
    gateway: bool = False


def simulated(name: str, settings: Mapping[str, object] | None = None) -> Simulated:
    """Return how the simulator runs a policy; ConfigError for one that it cannot run.

    `settings`: the scenario's `[policy.NAME]`.
    """
    policy = make(name)
    if "simulated" in vars(type(policy)):
        daemon = vars(type(policy))["simulated"](policy, settings or {})
        return Simulated(daemon=daemon, gateway="gateway" in vars(type(policy)))
    if not (networks := _kinds(policy)):
        able = [
            each for each in names() if vars(type(make(each))).keys() & {"networks", "simulated"}
        ]
        raise ConfigError(
            f"the simulator cannot run {name}, which needs a kernel; it runs {', '.join(able)}"
        )
    return Simulated(networks)


def networks_of(name: str) -> Sequence[NetworkKind]:
    """Return the kinds of network of a fixed policy, the first choice first; ConfigError for others."""
    if kinds := _kinds(make(name)):
        return kinds
    able = ", ".join(each for each in names() if _kinds(make(each)))
    raise ConfigError(f"{name} is no fixed policy; those are {able}")


def _kinds(policy: Policy) -> Sequence[NetworkKind]:
    kinds: Sequence[NetworkKind] = vars(type(policy)).get("networks", ())
    return kinds


def wrong_settings(name: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the mistakes in a scenario's `[policy.NAME]`, by key; "" stands for the table itself."""
    judge = getattr(make(name), "wrong_settings", None)
    if judge is not None:
        found: dict[str, str] = judge(settings)
        return found
    return {"": f"[policy.{name}]: this policy reads no settings"}


def with_predictors(
    settings: Mapping[str, Mapping[str, Any]], model: Path
) -> dict[str, dict[str, Any]]:
    """Return the settings of all policies, with a model for those that run the daemon."""
    found = {name: dict(each) for name, each in settings.items()}
    for name in names():
        if hasattr(make(name), "wrong_settings"):
            mine = found.setdefault(name, {})
            mine["predictors"] = {**mine.get("predictors", {}), "model": str(model)}
    return found
