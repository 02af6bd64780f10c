"""`cedos choose`: the best network for a transfer now, for scripts and programs that can choose."""

import click

from cedos.api.client import ControlClient
from cedos.api.programs import ChoiceRequest
from cedos.commands.console import render
from cedos.commands.console.manual import DURATION, SIZE, SOCKET, Manual, json_option
from cedos.commands.console.render import echo
from cedos.config.directories import directories
from cedos.model import Direction, Urgency


@click.command(
    cls=Manual,
    examples=[
        ("cedos choose --size 4kB", "The network for a small answer."),
        ("cedos choose --size 4kB --redundant", "Both, where hedging is worth it now."),
        (
            "cedos choose --size 4kB --redundant --sent wlan0 --waited 300ms",
            "It was sent and has no answer: wait, or send it again?",
        ),
        ("cedos choose --size 2GB --up --background", "An upload that can wait."),
    ],
    exits={0: "", **dict.fromkeys((2, 3, 6), "")},
    files=[SOCKET],
)
@click.option("--size", type=SIZE, required=True, help="The size of the transfer.")
@click.option("--up", is_flag=True, help="An upload; else a download.")
@click.option("--background", is_flag=True, help="No person waits for it.")
@click.option("--deadline", type=DURATION, help="The time within which it is wanted.")
@click.option(
    "--redundant",
    is_flag=True,
    help="The program can send copies over several networks: considered for short foreground transfers,"
    " with `redundant` in [decision].",
)
@click.option(
    "--sent", metavar="NETWORK", help="The network over which it was sent without an answer so far."
)
@click.option("--waited", type=DURATION, help="With --sent: the time without an answer.")
@json_option
def command(
    size: int,
    up: bool,
    background: bool,
    deadline: float | None,
    redundant: bool,
    sent: str | None,
    waited: float | None,
    as_json: bool,
) -> None:
    """Print the networks that a transfer should use now, one to a line.

    The first one is to begin with. Several lines mean to send the same data over all of them and
    to take the first answer. No line means not now. `cedos explain` shows the decision.
    """
    if (sent is None) != (waited is None):
        raise click.UsageError("--sent and --waited belong together: --sent wlan0 --waited 300ms")
    decision = ControlClient(directories().socket).choose(
        ChoiceRequest(
            size_bytes=size,
            direction=Direction.UP if up else Direction.DOWN,
            urgency=Urgency.BACKGROUND if background else Urgency.FOREGROUND,
            deadline_s=deadline,
            redundant=redundant,
            sent_over=sent,
            waited_s=waited or 0.0,
        )
    )
    if as_json:
        render.print_json(decision)
        return
    for network in decision.choice.networks:
        echo(network)
