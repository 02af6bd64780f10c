"""Every error that cedos raises on purpose: one flat module, so that callers map them once.

A message names what was wrong and what would be right. Commands print the message alone and exit
with `exit_code`; nothing here is ever shown as a traceback.
"""


class CedosError(Exception):
    """Base of all errors that a user can do something about."""

    exit_code = 1


class ConfigError(CedosError):
    """A configuration, scenario or hint that cannot be used; names file, line and what would be right."""

    exit_code = 2


class PrivilegeError(CedosError):
    """A capability or privilege is missing; names it and how to get it."""

    exit_code = 3


class HostError(CedosError):
    """The host lacks something (a kernel feature, a program, a second network for who insists)."""

    exit_code = 4


class AlreadyRunningError(CedosError):
    """Another daemon owns this host's networking."""

    exit_code = 5


class DaemonUnreachableError(CedosError):
    """No daemon answers on the control socket."""

    exit_code = 6


class NoDaemonError(DaemonUnreachableError):
    """The error of a host on which no daemon runs."""


class NotFoundError(CedosError):
    """There is no such flow, decision, hint or place in what was asked; names it."""


class SteeringError(CedosError):
    """The kernel refused a change; what was done so far has been undone or journalled."""


class ModelError(CedosError):
    """A predictor file that is missing, broken, or trained for something else."""


class HistoryError(CedosError):
    """The history cannot be read or written (a full disk, a foreign file)."""


class TraceError(CedosError):
    """A trace that cannot be replayed; names file and line."""


class PlaceError(CedosError):
    """A collection of places that cannot be used."""


class DataSetError(CedosError):
    """A transfer data set that cannot be read; names file, row and column."""


class EmulationError(CedosError):
    """The testbed could not be built or died; everything it made has been removed."""


class SessionError(CedosError):
    """A session cannot be set up or cannot go on; says how much the peer had acknowledged."""


class ProtocolError(SessionError):
    """The peer sent what the session's protocol forbids; names the frame and the bound it broke."""


class SessionRefusedError(SessionError):
    """The server will not have this session, now or later: another key, another version, not allowed."""


class SharingError(CedosError):
    """Bandwidth cannot be shared with neighbours, or what it costs cannot be recorded; says why."""


class TransferError(CedosError):
    """A file cannot be served or fetched; says what is kept and how to go on."""


class DiskError(TransferError):
    """A file cannot be written here. `full`: no other one can, either."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class TransferBusyError(TransferError):
    """Another program, or another session, has this file in hand now."""


class WebError(TransferError):
    """A web server did not give everything this time; what came is kept for the next attempt."""


class FeedError(TransferError):
    """A feed that cannot be used."""


class SessionAsleepError(SessionError):
    """The session has been idle without a network and sleeps in a file; `accept` gives it again."""
