"""Files that are written whole or not at all, and put aside where they cannot be used."""

import os
from pathlib import Path

from cedos.kernel import own_file


def write(path: Path, content: bytes) -> None:
    """Replaces the file, for its owner alone. Errors: OSError, it is as it was."""
    new = path.with_suffix(".new")
    # Whatever a torn write, or somebody else, left under that name goes; it is never written to.
    new.unlink(missing_ok=True)
    file = own_file.create(new)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def aside(path: Path) -> Path:
    """A name beside the file that is not taken: `NAME.aside-1` and so on."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    return free
