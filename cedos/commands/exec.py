"""`cedos exec`: a program with hints about its transfers."""

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import click

from cedos.api.client import ControlClient
from cedos.commands.console.manual import DURATION, SIZE, SOCKET, Manual
from cedos.commands.console.render import echo
from cedos.config.directories import directories
from cedos.controller.hint import MAX_LIFETIME_S, HintRequest
from cedos.errors import CedosError, HostError
from cedos.kernel import bpf
from cedos.kernel.bpf import User
from cedos.model import Bulk, Direction, Urgency

T = TypeVar("T", Urgency, Bulk)


@click.command(
    cls=Manual,
    context_settings={"allow_interspersed_args": False},
    examples=[
        (
            "sudo cedos exec --label background --size 2GB -- curl -O https://example.org/image.iso",
            "A large download in the background.",
        ),
        (
            "sudo cedos exec --size 40kB --deadline 2 -- ./fetch-timetable",
            "A small one with a deadline of two seconds.",
        ),
    ],
    exits={
        0: "The command's own exit status, whatever it is; 128 and more: it was killed.",
        **dict.fromkeys((2, 3, 4, 6), ""),
        126: "The command cannot be started.",
        127: "The command was not found.",
    },
    files=[SOCKET],
)
@click.option(
    "-l",
    "--label",
    "labels",
    multiple=True,
    type=click.Choice([item.value for item in (*Urgency, *Bulk)]),
    help="Whether a person waits, and whether it is large; may be given twice. Default: foreground, and "
    "small unless the size says otherwise.",
)
@click.option("-s", "--size", type=SIZE, help="Bytes of each transfer: 3000, 20kB, 1.5GB.")
@click.option("-u", "--up", is_flag=True, help="The size is sent, not received.")
@click.option(
    "-d", "--deadline", type=DURATION, help="The time within which it is wanted: 4, 500ms, 2min."
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def command(
    labels: tuple[str, ...],
    size: int | None,
    up: bool,
    deadline: float | None,
    program: tuple[str, ...],
) -> None:
    """Run a program with hints about its transfers.

    The program needs no change. Its sockets and those of its children are marked, and the daemon
    sends marked connections over the network that suits the hints. TCP, MPTCP and UDP are marked.
    Loopback, local networks and VPNs stay as they are.

    Marking needs root, so use sudo. The program itself runs as the user who called sudo.
    """
    hint = HintRequest(
        program=Path(program[0]).name[:255],
        size_bytes=size,
        direction=Direction.UP if up else Direction.DOWN,
        urgency=_the_one(labels, Urgency),
        bulk=_the_one(labels, Bulk),
        deadline_s=deadline,
        lifetime_s=MAX_LIFETIME_S,  # it is taken back when the program ends
    )
    client = ControlClient(directories().socket)
    accepted = client.hint(hint)
    try:
        if accepted.mark is None:
            raise HostError("this daemon cannot steer by mark")
        with bpf.marked_cgroup(accepted.mark) as cgroup:
            status = bpf.run_inside(cgroup, program, _caller())
    finally:
        # The daemon, and its hints, may have ended meanwhile.
        with suppress(CedosError):
            client.unhint(accepted.number)
    if status in {126, 127}:
        what = "was not found" if status == 127 else "cannot be started"
        echo(f"cedos: {program[0]} {what}", err=True)
    click.get_current_context().exit(status)


def _the_one(labels: tuple[str, ...], kind: type[T]) -> T | None:
    found = {kind(label) for label in labels if label in list(kind)}
    if len(found) > 1:
        raise click.UsageError(f"--label: {' and '.join(sorted(found))} exclude each other")
    return found.pop() if found else None


def _caller() -> User | None:
    """Return the user who called sudo; None: the program runs as the current user."""
    uid = os.environ.get("SUDO_UID", "")
    if os.geteuid() != 0 or not uid.isdecimal() or uid == "0":
        return None
    try:
        entry = pwd.getpwuid(int(uid))
    except KeyError as error:
        raise HostError(f"SUDO_UID names user {uid}, whom this host does not know") from error
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(entry.pw_uid, entry.pw_gid, groups)
