"""A program of its own beside `cedos`: one command with its errors as a line and an exit status."""

from typing import Any

import click

from cedos.commands.console.manual import Manual
from cedos.commands.console.render import plain
from cedos.errors import CedosError


def say(program: str | None, error: CedosError) -> None:
    for line in str(error).splitlines():
        click.echo(f"{program}: {plain(line)}", err=True)


class Program(Manual):
    """A command that is a program: what a user can act on ends as a line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CedosError as error:
            say(self.name, error)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            ctx.exit(1)  # whoever read from us has gone; there is nobody to tell
        except KeyboardInterrupt:
            ctx.exit(130)
