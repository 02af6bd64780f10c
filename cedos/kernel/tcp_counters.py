"""What the kernel counts of TCP, of all programs of this network namespace together."""

from pathlib import Path

_SNMP = Path("/proc/self/net/snmp")


def active_opens() -> int | None:
    """Connections that were begun here since the namespace is there; None: it is not told."""
    try:
        text = _SNMP.read_text()
    except OSError:
        return None
    return parse_active_opens(text)


def parse_active_opens(text: str) -> int | None:
    """Of `/proc/net/snmp`: a line of names, then one of values."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) < 2 or "ActiveOpens" not in lines[0]:
        return None
    place = lines[0].index("ActiveOpens")
    if place >= len(lines[1]) or not lines[1][place].isdecimal():
        return None
    return int(lines[1][place])
