"""`cedos-emu shell`: a command inside the emulated laptop, `mm-link` for two phones."""

import os
from dataclasses import replace
from pathlib import Path

import click

from emu.console.help import examples

_MS = click.FloatRange(min=0)


@click.command(
    "shell",
    epilog=examples(
        "cedos-emu shell --places traces --place static-s13 -- curl -o /dev/null http://server/bytes/10000000",
        "cedos-emu shell --places traces --place static-s13 --start 30 -- curl --interface lte0 http://server/",
    ),
    context_settings={"ignore_unknown_options": True},
)
@click.option("--place", "name", required=True, metavar="PLACE", help="The place to replay.")
@click.option(
    "--places",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The collection it is in.  [default: the real places beside the repository, else ours]",
)
@click.option("--start", "start_s", type=float, default=0.0, help="Seconds into the place.")
@click.option("--wifi-rtt", type=_MS, metavar="MS", help="Wi-Fi's base RTT.  [default: its own]")
@click.option("--cellular-rtt", type=_MS, metavar="MS", help="The same for cellular.")
@click.option("--wifi-queue", type=click.IntRange(1), metavar="PACKETS", help="Wi-Fi's queues.")
@click.option("--cellular-queue", type=click.IntRange(1), metavar="PACKETS")
@click.option("--wifi-loss", type=click.FloatRange(0, 1, max_open=True), metavar="SHARE")
@click.option("--cellular-loss", type=click.FloatRange(0, 1, max_open=True), metavar="SHARE")
@click.option(
    "--source-rules",
    is_flag=True,
    help="Add policy rules: what is bound to an interface or its address leaves through it.",
)
@click.option("--nice", type=click.IntRange(-20, 19), default=-5, help="The emulation's priority.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    directory: Path | None,
    start_s: float,
    wifi_rtt: float | None,
    cellular_rtt: float | None,
    wifi_queue: int | None,
    cellular_queue: int | None,
    wifi_loss: float | None,
    cellular_loss: float | None,
    source_rules: bool,
    nice: int,
    arguments: tuple[str, ...],
) -> None:
    """Runs COMMAND (or a shell) in a laptop with two tethered phones, and exits as it does.

    wlan0 and lte0 replay the place's two traces from --start on, again and again. The server is
    198.51.100.1 and every name: http://any.name/bytes/N answers N bytes, PUT /upload/X takes any
    body; plain TCP and MPTCP. What cedos keeps (CEDOS_STATE_DIR, CEDOS_RUNTIME_DIR) is the laptop's
    own and gone at the end, unless you set them.
    """
    from cedos.model import NetworkKind  # noqa: PLC0415
    from emu.places.places import default_directory, load  # noqa: PLC0415
    from emu.testbed.access import Access  # noqa: PLC0415
    from emu.testbed.phones import SERVER, Laptop  # noqa: PLC0415
    from emu.testbed.programs.servers import Servers  # noqa: PLC0415
    from emu.testbed.shell import run_in_client  # noqa: PLC0415

    place = load(default_directory(directory))[name]
    given = {
        "wifi": (wifi_rtt, wifi_queue, wifi_loss),
        "cellular": (cellular_rtt, cellular_queue, cellular_loss),
    }
    accesses = []
    for kind, (rtt_ms, queue, loss) in given.items():
        network = place.networks[kind]
        rtt_s = network.rtt_s if rtt_ms is None else rtt_ms / 1000
        access = Access(NetworkKind(kind), up=network.up, down=network.down, rtt_s=rtt_s)
        access = replace(access, queue_packets=queue, loss=loss or 0.0)
        accesses.append(access.rotated(start_s))
        click.echo(
            f"{access.interface}: {network.name} from {start_s:g} s, RTT {rtt_s * 1000:.0f} ms",
            err=True,
        )
    wanted = arguments or (os.environ.get("SHELL", "/bin/sh"),)
    with Laptop(*accesses, source_rules=source_rules, nice=nice) as laptop, Servers(laptop):
        click.echo(f"server: {SERVER}", err=True)
        ctx.exit(run_in_client(laptop, wanted))
