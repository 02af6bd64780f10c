"""The servers that a user knows: names, addresses and keys in one file, edited by hand or by programs.

As ssh's `known_hosts` and `config` in one:

    [hosts.music]
    host = "server.example"
    port = 7008
    key = "..."
"""

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from cedos.config import toml_file
from cedos.errors import ConfigError
from cedos.kernel import own_file
from cedos.session import keys

_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HEAD: Final = (
    "# Servers of sessions, their addresses and public keys. Programs add tables at the end;\n"
    "# it may be edited by hand: a table's name stands for its server (cedos-get NAME/file).\n"
)
_ASK: Final = "ask its owner (cedos-serve prints it)"


class KnownServer(NamedTuple):
    """The address of a server, and its public key."""

    host: str
    port: int
    key: bytes


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    host: str
    key: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None

    def __post_init__(self) -> None:
        if not self.host or any(letter.isspace() for letter in self.host):
            raise ValueError('host must be a name or an address such as "server.example"')
        try:
            keys.from_text(self.key)
        except ValueError as error:
            raise ValueError(f"key must be a public key: {error}") from None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    hosts: dict[str, _Entry] = {}


class KnownHosts:
    """The file, read anew by each call.

    Raises (each call):
        ConfigError: it cannot be read, others may write it, or something in it is wrong; with file, line
            and what would be right.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or keys.folder() / "hosts.toml"

    def aliases(self) -> dict[str, KnownServer]:
        """Return all entries by their names; port 0 where an entry stands for every port."""
        return {
            name: KnownServer(each.host, each.port or 0, keys.from_text(each.key))
            for name, each in self._entries().items()
        }

    def find(self, name: str, port: int | None, default_port: int | None = None) -> KnownServer:
        """Return the server of an entry's name, or of a host; `port` None: none was given.

        ConfigError: no key is known for it, or no port.
        """
        wanted = port or default_port
        known = self.aliases()
        entry = known.get(name)
        if entry is not None:
            found = port or entry.port or default_port
            if found is None:
                raise ConfigError(
                    f"{self.path} has no port for {name}, and none was given; `port = ...` there, "
                    "or a port behind the name would be right"
                )
            if entry.port not in (0, found):
                raise ConfigError(
                    f"{self.path} has {name} at port {entry.port}, not {found}; omit the port, "
                    "or give the key of the server at that port"
                )
            return entry._replace(port=found)
        at = [each for each in known.values() if each.host == name and wanted is not None]
        for fits in (wanted, 0):  # an entry for this very port goes first
            found_keys = {each.key for each in at if each.port == fits}
            if len(found_keys) > 1:
                raise ConfigError(
                    f"{self.path} has several keys for {name} port {wanted}; one would be right"
                )
            if found_keys:
                return KnownServer(name, wanted or 0, found_keys.pop())
        where = name if wanted is None else show_server(name, wanted)
        raise ConfigError(
            f"no key is known for {where} in {self.path}; {_ASK} and give it once with --key"
        )

    def check(self, server: KnownServer) -> bool:
        """Check that no other key is known for a server. ConfigError: another one is."""
        known = False
        for name, entry in self.aliases().items():
            if entry.host == server.host and entry.port == server.port:
                if entry.key != server.key:
                    there = show_server(server.host, server.port)
                    raise ConfigError(
                        f"{self.path} has another key for {there}. If its "
                        f'owner has changed it, change `key` under [hosts."{name}"]; otherwise another'
                        " host answers there"
                    )
                known = True
        return known

    def save(self, server: KnownServer, alias: str | None = None) -> None:
        """Add a server at the end of the file, under a name of its own or its address.

        ConfigError: the name is none or stands for another server, another key is known, or the file
        cannot be written.
        """
        if alias is not None:
            self.check_alias(alias, server)
        known = self.check(server)
        if alias in self.aliases() or (known and alias is None):
            return
        name = alias or show_server(server.host, server.port)
        table = (
            f"\n[hosts.{name if alias and '.' not in alias else json.dumps(name)}]\n"
            f"host = {json.dumps(server.host)}\nport = {server.port}\n"
            f"key = {json.dumps(keys.to_text(server.key))}\n"
        )
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(number, "wb", buffering=0) as file:
                keys.lock_for_change(number, self.path)
                if name in self.aliases():  # another program was quicker
                    return
                size = os.fstat(number).st_size
                content = ((_HEAD if size == 0 else "") + table).encode()
                try:
                    if file.write(content) < len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(number)
                except OSError:
                    os.ftruncate(number, size)  # no program could read half a table
                    raise
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror or error}") from error

    def check_alias(self, alias: str, server: KnownServer) -> None:
        """Raise ConfigError if this name cannot stand for that server."""
        if not _ALIAS.fullmatch(alias):
            raise ConfigError(
                f'"{alias}" cannot be the name of a server: use letters and digits, and'
                " after the first also . _ -"
            )
        if self.aliases().get(alias, server) != server:
            raise ConfigError(
                f"{self.path}: {alias} is the name of another server; use another name"
            )

    def _entries(self) -> dict[str, _Entry]:
        try:
            content, status = own_file.read_followed(self.path)
            text = content.decode()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: {error}") from error
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"{self.path}: other users can write it, and so choose your servers; "
                f"run `chmod go-w {self.path}`, and own it"
            )
        return toml_file.parse(text, _File, name=str(self.path)).hosts


def show_server(host: str, port: int) -> str:
    """Return a server as people write it: `server.example:7008`, `[2001:db8::1]:7008`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
