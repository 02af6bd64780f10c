"""Policies: ways to choose the emulated laptop's networks during a run.

One file in this folder is one policy. It defines a class with the three members of `Policy` and a
module attribute `policy` that makes one; its name is then known to scenarios and to `--policy`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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


class Fixed:
    """A policy that at most sets the laptop up, which lives for one run."""

    def start(self, stage: Stage) -> None:
        """Do nothing: the emulated laptop comes with routes that prefer Wi-Fi."""

    def stop(self) -> None:
        """Do nothing: there is nothing to undo."""
