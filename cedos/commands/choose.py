"""`cedos choose`: which network is best for a transfer now, for scripts and programs that can choose."""

import time

import click

from cedos.api.choosing import ChoiceRequest
from cedos.api.client import ControlClient
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.commands.console.option_types import DURATION, SIZE
from cedos.commands.explain import lines
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
        ("cedos choose --size 2GB --up --background --why", "With all that it rests on."),
    ],
    exits={0: "", **dict.fromkeys((2, 3, 6), "")},
    files=[SOCKET],
)
@click.option("--size", type=SIZE, required=True, help="How much will be carried.")
@click.option("--up", is_flag=True, help="An upload; else a download.")
@click.option("--background", is_flag=True, help="Nobody waits for it.")
@click.option("--deadline", type=DURATION, help="Wanted within this time.")
@click.option(
    "--redundant",
    is_flag=True,
    help="You can send the same over several networks: considered for what is short and waited for,"
    " with `redundant` in [decision].",
)
@click.option(
    "--sent",
    metavar="NETWORK",
    help="It was sent over this network already, and has no answer: wait, or send it again?",
)
@click.option("--waited", type=DURATION, help="With --sent: for how long there was no answer.")
@click.option("--why", is_flag=True, help="Explain the choice, too.")
@json_option
def command(
    size: int,
    up: bool,
    background: bool,
    deadline: float | None,
    redundant: bool,
    sent: str | None,
    waited: float | None,
    why: bool,
    as_json: bool,
) -> None:
    """Prints the names of the networks that a transfer should use now, one to a line.

    The first one is to begin with; more than one means the same over all of them, and the first
    answer counts. Nothing at all means not now. The choice is a decision like all others: `cedos
    explain` shows it.
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
        click.echo(network)
    if why:
        render.show(lines(decision, time.time()), err=True)
