"""Where the Redis is that nodes share."""

import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

from cedos.errors import ConfigError

_VARIABLE: Final = "CEDOS_REDIS_PASSWORD"
_PORT: Final = 6379
_RIGHT: Final = (
    "unix:///run/redis/redis-server.sock, redis://HOST:6379/0 or rediss://HOST:6379/0 (TLS)"
    " would be right"
)


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """`path` of a unix socket, or `host` and `port`.

    `tls`: the connection is secured; `ca_file`: an authority in it has signed the certificate, not one of
    the system's.
    """

    path: str
    host: str
    port: int
    database: int
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `unix:///path?db=0`, `redis://:password@host:port/0` or `rediss://`, which is TLS.

        ValueError, without the password.
        """
        try:
            parts = urlsplit(text)
            port, host = parts.port or _PORT, parts.hostname or ""
            password = None if parts.password is None else unquote(parts.password)
            if parts.scheme == "unix":
                asked = parse_qs(parts.query, strict_parsing=bool(parts.query))
                number = asked.pop("db", ["0"])[0]
                good = parts.path.startswith("/") and not parts.netloc and not asked
                path = unquote(parts.path)
            else:
                number = parts.path.strip("/") or "0"
                good = parts.scheme in {"redis", "rediss"} and bool(host) and not parts.query
                path = ""
            database = int(number)
        except ValueError:
            good = False
        if not good or not 0 <= database < 1 << 16 or parts.username or parts.fragment:
            raise ValueError(_RIGHT)
        return cls(path, host, port, database, password, parts.scheme == "rediss")

    def context(self) -> ssl.SSLContext | None:
        """What verifies certificate and name; None without TLS. ConfigError: the file is no good."""
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError:
            why = "there is no certificate in it; PEM would be right"
        except OSError as error:
            why = error.strerror or str(error)
        raise ConfigError(f"{self.ca_file}: {why}")

    def __str__(self) -> str:
        return self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def read_password(file: Path | None) -> str | None:
    """Of a file, or of the environment; None: there is none.

    ConfigError: others may read the file, or it cannot be read.
    """
    if file is None:
        return os.environ.get(_VARIABLE) or None
    try:
        with file.open() as opened:
            mode = os.fstat(opened.fileno()).st_mode
            password = opened.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if stat.S_ISREG(mode) and mode & 0o007:
        raise ConfigError(f"{file}: everybody may read or write it; chmod o= {file}")
    if not password:
        raise ConfigError(f"{file}: there is no password in it")
    return password
