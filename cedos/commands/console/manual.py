"""Help pages as complete as a manual page: what it does, examples, exit status, files."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

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
STATE: Final = (
    "/var/lib/cedos",
    "History and the journal of changes (CEDOS_STATE_DIR moves it).",
)
CONFIG: Final = (
    "/etc/cedos/cedos.toml",
    "The configuration; `cedos example config` prints one with every default explained.",
)


class Manual(click.Command):
    """A command whose help ends with examples, exit status and files.

    Args:
        exits: the exit statuses that it may have, in order; a mapping gives a text of its own.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[tuple[str, str]] = (),
        exits: Sequence[int] | Mapping[int, str] = (0, 1, 2),
        files: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        texts = exits if isinstance(exits, Mapping) else {}
        self.exits = [(str(code), texts.get(code) or _EXIT[code]) for code in exits]
        self.files = files

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
