"""Two usable networks: without them there is nothing to choose."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from cedos.errors import HostError
from cedos.kernel.service_manager import Notifier
from cedos.model import Network
from cedos.monitor.networks.links import LinkMonitor

NEEDED: Final = 2

_log = structlog.get_logger(__name__)


def usable(networks: Iterable[Network]) -> list[str]:
    return [network.name for network in networks if network.up]


def refusal(links: LinkMonitor) -> HostError:
    """For who does not want to wait."""
    return HostError(
        f"cedos chooses between networks and needs two usable ones. {_seen(links)}."
        " Connect a second one (a phone tethered by USB, say), or see `cedos doctor`"
    )


async def arrives(links: LinkMonitor, notifier: Notifier, note: Path) -> None:
    """Returns once there are two; says what it waits for whenever that changes, in the file `note`, too.

    It consumes `links.events()` meanwhile. HostError: the host's networks can be followed no more.
    """
    feeding = asyncio.create_task(_feed(notifier), name="watchdog")
    try:
        told = _tell(links, notifier, note, "")
        # A service that waits has started: systemd must not take it for one that hangs.
        notifier.ready()
        async for _ in links.events():
            if len(usable(links.networks())) >= NEEDED:
                return
            told = _tell(links, notifier, note, told)
    finally:
        _forget(note)
        feeding.cancel()
        with suppress(asyncio.CancelledError):
            await feeding
    raise HostError("rtnetlink does not tell the host's networks any more")


def _tell(links: LinkMonitor, notifier: Notifier, note: Path, before: str) -> str:
    count = len(usable(links.networks()))
    what = "a second usable network" if count else "two usable networks"
    text = f"waiting for {what}. {_seen(links)}"
    if text != before:
        _log.info(text)
        notifier.status(text)
        with suppress(OSError):  # (it is in the log)
            _write(note, text)
    return text


def _forget(note: Path) -> None:
    with suppress(OSError):
        note.unlink()


def _write(note: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(note, flags, 0o644), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)  # for all who may ask, whatever the unit's umask
        file.write(text)


def _seen(links: LinkMonitor) -> str:
    networks, metrics = links.networks(), links.metrics()
    others = [
        f"{network.name} ({_lacks(network, metrics)})" for network in networks if not network.up
    ]
    text = f"Usable now: {', '.join(usable(networks)) or 'none'}"
    return f"{text}; not usable: {', '.join(others)}" if others else text


def _lacks(network: Network, metrics: Mapping[str, int]) -> str:
    lacking = [] if network.addresses else ["address"]
    lacking += [] if network.name in metrics else ["default route"]
    return f"no {' and no '.join(lacking)}" if lacking else "no carrier"


async def _feed(notifier: Notifier) -> None:
    while notifier.watchdog_interval_s is not None:
        notifier.alive()
        await asyncio.sleep(notifier.watchdog_interval_s)
