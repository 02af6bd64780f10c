"""Help pages like manual pages, and programs beside `cedos`."""

import errno
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final, TypeVar

import click

from cedos.commands.console.render import echo
from cedos.config import amounts
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
T = TypeVar("T")
_SIZE_FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATE_FACTORS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


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
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
        *(errno.EMFILE, errno.ENFILE),
    }
)


def as_user_error(error: OSError) -> CedosError | None:
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
            if (known := as_user_error(error)) is None:
                raise
            say(self.name, known)
            ctx.exit(known.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)


class Parsed(click.ParamType[T]):
    """A type of option with the function `parse`, whose ValueError has the message for the user."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):  # a default, or read before
            read: T = value
            return read
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def at_a_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)B?", text)
    size = int(float(match[1]) * _SIZE_FACTORS[match[2]]) if match else 0
    if not 1 <= size <= 10**15:
        raise ValueError(f"{text!r} is not a size such as 3000, 20kB or 1.5GB")
    if text.isdecimal() and size < amounts.PLAINLY_BYTES and at_a_terminal():
        plural = "s" * (size != 1)
        echo(f'{size} byte{plural}, as there is no unit (such as "{text}MB")', err=True)
    return size


def _bit_rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG]?)(?:bit/s|bit|bps|b/s)?", text)
    rate_bps = float(match[1]) * _RATE_FACTORS[match[2]] if match else 0.0
    if not 1e3 <= rate_bps <= 1e10:
        raise ValueError(f"{text!r} is not a bit rate such as 640k or 2.5M")
    return rate_bps


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 192.0.2.0/24") from None


# Bytes: `3000`, `10MB`, `1.5 GB`. At a terminal, a size without a unit is echoed.
SIZE: Final = Parsed("size", _size)


# Seconds: `4`, `500ms`, `2min`, `1d`.
DURATION: Final = Parsed("duration", amounts.seconds)


# Bits per second: `640k`, `2.5M`, `640kbit/s`.
BIT_RATE: Final = Parsed("rate", _bit_rate)


# `192.0.2.0/24`, `2001:db8::/32`, or one address.
NETWORK: Final = Parsed("network", _network)


# Seconds since the epoch: `18:00`, `2h`, `tomorrow`, `2026-12-01 18:00`.
BY: Final = Parsed("time", lambda text: amounts.by(text, datetime.now()).timestamp())


BY_HELP: Final = (
    "Wanted by then: 18:00, 2h, 1d, tomorrow (its morning, 8:00), friday 18:00, 2026-12-01."
)
