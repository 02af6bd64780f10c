"""`cedos up`: the daemon in the foreground."""

import asyncio
import gc
import importlib
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click

from cedos import logs
from cedos.api.lock import only_daemon
from cedos.commands.console.manual import CONFIG, SOCKET, STATE, Manual
from cedos.config import Config, load
from cedos.config.directories import directories
from cedos.daemon.life import Life
from cedos.kernel import own_file, privileges, process_limits


@click.command(
    cls=Manual,
    examples=[
        ("sudo cedos up", "Runs with the host's configuration until Ctrl-C."),
        ("sudo cedos up --dry-run", "Prints what it would change, and changes nothing."),
        ("sudo cedos up --config ./cedos.toml", "Runs with a configuration of your own."),
        ("sudo cedos up --record monday.log", "Records what happens, for `cedos-emu replay`."),
        (
            "sudo useradd --system --user-group cedos;"
            " cedos example unit | sudo tee /etc/systemd/system/cedos.service",
            "Installs it as a service.",
        ),
    ],
    exits={
        0: "Ended by Ctrl-C, SIGTERM or a closed terminal; everything is undone.",
        **dict.fromkeys((1, 2, 3), ""),
        4: "The host lacks something that is needed.",
        5: "",
    },
    files=[CONFIG, STATE, SOCKET],
)
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The configuration.  [default: /etc/cedos/cedos.toml, or the defaults if it is missing]",
)
@click.option(
    "-n", "--dry-run", is_flag=True, help="Decide and print the changes, but change nothing."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Record all events from the start (later: `cedos record`); names of hosts are replaced.",
)
def command(config_file: Path | None, dry_run: bool, record: Path | None) -> None:
    """Decide for every transfer which network to use, and steer it there.

    The daemon watches this host's networks and flows and predicts how long a transfer would take
    on each network and on both. New connections get the better one. Living connections move if
    they are MPTCP. Plain TCP connections stay. The daemon logs to standard error.

    Every change (rules, routes, MPTCP path management) is written to a journal first. The daemon
    undoes its changes when it ends: on Ctrl-C, on SIGTERM, or when its terminal is closed. The
    next daemon, or `cedos restore`, undoes the changes of a killed one. SIGHUP means a closed
    terminal; only the daemon of a service (`systemctl reload cedos`) reads its configuration again.

    With one network, budgets, rules and deadlines still apply.

    The daemon needs CAP_NET_ADMIN and CAP_NET_RAW. `cedos doctor` lists what else is useful. One
    daemon runs per network namespace.
    """
    config = load(config_file)
    logs.configure(config.log.level, config.log.format)
    if not dry_run:
        privileges.require("cedos up")
    where = directories()
    # The process that may change the network namespace holds its name.
    with only_daemon(where.pid_file, steers=False), ExitStack() as stack:
        # Import the large daemon only after the checks above. Its objects live for good, so
        # garbage collection during the import would waste a tenth of a second.
        gc.disable()
        process_limits.one_arena()
        privileged = None
        with suppress(FileNotFoundError):
            own_file.take(where.state)
        if not dry_run:
            # Fork first, so that both processes share as little memory as possible.
            process = importlib.import_module("cedos.host.privileged.process")
            privileged = stack.enter_context(process.privileged_process(where.state))
        daemon = importlib.import_module("cedos.daemon.service")
        gc.freeze()
        # Flows make many short-lived objects and few cycles. At a hundred flows a second, rarer
        # collections save a twentieth of the daemon's time.
        gc.set_threshold(10_000, 20, 50)
        gc.enable()

        complaints: list[str] = []

        def run(config: Config, file: Path | None) -> Coroutine[Any, Any, None]:
            running: Coroutine[Any, Any, None] = daemon.run(
                config,
                dry_run,
                file,
                complaints=complaints,
                privileged=privileged,
                record=free_name(record) if record is not None else None,
                goes_on=lambda: life.goes_on,
            )
            return running

        life = Life(run, config, config_file, complaints)
        asyncio.run(life.run())


def free_name(path: Path) -> Path:
    """Return the path, or `PATH.2` and so on if there is such a file: a reload begins another log."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found
