"""The clients that a gateway lets in: names and public keys in a file, read again when it changes."""

import re
import secrets
from contextlib import suppress
from pathlib import Path

import structlog

from cedos.errors import ConfigError, NotFoundError
from cedos.session import keys
from cedos.session.protocol.crypto import KEY_BYTES, KeyPair

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
_log = structlog.get_logger(__name__)


def default_path() -> Path:
    return keys.folder() / "gateway-clients.toml"


class InvitedClients:
    """The invited clients in a file. ConfigError: the file cannot be used."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._address_file = file.with_name("gateway-address")
        self._stamp: tuple[int, int, int] | None = None
        self._names: dict[bytes, str] = {}
        self._read()

    @property
    def names(self) -> list[str]:
        self._read()
        return sorted(self._names.values())

    def name_of(self, key: bytes) -> str | None:
        """Return the name of the client with this public key; None: it is not invited, or no more."""
        try:
            self._read()
        except ConfigError as error:
            _log.warning("who is invited cannot be read; it stays as it was", why=str(error))
        return self._names.get(key)

    @property
    def address(self) -> tuple[str, int] | None:
        """The address in the last line that a client was given to join; None: there was none."""
        try:
            host, _, port = self._address_file.read_text().strip().rpartition(" ")
            return (host, int(port)) if host else None
        except (OSError, ValueError):
            return None

    @address.setter
    def address(self, address: tuple[str, int]) -> None:
        if address != self.address:
            with suppress(OSError):  # the next client's line may then have another address
                self._address_file.write_text("{} {}\n".format(*address))

    def invite(self, name: str) -> bytes:
        """Add a client, and return its secret, which is kept by that client alone.

        Raises: ConfigError, the name is taken or no name, or the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f'"{name}" cannot be the name of a client: use 1 to 31 letters and digits, and'
                " after the first also . _ -"
            )
        if name in self.names:
            raise ConfigError(
                f"{name} is invited already; `cedos gateway --revoke {name}` makes room for a new line"
            )
        secret = secrets.token_bytes(KEY_BYTES)
        keys.pin(self._file, name, KeyPair(secret).public)
        return secret

    def revoke(self, name: str) -> None:
        """Remove a client. NotFoundError: there is none of that name; ConfigError."""
        known = keys.read_names(self._file)
        if known.pop(name, None) is None:
            raise NotFoundError(
                f"no client called {name} is invited; there are {', '.join(sorted(known)) or 'none'}"
            )
        keys.write_names(self._file, known)

    def _read(self) -> None:
        try:
            stat = self._file.stat()
            stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            raise ConfigError(f"{self._file}: {error.strerror or error}") from error
        if stamp != self._stamp or stamp is None:
            self._names = {key: name for name, key in keys.read_names(self._file).items()}
            self._stamp = stamp
