"""`cedos restore`: undo the changes of a killed daemon."""

import importlib
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedos.api.lock import hold_namespace, running_pid
from cedos.commands.console.manual import STATE, Manual, json_option
from cedos.commands.console.render import echo, print_json
from cedos.config.directories import directories
from cedos.errors import AlreadyRunningError, SteeringError
from cedos.kernel import privileges

if TYPE_CHECKING:
    from cedos.host.steer.undo import Undone


@click.command(
    cls=Manual,
    examples=[
        ("sudo cedos restore", "Undoes everything that the journal lists."),
        ("sudo cedos restore --dry-run", "Only lists them."),
    ],
    exits={
        0: "Nothing of the daemon and of `cedos share` is left in this host's networking.",
        1: "Something could not be undone; the message says what, and the journal keeps it.",
        **dict.fromkeys((2, 3, 5), ""),
    },
    files=[STATE],
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be undone, and undo nothing.")
@json_option
def command(dry_run: bool, as_json: bool) -> None:
    """Undo all changes of a killed daemon to this host's networking.

    A daemon that ends by itself undoes its changes, and a new one first undoes those of an old
    one. This command is for the time between. Living connections survive: MPTCP connections are
    handed back to the kernel's own path manager. If there is nothing to undo, nothing is done.

    What a killed `cedos forward` redirected stays within this host, so that nothing of it leaves in
    clear: a route for the prefix fd63:6564:6f73:7564::/64, which the next one removes when it ends.
    """
    where = directories()
    if not dry_run:
        if (pid := running_pid(where.pid_file)) is not None:
            raise AlreadyRunningError(
                f"the daemon (process {pid}) is running, and undoes everything when it ends:"
                " stop it instead"
            )
        privileges.require("cedos restore")
    steering = importlib.import_module("cedos.host.steer.steering")
    # (A daemon with other folders than these lives, too.)
    with nullcontext() if dry_run else hold_namespace():
        undone = steering.restore(where.state, dry_run)
        for each in _sharing(where.state, dry_run):
            undone = replace(undone, done=undone.done + each.done, left=undone.left + each.left)
    if as_json:
        print_json({"dry_run": dry_run, "undone": undone.done, "left": undone.left})
    else:
        for step in undone.done:
            echo(f"{'would undo' if dry_run else 'undone'}: {step}")
        if not undone.done and not undone.left:
            echo("nothing to undo")
    if undone.left:
        raise SteeringError(
            f"could not be undone: {'; '.join(undone.left)}. {where.state / 'journal.jsonl'} is kept:"
            " undo that by hand, and remove it"
        )


def _sharing(state: Path, dry_run: bool) -> "Iterator[Undone]":
    """Undo what a dead `cedos share` left; a living one undoes its own when it ends."""
    sharing = importlib.import_module("cedos.host.steer.sharing.undo")
    for role in sharing.FOLDERS:
        with suppress(AlreadyRunningError):
            yield sharing.restore_sharing(state, role, dry_run=dry_run)
