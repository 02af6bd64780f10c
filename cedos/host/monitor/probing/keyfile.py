"""The key that a probe server and its clients share: a file with 64 hexadecimal digits."""

import os
import secrets
import stat
from pathlib import Path

from cedos.errors import ConfigError
from cedos.host.monitor.probing.wire import KEY_BYTES
from cedos.kernel import own_file


def read_key(path: Path) -> bytes:
    """Return the key. ConfigError: no such file, no key in it, or others than its owner may read it."""
    try:
        content, found = own_file.read_followed(path)
        text = content.decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(
            f"{path}: {why}; a key is made with `cedos probe-server --new-key {path}`"
        ) from error
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: other users can read this key; run `chmod 600 {path}`")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: {2 * KEY_BYTES} hexadecimal digits would be right")
    return key


def write_new_key(path: Path) -> None:
    """Make a key that only its owner may read; ConfigError where it is there or cannot be written."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; a key in use is not replaced") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
