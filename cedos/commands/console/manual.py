"""Help pages like manual pages, and programs beside `cedos`."""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from cedos.commands.console.render import echo
from cedos.errors import CedosError
from cedos.plain_text import plain

_EXIT: Final = {
    0: "Done.",
    1: "Something else went wrong; the message says what.",
    2: "The command line or the configuration is wrong.",
    3: "A privilege is missing.",
    4: "The host lacks something that is needed.",
    5: "Another daemon is running.",
    6: "No daemon answers.",
    130: "Interrupted by Ctrl-C.",
}
SOCKET: Final = (
    "/run/cedos/control.sock",
    "Where the daemon answers (CEDOS_RUNTIME_DIR moves it).",
)
STATE: Final = ("/var/lib/cedos", "History and the journal of changes (CEDOS_STATE_DIR moves it).")
CONFIG: Final = (
    "/etc/cedos/cedos.toml",
    "The configuration; `cedos example config` prints one with every default explained.",
)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Make errors of the command line plain: a shell's pattern has found names from elsewhere."""
    try:
        yield
    except click.ClickException as error:
        # (Its attribute is final for type checkers only.)
        vars(error)["message"] = "\n".join(map(plain, error.message.split("\n")))
        raise


class Manual(click.Command):
    """A command whose help ends with examples, exit status and files."""

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[tuple[str, str]] = (),
        # The possible exit statuses in order; a mapping has a text for each.
        exits: Sequence[int] | Mapping[int, str] = (0, 1, 2),
        files: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        texts = exits if isinstance(exits, Mapping) else {}
        self.exits = [(str(code), texts.get(code) or _EXIT[code]) for code in exits]
        self.files = files

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with plain_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with plain_errors():
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line, what in self.examples:
                    formatter.write_text(f"$ {line}")
                    with formatter.indentation():
                        formatter.write_text(what)
        for title, rows in (("Exit status", self.exits), ("Files", list(self.files))):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print facts as JSON, for programs."
)


# Errors that a user can repair: a full disk, a limit, a read-only file system.
_USUAL: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}
)


def usual(error: OSError) -> CedosError | None:
    """Return the message for an error that a user can fix, such as a full disk; None for others."""
    if error.errno not in _USUAL:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return CedosError(f"{where}{error.strerror}")


def say(program: str | None, error: CedosError) -> None:
    for line in str(error).splitlines():
        echo(f"{program}: {line}", err=True)


class Program(Manual):
    """A command that is a program.

    Errors that a user can fix end as one line and an exit status.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CedosError as error:
            say(self.name, error)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            ctx.exit(1)  # the reader of standard output has closed it
        except OSError as error:
            if (known := usual(error)) is None:
                raise
            say(self.name, known)
            ctx.exit(known.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)
