"""The controller's outbox: commands for its caller, and the wish to decide again."""

from cedos.controller.commands import Command


class Outbox:
    """The commands that the caller has not taken yet.

    Attributes:
        woken: there may be a reason to decide again.
        urgent: there is one.
    """

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self.woken = self.urgent = False

    def give(self, command: Command) -> None:
        self._commands.append(command)

    def take(self) -> list[Command]:
        """Return the commands since the last call, in order."""
        taken, self._commands = self._commands, []
        return taken

    def wake(self, urgent: bool = False) -> None:
        """Ask for a look at the facts; `urgent`: decide in any case."""
        self.woken = True
        self.urgent = self.urgent or urgent
