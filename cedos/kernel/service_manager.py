"""Messages of a service to systemd (sd_notify(3)), and the signals that end a service or a command."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

# Of Ctrl-C, a service manager, a closed terminal, and Ctrl-\.
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def call_at_end(end: Callable[[], object]) -> None:
    """Have the running loop call `end` at each ending signal, but at no SIGHUP if nohup started us."""
    for number in ENDING_SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, end)


class Notifier:
    """Speaks to the service manager where there is one; otherwise every call does nothing.

    A lost message is no reason to fail: the manager's own time-outs deal with that.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_interval_s = _interval(environment) if address else None
        """The interval for `feed_watchdog`: half of WatchdogSec; None: no watchdog."""

    @property
    def enabled(self) -> bool:
        """True if a service manager listens."""
        return bool(self._address)

    def ready(self, status: str = "") -> bool:
        """Report that start-up is over; `systemctl status` shows `status`."""
        return self._send("READY=1", status)

    def status(self, status: str) -> bool:
        """Send the service's status in one line."""
        return self._send("", status)

    def reloading(self, status: str = "") -> bool:
        """Report a start with another configuration; `ready` follows."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}", status)

    def feed_watchdog(self) -> bool:
        """Feed the watchdog."""
        return self._send("WATCHDOG=1")

    def stopping(self, status: str = "") -> bool:
        """Report that shut-down has begun."""
        return self._send("STOPPING=1", status)

    def _send(self, state: str, status: str = "") -> bool:
        if not self._address:
            return False
        lines = [state] if state else []
        if status:
            lines.append("STATUS=" + " ".join(status.split()))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                # Never wait for a manager whose queue is full: this is called in the event loop.
                to.setblocking(False)
                to.connect(self._address)
                to.send("\n".join(lines).encode())
        except OSError:
            return False
        return True


def _interval(environment: Mapping[str, str]) -> float | None:
    """Return half of the watchdog's period, if it is meant for this process (sd_watchdog_enabled(3))."""
    try:
        period_us = int(environment["WATCHDOG_USEC"])
        meant_for = int(environment.get("WATCHDOG_PID", os.getpid()))
    except (KeyError, ValueError):
        return None
    return period_us / 2e6 if period_us > 0 and meant_for == os.getpid() else None
