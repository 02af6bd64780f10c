"""The policies, one file each: ways to choose networks during a run, fixed ones and cedos (`base`)."""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.config import Config
from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu.policies.base import Policy


def names() -> list[str]:
    return sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(__path__)
        if module.name != "base"
    )


def unknown(name: str) -> str:
    """Return the message about a policy that does not exist."""
    close = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names())}"
    return f"no policy is called {name!r}; {hint}"


def make(name: str) -> Policy:
    """Make a policy by its name; ConfigError lists the names that exist."""
    if name not in names():
        raise ConfigError(unknown(name))
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    policy: Policy = module.policy()
    return policy


def title(name: str) -> str:
    """Return a policy's name for people, which its class has as `title`; else `name` itself."""
    if name not in names():
        return name
    # A variant inherits the policy that it varies, but not the title of that policy.
    found: str = vars(type(make(name))).get("title", name)
    return found


@dataclass(frozen=True, slots=True)
class Simulated:
    """A policy as the simulator runs it: fixed networks, that of first SYNs first, or a daemon."""

    networks: Sequence[NetworkKind] = ()
    daemon: Config | None = None


def simulated(name: str, settings: Mapping[str, object] | None = None) -> Simulated:
    """Return how the simulator runs a policy; ConfigError for one that it cannot run.

    `settings`: the scenario's `[policy.NAME]`.
    """
    policy = make(name)
    if "simulated" in vars(type(policy)):
        return Simulated(daemon=vars(type(policy))["simulated"](policy, settings or {}))
    if not (networks := _kinds(policy)):
        able = [
            each for each in names() if vars(type(make(each))).keys() & {"networks", "simulated"}
        ]
        raise ConfigError(
            f"the simulator cannot run {name}, which needs a kernel; it runs {', '.join(able)}"
        )
    return Simulated(networks)


def fixed(name: str) -> Sequence[NetworkKind]:
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
