"""Files that are written whole or not at all, and put aside where they cannot be used."""

from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Replaces the file. Errors: OSError, it is as it was."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def aside(path: Path) -> Path:
    """A name beside the file that is not taken: `NAME.aside-1` and so on."""
    number = 1
    while (free := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    return free
