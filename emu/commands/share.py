"""`cedos-emu share`: neighbours who share their networks, and a shell on the one who has none."""

import os
import sys
from pathlib import Path

import click

from cedos.commands.console.render import echo
from emu.commands.shell import run_in_foreground
from emu.console import examples

# A video at the paper's rate, a minute long.
_VIDEO_BPS, _VIDEO_S, _BUFFER_S = 1_271_000, 60.0, 6.0
# Each helper's network, and what it gives.
_RATE_BPS, _RTT_S, _LIMIT = 4e6, 0.040, "500MB"


@click.command(
    "share",
    epilog=examples("cedos-emu share --helpers 3", "cedos-emu share --helpers 2 -- bash"),
    context_settings={"ignore_unknown_options": True},
)
@click.option("--helpers", default=3, show_default=True, type=click.IntRange(1, 16))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@click.pass_context
def command(
    ctx: click.Context,
    helpers: int,
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
    trace = Trace.constant(_RATE_BPS)
    access = Access(NetworkKind.CELLULAR, up=trace, down=trace, rtt_s=_RTT_S)
    there = Neighbourhood([access] * helpers)
    with there, Servers(there, sites=sites), SharingHosts(there) as hosts:
        for number in range(helpers):
            price = f"{0.5 + 0.1 * number:.2f}EUR/GB"
            helper = hosts.help(
                number, "--price", price, "--limit", _LIMIT, rate=f"{_RATE_BPS / 1e3:.0f}kbit/s"
            )
            echo(f"helper-{number}: {_RATE_BPS / 1e6:g} Mbit/s for {price}, process {helper.pid}")
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
