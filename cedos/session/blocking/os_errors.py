"""What a session says, as the errors of a socket: for programs that expect OSError and its numbers."""

import errno
import os
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

from cedos.errors import CedosError, ConfigError, HostError, SessionRefusedError
from cedos.session.blocking import background

T = TypeVar("T")


def as_os_error(error: CedosError) -> OSError:
    """The OSError that fits, with the same words.

    ECONNREFUSED for a server's refusal and for another key than the one given; EINVAL for an argument
    that cannot be used; the number of the socket's own error where one is the cause (ETIMEDOUT where
    nobody answered in time, EADDRINUSE, a `socket.gaierror` for a name); ECONNRESET for any other end.
    """
    text, cause = str(error), error.__cause__
    if isinstance(error, SessionRefusedError):
        return OSError(errno.ECONNREFUSED, text)
    if isinstance(error, ConfigError):
        return OSError(errno.EINVAL, text)
    if isinstance(cause, socket.gaierror) and cause.errno is not None:
        return socket.gaierror(cause.errno, text)
    if isinstance(cause, OSError) and cause.errno:
        return OSError(cause.errno, text)
    return OSError(errno.EIO if isinstance(error, HostError) else errno.ECONNRESET, text)


def not_supported(why: str) -> OSError:
    """EOPNOTSUPP, with the reason."""
    return OSError(errno.EOPNOTSUPP, f"{why} ({os.strerror(errno.EOPNOTSUPP)})")


def run(wanted: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs it in the sessions' loop and waits for its end, with a socket's errors.

    Raises:
        OSError: see `as_os_error`; TimeoutError: not in time.
    """
    try:
        return background.run(wanted, timeout_s)
    except CedosError as error:
        raise as_os_error(error) from error
