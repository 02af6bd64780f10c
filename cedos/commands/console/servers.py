"""Servers on the command line: where they are, and which key they have."""

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import click

from cedos.session import keys

FILES_PORT: Final = 7008  # of cedos-serve
OWN_KEY: Final = (
    "~/.config/cedos/session.key",
    "This user's own key, made at the first use (XDG_CONFIG_HOME moves it).",
)
KNOWN_HOSTS: Final = (
    "~/.config/cedos/known-hosts.toml",
    'The keys of servers, under [hosts]: "server.example:7008" = "KEY".',
)


class KeyText(click.ParamType[bytes]):
    """A public key: the 43 characters that its owner's program prints."""

    name = "key"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            return keys.from_text(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Server(click.ParamType[tuple[str, int]]):
    """A host with a port: `server.example`, `192.0.2.1:7008`, `[2001:db8::1]:7008`."""

    name = "host[:port]"

    def __init__(self, port: int) -> None:
        self._port = port

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        found = _host_and_port(value, self._port)
        if found is None or not found[0]:
            self.fail(f"{value!r} is not a host such as server.example:{self._port}", param, ctx)
        return found


class ListenAddressType(click.ParamType[tuple[str, int]]):
    """Where to listen: `7008` (at all addresses), `192.0.2.1:7008`, `[2001:db8::1]:7008`."""

    name = "[address:]port"

    def __init__(self, example: int = FILES_PORT) -> None:
        self._example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Address (empty: all) and port."""
        if isinstance(value, tuple):
            return value
        found = _host_and_port(value if ":" in value else f":{value}", 0)
        if found is not None and found[0]:
            try:
                ip_address(found[0])
            except ValueError:
                found = None
        if found is None:
            port = self._example
            right = f"{port}, 192.0.2.1:{port} or [2001:db8::1]:{port}"
            self.fail(f"{value!r} is not {right}", param, ctx)
        return found


def _host_and_port(text: str, port: int) -> tuple[str, int] | None:
    """The parts of a text; the port given where there is none in it; None: not such a text."""
    host, port_text = text, str(port)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest:
            port_text = rest[1:] if rest[0] == ":" else ""
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    good = port_text.isascii() and port_text.isdecimal() and 0 < int(port_text) < 65536
    return (host, int(port_text)) if good and not any(c.isspace() for c in host) else None


def shown(host: str, port: int) -> str:
    """A server as it is written in the file of known hosts."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server_key(host: str, port: int, given: bytes | None) -> bytes:
    """The key of a server: the one given, or the one pinned before.

    Errors: ConfigError, none is known, or another one.
    """
    path, name = keys.known_hosts_path(), shown(host, port)
    if given is None:
        return keys.pinned(path, name)
    keys.check(path, name, given)
    return given


def pin(host: str, port: int, key: bytes) -> None:
    keys.pin(keys.known_hosts_path(), shown(host, port), key)


def interfaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """The interfaces that `--network` names.

    Errors: BadParameter, this host has none of that name: a slip, and nothing worth waiting for.
    """
    there = [name for _, name in socket.if_nameindex()]
    for name in names:
        if name not in there:
            raise click.BadParameter(
                f"there is no interface {name!r}; there are {', '.join(there)}",
                param_hint="'--network'",
            )
    return names


own_key_option = click.option(
    "--own-key", type=click.Path(path_type=Path, dir_okay=False),
    help="A key file of one's own; made if it does not exist.",
)  # fmt: skip
print_key_option = click.option(
    "--print-key", is_flag=True, help="Print one's own public key and end."
)
