"""A watch for calls that may block an event loop, by the code of ours that makes them."""

import asyncio
import fcntl
import os
import sys
from pathlib import Path

from emu import ROOT

# What waits for a disk, another process, a resolver or a clock; or grows with a folder.
_BLOCKING = {
    "time.sleep", "subprocess.Popen", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "sqlite3.connect", "os.listdir", "os.scandir", "os.fsync",
    "os.fdatasync", "os.sync", "shutil.rmtree", "shutil.copyfile",
}  # fmt: skip
_OURS = str(ROOT / "cedos") + "/"
_TESTS = str(ROOT / "tests") + "/"

# Who chooses the path, and how much there is: none of it is for others to choose.
ALLOWED = {
    "apps/files/objects/object_store.py:_clients": "at the start: folders of the gateway's own",
    "apps/files/objects/object_store.py:_read": "at the start: what the last process kept, within limits",
    "apps/files/partial.py:finish": "cedos-get and cedos-pod alone: the user's own disk",
    "apps/files/podcast_library.py:_parse_apart": "cedos-pod alone: one process for each feed",
    "kernel/own_file.py:database": "at the start; later in a thread",
    "kernel/own_file.py:write": "the state's own folder, in which we name the files",
    "kernel/interface_kind.py:_dhclient_files": "root's folder of leases",
    "storage/budget_file.py:kept_aside": "the state's own folder",
    "daemon/state_file.py:problems": "the same",
    "session/io/idle_sessions.py:_name": "at the start and the end: 76 bytes of the host's own file",
    "session/keys.py:_write_new": "at the start: the host's own key",
    "session/keys.py:lock_for_change": "commands alone, which serve no client meanwhile",
    "session/known_hosts.py:save": "commands alone, which serve no client meanwhile",
    "host/steer/journal.py:append": "in the privileged part's process, which has no event loop",
    "host/steer/journal.py:remove": "the same",
    "host/steer/journal.py:_open": "the same",
}

found: dict[str, str] = {}


def _note(event):
    frame = sys._getframe(2)
    # Of the caller's code, not of the library through which it calls.
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith((_TESTS, "<frozen importlib")) or file.endswith("asyncio/events.py"):
            return
        if file.startswith(_OURS):
            found[f"{file.removeprefix(_OURS)}:{frame.f_code.co_name}"] = event
            return
        frame = frame.f_back


def _on_event(event, arguments):
    waits = event == "fcntl.flock" and not arguments[1] & (fcntl.LOCK_NB | fcntl.LOCK_UN)
    if (waits or event in _BLOCKING) and asyncio._get_running_loop() is not None:
        _note(event)


def _watched(name):
    call = getattr(os, name)

    def called(*given):
        if asyncio._get_running_loop() is not None:
            _note(f"os.{name}")
        return call(*given)

    return called


def begin():
    """Watch from now on, until this process ends: audit hooks cannot be taken back."""
    sys.addaudithook(_on_event)
    for name in ("fsync", "fdatasync"):  # they raise no audit event
        setattr(os, name, _watched(name))


def unknown() -> dict[str, str]:
    """Return what blocked an event loop and may not, by its place; each is returned once."""
    new = {place: event for place, event in found.items() if place not in ALLOWED}
    found.clear()
    return new


def places_that_are_gone() -> list[str]:
    """Return allowed places whose function is not there any more."""
    gone = []
    for place in ALLOWED:
        file, _, name = place.partition(":")
        path = Path(_OURS, file)
        if not path.exists() or f"def {name}(" not in path.read_text():
            gone.append(place)
    return gone
