"""The gateway that this user has joined: one line to paste, and the file that keeps it."""

import json
import os
import pwd
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

import msgspec

from cedos.config import toml_file
from cedos.errors import ConfigError
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair

_ADDRESS: Final = r"(?:\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]|[^:@/\[\],]+):[0-9]{1,5}"
_LINE: Final = re.compile(
    rf"cedos://(?P<secret>[^@/:]+)@(?P<addresses>{_ADDRESS}(?:,{_ADDRESS})*)/(?P<key>[^/]+)"
)
_MOST_ADDRESSES: Final = 16
_HEAD: Final = "# The gateway that `cedos join` was told of. The secret lets its holder in.\n"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    host: str
    port: int
    key: str
    secret: str
    others: list[str] = []


@dataclass(frozen=True, slots=True)
class JoinedGateway:
    """Where it is, its public key, and the key by which it knows this client.

    `others`: addresses of its other nodes, machines with the same key.
    """

    host: str
    port: int
    server_key: bytes
    client: KeyPair
    others: tuple[tuple[str, int], ...] = ()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        return ((self.host, self.port), *self.others)

    def __str__(self) -> str:
        return ", ".join(_shown(*each) for each in self.addresses)


def own_path() -> Path:
    return keys.folder() / "gateway.toml"


def path() -> Path:
    """Where it is read from: this user's file; where root by sudo has none, that of who called sudo."""
    own = own_path()
    if os.geteuid() or own.exists() or "CEDOS_USER_DIR" in os.environ:
        return own
    if not (name := os.environ.get("SUDO_USER")):
        return own
    try:
        theirs = Path(pwd.getpwnam(name).pw_dir) / ".config" / "cedos" / "gateway.toml"
    except KeyError:
        return own
    return theirs if theirs.exists() else own


def invitation(addresses: Sequence[tuple[str, int]], server_key: bytes, secret: bytes) -> str:
    """The line that a person pastes; who has it is let in."""
    shown = ",".join(_shown(*each) for each in addresses)
    return f"cedos://{keys.to_text(secret)}@{shown}/{keys.to_text(server_key)}"


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(line: str) -> JoinedGateway:
    """What `invitation` made. Raises: ValueError, which never repeats the secret."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError("it is not a line cedos://...@HOST:PORT/... as `cedos gateway` prints it")
    return _joined(match["addresses"].split(","), match["key"], match["secret"])


def _joined(addresses: list[str], key: str, secret: str) -> JoinedGateway:
    if not 0 < len(addresses) <= _MOST_ADDRESSES:
        raise ValueError(f"it has {len(addresses)} addresses; 1 to {_MOST_ADDRESSES} are possible")
    (host, port), *others = map(_address, addresses)
    found = []
    for what, text in (("the gateway's key", key), ("the secret", secret)):
        try:
            found.append(keys.from_text(text))
        except ValueError:
            raise ValueError(f"{what} is not whole: a part of the line may be missing") from None
    return JoinedGateway(host, port, found[0], KeyPair(found[1]), tuple(others))


def _address(text: str) -> tuple[str, int]:
    if re.fullmatch(_ADDRESS, text) is None:
        raise ValueError("an address in it is not HOST:PORT")
    host, _, digits = text.rpartition(":")
    host, port = host.strip("[]"), int(digits)
    if not 0 < port < 65_536:
        raise ValueError("its port is not 1 to 65535")
    if ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            raise ValueError("its host is neither a name nor an address") from None
    return host, port


def read(file: Path) -> JoinedGateway:
    """The gateway in a file.

    Raises:
        ConfigError: there is none, others may read it, or it is no such file.
    """
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            text = opened.read(65_536).decode()
    except FileNotFoundError:
        raise ConfigError(
            "no gateway is joined; `cedos join LINE` joins the one that printed the line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    # (What a service manager hands over is root's group's, too.)
    others = stat.S_IRWXO if found.st_gid == 0 else stat.S_IRWXG | stat.S_IRWXO
    if found.st_mode & others:
        raise ConfigError(f"{file}: others may read the secret in it; `chmod 600 {file}` mends it")
    fields = toml_file.parse(text, _File, name=str(file))
    try:
        first = _shown(fields.host, fields.port)
        return _joined([first, *fields.others], fields.key, fields.secret)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None


def write(file: Path, joined: JoinedGateway) -> None:
    """Keeps it for this user alone. Raises: ConfigError, it cannot be written."""
    fields: dict[str, str | int | list[str]] = {
        "host": joined.host,
        "port": joined.port,
        "key": keys.to_text(joined.server_key),
        "secret": keys.to_text(joined.client.private),
    }
    if joined.others:
        fields["others"] = [_shown(*each) for each in joined.others]
    text = _HEAD + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
