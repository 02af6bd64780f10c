"""`cedos-emu share`: neighbours who share their networks, and a shell on the one who has none."""

import os
import sys
from pathlib import Path

import click

from cedos.commands.console.manual import BIT_RATE
from cedos.commands.console.render import echo
from emu.commands.shell import run_in_foreground
from emu.console import examples

# A video at the paper's rate, a minute long.
_VIDEO_BPS, _VIDEO_S, _BUFFER_S = 1_271_000, 60.0, 6.0


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
    is http://198.51.100.1/bytes/N, which answers N bytes; it has a page with a video, too.
    """
    from cedos.model import NetworkKind  # noqa: PLC0415
    from emu.places.traces import Trace  # noqa: PLC0415
    from emu.testbed.access import Access  # noqa: PLC0415
    from emu.testbed.neighbours import Neighbourhood  # noqa: PLC0415
    from emu.testbed.programs.gateway import SharingHosts  # noqa: PLC0415
    from emu.testbed.programs.servers import Servers  # noqa: PLC0415
    from emu.workloads.web import video  # noqa: PLC0415

    media = video.make((_VIDEO_BPS,), duration_s=_VIDEO_S, segment_s=2.0)
    planned = video.PlannedVideo(0, "video", 0.0, media, media.segments, 0, _BUFFER_S, tls=False)
    sites = video.nginx_servers([media], video.PLAYER, tls=False)
    trace = Trace.constant(rate)
    access = Access(NetworkKind.CELLULAR, up=trace, down=trace, rtt_s=rtt / 1000)
    there = Neighbourhood([access] * helpers, own=access if own else None)
    with there, Servers(there, sites=sites), SharingHosts(there) as hosts:
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
        echo(
            f"  chromium --no-sandbox --proxy-server=socks5://127.0.0.1:1080 '{video.url(planned)}'"
        )
        echo("and cedos share; cedos share receipts. A helper leaves by `kill PROCESS`, and")
        echo(f"walks away by `ip -n {there.air.name} link set helper-0 down`.")
        wanted = arguments or (os.environ.get("SHELL", "/bin/sh"),)
        line = there.requestor.command(*wanted)
        # `cedos` is found, wherever its folder is.
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        variables = os.environ | hosts.variables("requestor") | {"PATH": path}
        ctx.exit(run_in_foreground(line, wanted[0], variables))
