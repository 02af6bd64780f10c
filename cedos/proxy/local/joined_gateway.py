"""The gateways that this user has joined: one line to paste for each, and the file that keeps them."""

import json
import os
import pwd
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

import msgspec

from cedos.config import toml_file
from cedos.errors import ConfigError
from cedos.kernel import own_file
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair

_ADDRESS: Final = r"(?:\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]|[^:@/\[\],]+):[0-9]{1,5}"
_LINE: Final = re.compile(rf"cedos://(?P<secret>[^@/:]+)@(?P<address>{_ADDRESS})/(?P<key>[^/]+)")
_MOST_GATEWAYS: Final = 16
_HEAD: Final = (
    "# The gateways that `cedos join` was given, in the order in which they are tried.\n"
    "# Each secret lets its holder in.\n"
)

_NONE: Final = "no gateway is joined; `cedos join LINE` joins the one that printed the line"


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    host: str
    port: int
    key: str
    secret: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    gateway: list[_Entry] = []


@dataclass(frozen=True, slots=True)
class JoinedGateway:
    """The address of a gateway, its public key, and the key by which it knows this client."""

    host: str
    port: int
    server_key: bytes
    client: KeyPair

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def identity(self) -> tuple[str, int, bytes, bytes]:
        """A key that is equal for the same gateway joined by the same line."""
        return self.host, self.port, self.server_key, self.client.public

    def __str__(self) -> str:
        return _show_address(self.host, self.port)


def own_path() -> Path:
    return keys.folder() / "gateway.toml"


def path() -> Path:
    """Return this user's file; if root by sudo has none, that of the user who called sudo."""
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


def invitation(address: tuple[str, int], server_key: bytes, secret: bytes) -> str:
    """Return the line that a person pastes; the gateway lets its holder in."""
    return f"cedos://{keys.to_text(secret)}@{_show_address(*address)}/{keys.to_text(server_key)}"


def _show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(line: str) -> JoinedGateway:
    """Parse a line of `invitation`. ValueError, which never repeats the secret."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError("it is not a line cedos://...@HOST:PORT/... as `cedos gateway` prints it")
    return _make_joined(match["address"], match["key"], match["secret"])


def _make_joined(address: str, key: str, secret: str) -> JoinedGateway:
    host, port = _address(address)
    found = []
    for what, text in (("the gateway's key", key), ("the secret", secret)):
        try:
            found.append(keys.from_text(text))
        except ValueError:
            raise ValueError(f"{what} is not whole: a part of the line may be missing") from None
    return JoinedGateway(host, port, found[0], KeyPair(found[1]))


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


def read(file: Path) -> list[JoinedGateway]:
    """Return the gateways in a file, at least one, in the order in which they are tried.

    ConfigError: there is none, other users may read the file, or it is no such file.
    """
    try:
        content, found = own_file.read_followed(file)
        text = content.decode()
    except FileNotFoundError:
        raise ConfigError(_NONE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    # Credentials of a service manager are readable for root's group, too.
    others = stat.S_IRWXO if found.st_gid == 0 else stat.S_IRWXG | stat.S_IRWXO
    if found.st_mode & others:
        raise ConfigError(f"{file}: other users can read the secret in it; run `chmod 600 {file}`")
    fields = toml_file.parse(text, _File, name=str(file))
    if not fields.gateway:
        raise ConfigError(_NONE)
    try:
        return [
            _make_joined(_show_address(e.host, e.port), e.key, e.secret) for e in fields.gateway
        ]
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None


def add(known: Sequence[JoinedGateway], joined: JoinedGateway) -> list[JoinedGateway]:
    """Return the gateways and one more at the end; it replaces an entry that has the same server key.

    ConfigError: there are too many.
    """
    same = [each.server_key == joined.server_key for each in known]
    if any(same):
        return [joined if is_same else each for is_same, each in zip(same, known, strict=True)]
    if len(known) >= _MOST_GATEWAYS:
        raise ConfigError(
            f"{len(known)} gateways are joined, which is the limit; `cedos join --leave HOST` removes one"
        )
    return [*known, joined]


def write(file: Path, gateways: Sequence[JoinedGateway]) -> None:
    """Write the file of gateways, for this user alone. Raises: ConfigError, it cannot be written."""
    text = _HEAD
    for each in gateways:
        fields = {
            "host": each.host,
            "port": each.port,
            "key": keys.to_text(each.server_key),
            "secret": keys.to_text(each.client.private),
        }
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
        text += "\n[[gateway]]\n" + "".join(lines)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own_file.write(file, text.encode())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
