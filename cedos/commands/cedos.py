"""The command `cedos`. A subcommand is imported only when it is used."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

from cedos.errors import CedosError

COMMANDS: Final = {
    "up": "Run the daemon in the foreground.",
    "status": "Show networks, the default, living flows and problems.",
    "explain": "Explain why a flow uses its network.",
    "transfers": "Show transfers with deadlines, and what they wait for.",
    "prefer": "Say what the phone is for: only without Wi-Fi, to save time, or freely.",
    "budget": "Show, set and remove budgets of data, energy and money.",
    "usage": "Show the use of each network: metered data, energy, servers.",
    "rule": "Show, add and remove rules: hosts that keep to some networks.",
    "record": "Record what happens, for a replay: start, stop.",
    "top": "Watch problems, networks and flows.",
    "exec": "Run a program with hints about its transfers.",
    "choose": "Print the networks that a transfer should use now.",
    "join": "Join the gateway that carries programs' connections.",
    "forward": "Carry programs' connections through the joined gateway.",
    "gateway": "Run a gateway for the sessions of laptops.",
    "share": "Buy bandwidth from neighbours, or sell it to them.",
    "doctor": "Show what this host can and cannot do.",
    "restore": "Undo the changes of a killed daemon.",
    "example": "Print the configuration or the systemd unit to start from.",
}

# The folders of commands that are not in `cedos/commands` itself.
ROOMS: Final = dict.fromkeys(["join", "forward", "gateway"], "gateway")


class LazyGroup(click.Group):
    """A group that lists its commands without importing them.

    `purposes`: what each command does. A command is `command` of a module in `package`, or in the folder
    of it that `rooms` names.
    """

    def __init__(
        self,
        *arguments: Any,
        purposes: Mapping[str, str],
        package: str,
        rooms: Mapping[str, str],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._purposes, self._package, self._rooms = purposes, package, rooms

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._purposes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._purposes:
            return None
        room = [self._rooms[cmd_name]] if cmd_name in self._rooms else []
        command = importlib.import_module(".".join([self._package, *room, cmd_name])).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. For a misspelt one, raise an error that suggests others."""
        if args and not args[0].startswith("-") and args[0] not in self._purposes:
            raise click.NoSuchCommand(args[0], possibilities=list(self._purposes), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._purposes.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Errors that a user can fix end as one line and an exit status."""
        try:
            return super().invoke(ctx)
        except CedosError as error:
            from cedos.commands.console.manual import say  # noqa: PLC0415

            say(self.name, error)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            ctx.exit(1)
        except OSError as error:
            from cedos.commands.console.manual import as_user_error, say  # noqa: PLC0415

            if (known := as_user_error(error)) is None:
                raise
            say(self.name, known)
            ctx.exit(known.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)


@click.group(
    "cedos",
    cls=LazyGroup,
    purposes=COMMANDS,
    package="cedos.commands",
    rooms=ROOMS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="cedos", prog_name="cedos")
def main() -> None:
    """Decides for every transfer which network to use: Wi-Fi, cellular, both, or not now.

    `cedos up` runs the daemon, usually started by systemd, and the other commands ask it. `cedos
    COMMAND --help` has the details of a command, with examples, exit status and files.
    """


if __name__ == "__main__":
    main()
