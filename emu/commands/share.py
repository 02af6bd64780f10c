"""`cedos-emu share`: neighbours who share their networks, and a shell on the one who has none."""

import os

import click

from cedos.commands.console.option_types import BIT_RATE
from cedos.commands.console.render import echo
from emu.commands.shell import run_in_foreground
from emu.console import examples


@click.command(
    "share",
    epilog=examples(
        "cedos-emu share --helpers 3", "cedos-emu share --helpers 2 --rate 8M --own -- bash"
    ),
    context_settings={"ignore_unknown_options": True},
)
@click.option("--helpers", default=3, show_default=True, type=click.IntRange(1, 16))
@click.option(
    "--rate", default="4M", show_default=True, type=BIT_RATE, help="Of each helper's network."
)
@click.option("--rtt", default=40.0, show_default=True, type=click.FloatRange(min=0), metavar="MS")
@click.option(
    "--own", is_flag=True, help="The requestor has a phone of its own, as fast as theirs."
)
@click.option(
    "--limit",
    default="500MB",
    show_default=True,
    help="What each helper gives, as in `share help`.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@click.pass_context
def command(
    ctx: click.Context,
    helpers: int,
    rate: float,
    rtt: float,
    own: bool,
    limit: str,
    arguments: tuple[str, ...],
) -> None:
    """Run COMMAND (or a shell) on a host without a network, whose neighbours help.

    All hosts have joined the gateway and are registered there, and the helpers help. In the shell,
    `cedos share request` finds them, and programs use them through `cedos forward`. The web server
    is http://198.51.100.1/bytes/N, which answers N bytes.
    """
    from cedos.model import NetworkKind  # noqa: PLC0415
    from emu.places.traces import Trace  # noqa: PLC0415
    from emu.testbed.access import Access  # noqa: PLC0415
    from emu.testbed.neighbours import Neighbourhood  # noqa: PLC0415
    from emu.testbed.programs.servers import Servers  # noqa: PLC0415
    from emu.testbed.programs.sharing import SharingHosts  # noqa: PLC0415

    trace = Trace.constant(rate)
    access = Access(NetworkKind.CELLULAR, up=trace, down=trace, rtt_s=rtt / 1000)
    there = Neighbourhood([access] * helpers, own=access if own else None)
    with there, Servers(there), SharingHosts(there) as hosts:
        for number in range(helpers):
            price = f"{0.5 + 0.1 * number:.2f}EUR/GB"
            helper = hosts.help(
                number, "--price", price, "--limit", limit, rate=f"{rate / 1e3:.0f}kbit/s"
            )
            echo(f"helper-{number}: {rate / 1e6:g} Mbit/s for {price}, process {helper.pid}")
        echo(
            "You are root on the requestor, which is registered, as the helpers are: without sudo,"
        )
        echo("  cedos share request --rate 8Mbit --budget 2EUR &")
        echo("  cedos forward &")
        echo("  curl -o /dev/null -x socks5h://127.0.0.1:1080 http://198.51.100.1/bytes/20000000")
        echo("and cedos share; cedos share receipts. `kill PROCESS` of a helper: it leaves.")
        wanted = arguments or (os.environ.get("SHELL", "/bin/sh"),)
        line = there.requestor.command(*wanted)
        ctx.exit(run_in_foreground(line, wanted[0], os.environ | hosts.variables("requestor")))
