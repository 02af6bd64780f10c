"""`cedos prefer`: what metered networks are for, in the user's words."""

from typing import Final

import click

from cedos.api.client import ControlClient
from cedos.commands.console import render
from cedos.commands.console.manual import CONFIG, SOCKET, Manual, json_option
from cedos.config.directories import directories
from cedos.model import PhoneUse

_CONFIGURED: Final = "as configured"
_MEANING: Final = {
    PhoneUse.WITHOUT_WIFI: "Metered networks are used only where no other network works.",
    PhoneUse.TO_SAVE_TIME: "1 MB of phone data is spent where it saves 1 s. Wi-Fi of 8 Mbit/s or more"
    " carries bulk data alone.",
    PhoneUse.FREELY: "Metered networks are used wherever they are faster.",
}


@click.command(
    cls=Manual,
    examples=[
        ("cedos prefer", "What the phone is used for now."),
        ("cedos prefer only without Wi-Fi", "Phone data only where no Wi-Fi works."),
        ("cedos prefer to save time", "Phone data where a person notices the gain."),
        ("cedos prefer as configured", "As [decision] phone in the configuration says."),
    ],
    exits=(0, 2, 3, 6),
    files=[SOCKET, ("/var/lib/cedos/phone.json", "Your choice."), CONFIG],
)
@click.argument("words", nargs=-1)
@json_option
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Show or choose what metered networks are used for.

    WORDS is one of "only without Wi-Fi", "to save time", "freely" and "as configured". The choice
    holds for all programs, also through a gateway, until another one. Budgets limit the data
    besides.
    """
    client = ControlClient(directories().socket)
    told = client.prefer(_parse_use(" ".join(words))) if words else client.phone()
    if as_json:
        render.print_json(told)
        return
    where = "as configured" if told.source == "configuration" else "as you chose"
    text = f"The phone is used {told.phone} ({where}). {_MEANING[told.phone]}"
    render.show(render.wrap(text))


def _parse_use(said: str) -> PhoneUse | None:
    """Return the use that words mean; their beginning is enough. Errors: UsageError."""
    plain = said.lower().replace("-", "").split()
    for known in (*PhoneUse, _CONFIGURED):
        if known.lower().replace("-", "").split()[: len(plain)] == plain:
            return None if known == _CONFIGURED else PhoneUse(known)
    uses = ", ".join(f'"{each}"' for each in PhoneUse)
    raise click.UsageError(f'"{said}" is none of {uses} and "{_CONFIGURED}"')
