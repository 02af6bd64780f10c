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
from cedos.kernel import own_file, privileges
from cedos.kernel.process import memory


@click.command(
    cls=Manual,
    examples=[
        ("sudo cedos up", "Runs with the configuration of this host until Ctrl-C."),
        ("sudo cedos up --dry-run", "Prints what it would change, and changes nothing."),
        ("sudo cedos up --no-wait", "Ends at once where there are not two usable networks."),
        ("sudo cedos up --config ./cedos.toml", "Runs with a configuration of your own."),
        (
            "sudo useradd --system --user-group cedos;"
            " cedos example unit | sudo tee /etc/systemd/system/cedos.service",
            "Installs it as a service.",
        ),
    ],
    exits={
        0: "Ended by Ctrl-C, SIGTERM or a closed terminal; everything is undone.",
        **dict.fromkeys((1, 2, 3), ""),
        4: "The host lacks something that is needed; with --no-wait also a second network.",
        5: "",
    },
    files=[CONFIG, STATE, SOCKET],
)
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The configuration; without: /etc/cedos/cedos.toml, or the defaults where there is none.",
)
@click.option(
    "-n", "--dry-run", is_flag=True, help="Decide, print what would be changed, change nothing."
)
@click.option(
    "--wait/--no-wait",
    default=True,
    help="With fewer than two usable networks: run (the default, more may come), or end with status 4.",
)
def command(config_file: Path | None, dry_run: bool, wait: bool) -> None:
    """Decides for every transfer which network to use, and steers it there.

    The daemon watches this host's networks and flows, predicts how long a transfer would take on
    each network and on both, and gives new connections the better one; living connections move if
    they are MPTCP. Plain TCP connections are never broken. It logs to standard error.

    Everything that it changes (rules, routes, MPTCP path management) is written to a journal first
    and undone when it ends: on Ctrl-C, on SIGTERM, or when its terminal is closed. What a killed
    daemon left is undone by the next one, or by `cedos restore`. As a service it reads its
    configuration again on SIGHUP (`systemctl reload cedos`).

    Where fewer than two networks are usable there is nothing to choose, until another one comes;
    budgets, rules and transfers with a deadline are kept to meanwhile.

    It needs CAP_NET_ADMIN and CAP_NET_RAW. `cedos doctor` says what else is of use. One daemon runs
    per network namespace.
    """
    config = load(config_file)
    logs.configure(config.log.level, config.log.format)
    if not dry_run:
        privileges.require("cedos up")
    where = directories()
    # The name of the network namespace is held by whoever may change it.
    with only_daemon(where.pid_file, steers=False), ExitStack() as stack:
        # The daemon is large; a refusal above should not wait for it. What is imported stays for
        # life: looking through it for garbage meanwhile would take a tenth of a second.
        gc.disable()
        memory.one_arena()
        privileged = None
        if not dry_run:
            with suppress(FileNotFoundError):
                own_file.take(where.state)
            # Before all else is there: what one of them then writes to, both have for themselves.
            process = importlib.import_module("cedos.daemon.privileged.process")
            privileged = stack.enter_context(process.privileged_process(where.state))
        daemon = importlib.import_module("cedos.daemon.service")
        gc.freeze()
        # A hundred flows a second make much that lives for a moment and little garbage in cycles:
        # looking for it less often saves a twentieth of the daemon's time.
        gc.set_threshold(10_000, 20, 50)
        gc.enable()

        complaints: list[str] = []

        def run(config: Config, file: Path | None, wait: bool) -> Coroutine[Any, Any, None]:
            running: Coroutine[Any, Any, None] = daemon.run(
                config, dry_run, file, complaints=complaints, wait=wait, privileged=privileged
            )
            return running

        asyncio.run(Life(run, config, config_file, complaints).run(wait))
