"""Files on servers, on the command line: `server.example/music/song.flac`."""

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from cedos.commands.console.option_types import Parsed
from cedos.commands.console.servers import FILES_PORT, host_and_port
from cedos.session.known_hosts import shown


class Source(NamedTuple):
    """A file, or (ending with a slash, or empty) a folder; `port` None: the usual one.

    `host` empty: an object of the web, and `path` its URL.
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
        """What it is called here, where nothing else was said; empty: a URL that names nothing."""
        if self.is_url:
            return Path(unquote(urlsplit(self.path).path)).name
        return Path(self.path).name

    @property
    def server(self) -> str:
        return self.host if self.port is None else shown(self.host, self.port)

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


SOURCE: Final = Parsed("source", _source)
"""`server.example/music/song.flac`, `server.example:7008/music/`, `https://example.org/big.iso`."""
