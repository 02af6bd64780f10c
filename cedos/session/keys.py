"""Key files: a host's own key, and lists of clients that are let in (servers: `known_hosts`).

There is no trust on first use: a set-up needs the server's key beforehand, from the person who runs
the server (43 characters; `cedos-serve` prints it). All of this is files; nothing here is on a data path.
"""

import base64
import binascii
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from cedos.config import toml_file
from cedos.config.directories import user_folder
from cedos.errors import ConfigError
from cedos.kernel import own_file
from cedos.session.protocol.crypto import KEY_BYTES, KeyPair

# Another program's lock of a file is waited for so long, and looked at so often.
_LOCK_S: Final = 5.0
_LOOK_S: Final = 0.05
_TEXT_LENGTH: Final = 43  # of 32 bytes in base64 for URLs, without padding
_HEAD: Final = (
    "# Hosts and their public keys. Lines are added by programs and may be edited by hand.\n"
)


class _Names(msgspec.Struct, forbid_unknown_fields=True):
    hosts: dict[str, str] = {}


def folder() -> Path:
    """Return the folder of a user's keys."""
    return user_folder("config")


def own_key_path() -> Path:
    return folder() / "session.key"


def to_text(key: bytes) -> str:
    """Return a key as people pass it on: 43 characters."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def from_text(text: str) -> bytes:
    """Return the key in a text of `to_text`. ValueError: not 43 characters of that alphabet."""
    try:
        if len(text) != _TEXT_LENGTH or not text.isascii() or "+" in text or "/" in text:
            raise ValueError
        key = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"a key has {_TEXT_LENGTH} letters, digits, - or _") from None
    if to_text(key) != text:
        raise ValueError("the last letter of the key is wrong")
    return key


def read_own(path: Path) -> KeyPair:
    """Return a host's own key.

    ConfigError: there is no such file, other users may read it, or it holds no key.
    """
    try:
        content, found = own_file.read_followed(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: other users can read this key; run `chmod 600 {path}`")
    try:
        private = from_text(content.decode("ascii").strip())
    except ValueError as error:  # UnicodeDecodeError is one
        raise ConfigError(f"{path}: not a private key of a session: {error}") from error
    return KeyPair(private)


def own_key(path: Path) -> KeyPair:
    """Return a host's own key, made at the first use: a file of mode 0600.

    ConfigError: as `read_own`, or it cannot be written.
    """
    if not path.exists():
        text = to_text(secrets.token_bytes(KEY_BYTES)) + "\n"
        _write_new(path, text.encode())
    return read_own(path)


def _write_new(path: Path, content: bytes) -> None:
    """Write a whole file for its owner alone; a file made by another program meanwhile stays."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink()
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def read_names(path: Path) -> dict[str, bytes]:
    """Return names and their keys from a TOML file with one table, `[hosts]`; none without a file.

    ConfigError: it is no such file; it names each wrong key.
    """
    try:
        text = own_file.read_followed(path)[0].decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    names: dict[str, bytes] = {}
    wrong: list[str] = []
    for name, key in toml_file.parse(text, _Names, name=str(path)).hosts.items():
        try:
            names[name] = from_text(key)
        except ValueError as error:
            wrong.append(f'{path}: hosts."{name}": {error}')
    if wrong:
        raise ConfigError("\n".join(wrong))
    return names


@contextmanager
def changed_alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file while it is read and rewritten, so that no other program's change is lost.

    ConfigError: another program holds it for too long, or there can be none.
    """
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as held:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(own_file.create(lock))
            file = own_file.open_own(lock)
            held.callback(os.close, file)
            lock_for_change(file, path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
        yield


def lock_for_change(file: int, path: Path) -> None:
    """Lock an open file. ConfigError: another program, perhaps of another user, holds its lock."""
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until_s:
                raise ConfigError(f"{path}: another program changes it; try again later") from error
        time.sleep(_LOOK_S)


def write_names(path: Path, names: Mapping[str, bytes]) -> None:
    """Write a file for `read_names`; its owner and readers stay. ConfigError: it cannot be written."""
    lines = [f"{json.dumps(name)} = {json.dumps(to_text(key))}\n" for name, key in names.items()]
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with os.fdopen(own_file.create(draft), "w") as file:
                _open_to_readers(file.fileno(), path, draft.with_suffix(".mode"))
                file.write(f"{_HEAD}[hosts]\n{''.join(lines)}")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _open_to_readers(file: int, path: Path, beside: Path) -> None:
    """Give a new file the owner and readers of the one that it replaces, else of new ones. OSError.

    Root changes the list of a service that has a user of its own, whatever root's umask is.
    """
    with suppress(FileNotFoundError):
        before = path.lstat()
        if stat.S_ISREG(before.st_mode):
            os.fchmod(file, before.st_mode & 0o644)
            with suppress(PermissionError):
                os.fchown(file, before.st_uid, before.st_gid)
            return
    own_file.open_to_others(file, beside)


def hardware_aes(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the processor has instructions for AES; else ChaCha20 is faster."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return False
    lines = (line.partition(":") for line in text.splitlines())
    flags = next((v for k, _, v in lines if k.strip() in {"flags", "Features"}), "")
    return "aes" in flags.split()
