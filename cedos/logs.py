"""Structured logs to standard error, for people, for programs and for the journal.

`configure` once at the start; then `get_logger()` anywhere. Libraries that use the standard logging
module come out in the same form.
"""

import io
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal, TextIO

from cedos.plain_text import plain, plain_json

# Without this, structlog imports rich for tracebacks that cedos never shows: 3 MB, 66 modules and up to
# a tenth of a second. Therefore only this module imports structlog.
_with_rich = "rich" in sys.modules
if not _with_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
    from structlog.stdlib import ProcessorFormatter
    from structlog.typing import EventDict, Processor
finally:
    if not _with_rich:
        del sys.modules["rich"]

get_logger = structlog.get_logger
BoundLogger = structlog.stdlib.BoundLogger

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]

# Loggers that report every request or packet. Above debug level only their warnings pass.
_CHATTY = ("aiohttp.access", "asyncio", "pyroute2")

# Strangers cause some of the lines. So many of one kind are written at once, then one a second.
_AT_ONCE = 500
_KINDS = 1000  # kinds of lines that are remembered
_LONGEST = 1000  # letters of a value
_MOST_PARTS = 100  # of a list


def ends_in_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the stream ends in systemd's journal, which stamps each line itself."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(
    level: Level = "info", form: Format = "console", stream: TextIO | None = None
) -> None:
    """Set up all logging of this process; a second call replaces the first.

    `form`: `console` for people, with the date unless it is a terminal; `json`: one object a line with
    `event`, `level`, `time` (UTC).
    """
    stream = stream or sys.stderr
    journal = ends_in_journal(stream)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
    ]
    if form == "json":
        shared.append(structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"))
    elif not journal:
        # A file is read days later.
        fmt = "%H:%M:%S" if stream.isatty() else "%Y-%m-%d %H:%M:%S"
        shared.append(structlog.processors.TimeStamper(fmt=fmt, utc=False))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(_LineLimit())
    handler.setFormatter(_Formatter(shared, _renderers(form, stream, journal), journal))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")


class _LineLimit(logging.Filter):
    """The limit on lines of one kind. The next one that is written says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        # By logger, level and event: the lines that may be written, as of when, and those left out.
        self._kinds: OrderedDict[tuple[str, int, str], tuple[float, float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line; those of debug level are all wanted."""
        if record.levelno <= logging.DEBUG:
            return True
        ours: Any = record.msg if isinstance(record.msg, dict) else None  # structlog's event
        event = record.msg if ours is None else ours.get("event")
        kind = record.name, record.levelno, str(event).partition("\n")[0][:_LONGEST]
        now_s = time.monotonic()
        room, at_s, left_out = self._kinds.pop(kind, (_AT_ONCE, now_s, 0))
        room = min(room + now_s - at_s, _AT_ONCE)
        if room < 1.0:
            self._kinds[kind] = room, now_s, left_out + 1
            return False
        self._kinds[kind] = room - 1.0, now_s, 0
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        if left_out and ours is not None:
            record.msg = ours | {"left_out": left_out}
        elif left_out:
            record.left_out = left_out
        return True


def _cut(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Cut long values: names of others may have thousands of letters."""
    return {
        key: value if key == "exc_info" else _lines(value) if key == "exception" else shorten(value)
        for key, value in event.items()
    }


def shorten(value: object) -> object:
    if isinstance(value, str | BaseException):
        text = str(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(value, Mapping):
        return {shorten(key): shorten(each) for key, each in islice(value.items(), _MOST_PARTS)}
    if isinstance(value, list | tuple | set | frozenset):
        return [shorten(each) for each in islice(value, _MOST_PARTS)]
    return value


def _lines(text: str) -> str:
    """Cut each line of a traceback."""
    return "\n".join(str(shorten(line)) for line in text.split("\n"))


def _renderers(form: Format, stream: TextIO, journal: bool) -> list[Processor]:
    if form == "json":
        return [
            structlog.processors.format_exc_info,
            _cut,
            structlog.processors.JSONRenderer(serializer=_serialize),
        ]
    return [
        _human,
        _cut,
        _plain,
        structlog.dev.ConsoleRenderer(
            colors=not journal and stream.isatty() and "NO_COLOR" not in os.environ,
            pad_event_to=0,
            exception_formatter=_traceback,
        ),
    ]


def _traceback(stream: TextIO, error: Any) -> None:
    """Write a traceback, whose messages may have names from elsewhere."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write("\n".join(map(plain, _lines(text.getvalue()).split("\n"))))


def _human(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Numbers as people read them; `_s` and `_bytes` at the end of a name become units."""
    shown: dict[str, object] = {}
    for key, value in event.items():
        name, _, unit = key.rpartition("_")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if unit in _UNITS and name:
                shown[name] = _UNITS[unit](value)
            else:
                shown[key] = value if isinstance(value, int) else f"{value:.3g}"
        elif isinstance(value, list | tuple | set | frozenset):
            shown[key] = ", ".join(map(str, value)) or "none"
        else:
            shown[key] = value
    return shown


def _duration(seconds: float) -> str:
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    for limit, unit, divisor in ((99.5, "s", 1), (5970, "min", 60), (172_800, "h", 3600)):
        if abs(seconds) < limit:
            rest = seconds / divisor
            return f"{rest:.1f} {unit}" if abs(rest) < 9.95 else f"{rest:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:.3g} GB"


_UNITS: Mapping[str, Callable[[float], str]] = {"s": _duration, "bytes": _size}


def _plain(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Replace control characters in names and messages of others, so that none moves the cursor."""
    return {
        plain(key): value if key == "exception" or not isinstance(value, str) else plain(value)
        for key, value in event.items()
    }


def _serialize(event: object, **_: Any) -> str:
    return plain_json(event)


class _Formatter(ProcessorFormatter):
    """Renders both our own and the libraries' records; for the journal with sd-daemon(3) levels."""

    def __init__(self, shared: list[Processor], renderers: list[Processor], journal: bool) -> None:
        super().__init__(
            processors=[ProcessorFormatter.remove_processors_meta, *renderers],
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        )
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._journal:
            return text
        prefix = f"<{_priority(record.levelno)}>"
        return prefix + text.replace("\n", f"\n{prefix}")


def _priority(level: int) -> int:
    """Syslog's priority of a level of the logging module."""
    for least, priority in ((50, 2), (40, 3), (30, 4), (20, 6)):
        if level >= least:
            return priority
    return 7
