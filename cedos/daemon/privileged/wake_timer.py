"""A timer that wakes a suspended host by its real-time clock: timerfd, CLOCK_REALTIME_ALARM."""

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

_CLOCK_REALTIME_ALARM: Final = 8
_TFD_TIMER_ABSTIME: Final = 1
_RTCS: Final = Path("/sys/class/rtc")

_libc = ctypes.CDLL(None, use_errno=True)


class WakeTimer:
    """An alarm clock. Needs CAP_WAKE_ALARM, and a real-time clock that may wake the host (`rtcs`).

    The kernel accepts a timer also on a host without such a clock, and it never fires. So ask first.
    """

    def __init__(self, rtcs: Path = _RTCS) -> None:
        self._rtcs = rtcs
        self._file: int | None = None

    def set(self, at_unix_s: float) -> None:
        """Instead of the one before; 0: none.

        Raises:
            OSError: EPERM, the capability is missing; ENODEV, no clock of this host can wake it.
        """
        if at_unix_s and not self._wakes():
            raise OSError(errno.ENODEV, "no clock of this host can wake it")
        if self._file is None:
            if not at_unix_s:
                return
            self._file = _done(
                _libc.timerfd_create(_CLOCK_REALTIME_ALARM, os.O_CLOEXEC | os.O_NONBLOCK)
            )
        whole_s, part_s = divmod(at_unix_s, 1.0)
        setting = struct.pack("=4q", 0, 0, int(whole_s), int(part_s * 1e9))
        _done(_libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, setting, None))

    def fileno(self) -> int:
        """Readable once the alarm has gone off; -1: none was ever set."""
        return -1 if self._file is None else self._file

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _wakes(self) -> bool:
        for each in self._rtcs.glob("rtc*/device/power/wakeup"):
            try:
                if each.read_text().strip() == "enabled":
                    return True
            except OSError:
                continue
        return False


def _done(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
