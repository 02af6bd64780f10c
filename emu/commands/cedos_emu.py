"""`cedos-emu`: one file in `emu/commands` is one command, imported only when it is used."""

import ast
import errno
import importlib
import os
from pathlib import Path
from typing import Any

import click

from cedos.commands.console.render import echo
from cedos.errors import CedosError, HostError
from emu import console

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_COMMANDS = Path(__file__).parent


class LazyGroup(click.Group):
    """Commands by the names of the files that define them as `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(
            path.stem.replace("_", "-")
            for path in _COMMANDS.glob("*.py")
            if not path.stem.startswith("_") and path.name != Path(__file__).name
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"emu.commands.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; one that is misspelt is told which there is."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            raise click.NoSuchCommand(args[0], possibilities=names, ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; by the time Ctrl-C is told of, all that was emulated is undone."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            echo("cedos-emu: interrupted; what was emulated is undone", err=True)
            ctx.exit(130)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, _purpose(name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _purpose(name: str) -> str:
    """Return the first line of a command's file, less the command's own name at its beginning."""
    source = (_COMMANDS / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    summary = summary.removeprefix(f"`cedos-emu {name}`: ")
    return summary[:1].upper() + summary[1:]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cedos", prog_name="cedos-emu")
def group() -> None:
    """Run experiments in the testbed: two emulated phones that replay real traces.

    It needs root for everything that emulates, and leaves the host's own networking as it is.
    """


def main() -> None:
    """Run `cedos-emu`: an error that a user can act on is a line, and an exit status."""
    try:
        group(prog_name="cedos-emu")
    except CedosError as error:
        for line in str(error).splitlines():
            echo(f"cedos-emu: {line}", err=True)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = f": {error.filename}" if error.filename else ""
        echo(f"cedos-emu: {os.strerror(error.errno)}{where}", err=True)
        raise SystemExit(CedosError.exit_code) from None
    except ModuleNotFoundError as error:
        if (what := console.missing(error)) is None:
            raise
        echo(f"cedos-emu: {what}", err=True)
        raise SystemExit(HostError.exit_code) from None
