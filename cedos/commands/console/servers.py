"""Servers and their files on the command line, with the servers' keys."""

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import click

from cedos.commands.console.manual import Parsed
from cedos.errors import ConfigError
from cedos.session import keys
from cedos.session.known_hosts import KnownHosts, KnownServer, show_server

FILES_PORT: Final = 7008  # of cedos-serve
OWN_KEY: Final = (
    "~/.config/cedos/session.key",
    "This user's own key, made at the first use (XDG_CONFIG_HOME moves it).",
)
KNOWN_HOSTS: Final = (
    "~/.config/cedos/hosts.toml",
    "The known servers: a table [hosts.NAME] with host, port and key for each, where NAME stands for "
    "the server. You may edit it.",
)


# A public key: 43 characters, as --print-key prints them.
KEY_TEXT: Final = Parsed("key", keys.from_text)


def listen_address(text: str, example: int = FILES_PORT) -> tuple[str, int]:
    """Parse an address (empty: all) and a port. ValueError: the message has `example` as port."""
    found = host_and_port(text if ":" in text else f":{text}")
    if found is not None and found[0]:
        try:
            ip_address(found[0])
        except ValueError:
            found = None
    if found is None or found[1] is None:
        right = f"{example}, 192.0.2.1:{example} or [2001:db8::1]:{example}"
        raise ValueError(f"{text!r} is not {right}")
    return found[0], found[1]


def listen_address_at(example: int) -> Parsed[tuple[str, int]]:
    """Return the type of listening addresses: `7008` (all addresses), `192.0.2.1:7008`, `[::1]:7008`."""
    return Parsed("[address:]port", lambda text: listen_address(text, example))


LISTEN_ADDRESS: Final = listen_address_at(FILES_PORT)


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Split a text; the port is None if it is missing; None: the text is not valid."""
    host, port_text = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest:
            port_text = rest[1:] if rest[0] == ":" else "?"
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
        port_text = port_text or "?"
    if any(c.isspace() for c in host):
        return None
    if not port_text:
        return host, None
    good = port_text.isascii() and port_text.isdecimal() and 0 < int(port_text) < 65536
    return (host, int(port_text)) if good else None


def find_server(name: str, port: int | None, given: bytes | None) -> KnownServer:
    """Return the server with the key that is given now or was remembered.

    ConfigError: no key is known for it, or another one.
    """
    hosts = KnownHosts()
    if given is None or name in hosts.aliases():
        server = hosts.find(name, port, FILES_PORT)
    else:
        server = KnownServer(name, port or FILES_PORT, given)
        hosts.check(server)
    if given is not None and server.key != given:
        raise ConfigError(f"{hosts.path} has another key for {name}; see [hosts.{name}] there")
    return server


def remember(server: KnownServer, alias: str | None, given: bytes | None) -> None:
    """Save a server whose key was given, after it has answered."""
    if given is not None:
        KnownHosts().save(server, alias)


def check_save(alias: str | None, given: bytes | None, server: KnownServer) -> None:
    """Check that `--save` is possible. Errors: UsageError, ConfigError."""
    if alias is not None:
        if given is None:
            raise click.UsageError("--save goes with --key")
        KnownHosts().check_alias(alias, server)


def interfaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the interfaces of `--network`. BadParameter: this host does not have one of them."""
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
    help="The file of your own key; made if it does not exist.",
)  # fmt: skip
print_key_option = click.option(
    "--print-key", is_flag=True, help="Print your own public key and end."
)
key_option = click.option(
    "-k", "--key", "given_key", type=KEY_TEXT,
    help="The server's key, which is remembered. Ask the server's owner in a way that you trust.",
)  # fmt: skip
save_option = click.option(
    "--save", "alias", metavar="NAME",
    help="With --key: remember the server as NAME, which then stands for its host and port.",
)  # fmt: skip


class Source(NamedTuple):
    """A file, or a folder (empty, or with a slash at the end); `port` None: the usual one.

    `host` empty: `path` is a URL.
    """

    host: str
    port: int | None
    path: str

    @property
    def is_folder(self) -> bool:
        return not self.is_url and (not self.path or self.path.endswith("/"))

    @property
    def is_url(self) -> bool:
        return not self.host

    @property
    def file_name(self) -> str:
        """Return the default name of the local file; empty: the URL has none."""
        if self.is_url:
            return Path(unquote(urlsplit(self.path).path).replace("\0", "")).name
        return Path(self.path).name

    @property
    def server(self) -> str:
        return self.host if self.port is None else show_server(self.host, self.port)

    @property
    def name(self) -> str:
        return self.path if self.is_url else f"{self.server}/{self.path}"


def _source(text: str) -> Source:
    if text.lower().startswith(("http://", "https://")):
        return Source("", None, text)
    server, slash, path = text.removeprefix("cedos://").partition("/")
    if not slash:
        raise ValueError(
            f"{text!r} is not a file such as server.example/song.flac, nor a folder such as "
            "server.example/music/"
        )
    found = host_and_port(server)
    if found is None or not found[0]:
        raise ValueError(f"{server!r} is not a host such as server.example:{FILES_PORT}")
    return Source(*found, path)


# `server.example/music/song.flac`, `server.example:7008/music/`, `https://example.org/big.iso`.
SOURCE: Final = Parsed("source", _source)
