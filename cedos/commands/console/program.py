"""A program of its own beside `cedos`: one command with its errors as a line and an exit status."""

import errno
from typing import Any, Final

import click

from cedos.commands.console.manual import Manual
from cedos.commands.console.render import plain
from cedos.errors import CedosError

# What a user can mend: a full disk, a limit, a read-only place.
_USUAL: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}
)


def usual(error: OSError) -> CedosError | None:
    """The line for an error that comes from outside wherever it comes; None for all others."""
    if error.errno not in _USUAL:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return CedosError(f"{where}{error.strerror}")


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
        except OSError as error:
            if (known := usual(error)) is None:
                raise
            say(self.name, known)
            ctx.exit(known.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)
