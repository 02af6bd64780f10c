"""Players that others wrote (hls.js, dash.js), as their makers published them with npm.

They are no part of this repository: fetched once, when they are asked for, and kept beside the videos.
"""

import base64
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cedos.errors import EmulationError
from emu.workloads.web.video import cache_directory

_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Library:
    """A file of an npm package of an exact version; `sha512` is the whole package's, as npm says it.

    `page` plays with it.
    """

    package: str
    sha512: str
    member: str
    page: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


LIBRARIES: Final = {
    "hls.js": Library(
        "hls.js@1.7.4",
        "3GlxGdPvT2YHvQYOt+yOzT/DEior/qJVNIylHA77kgeoBTdQQqi70GwefNEUmHQeNGyjC8U62+bruqW/Tpm+tg==",
        "package/dist/hls.min.js",
        "by_hls.html",
    ),
    "dash.js": Library(
        "dashjs@4.7.4",
        "+hldo25QPP3H/NOwqUrvt4uKdMse60/Gsz9AUAnoYfhga8qHWq4nWiojUosOiigbigkDTCAn9ORcvUaKCvmfCA==",
        "package/dist/dash.all.min.js",
        "by_dash.html",
    ),
}


def fetched(library: Library) -> Path:
    """Return its file in the cache; EmulationError: npm or its registry are missing, or it differs."""
    kept = cache_directory() / "npm" / library.package / library.file_name
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(prefix="cedos-npm-") as making:
        folder = Path(making)
        content = unpacked(library, _packed(library, folder).read_bytes())
        kept.parent.mkdir(parents=True, exist_ok=True)
        half = kept.with_name(f".{folder.name}")
        half.write_bytes(content)
        half.chmod(0o644)
        half.replace(kept)
    return kept


def unpacked(library: Library, packed: bytes) -> bytes:
    """Return the file in the package; EmulationError where it is not the package that is meant."""
    found = base64.b64encode(hashlib.sha512(packed).digest()).decode()
    if found != library.sha512:
        raise EmulationError(
            f"npm brought another {library.package}: its checksum is sha512-{found}"
        )
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        try:
            member = archive.extractfile(library.member)
        except KeyError:
            member = None
        if member is None:
            raise EmulationError(f"{library.package} has no {library.member}")
        return member.read()


def _packed(library: Library, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise EmulationError(f"npm is not installed; it brings {library.package}")
    command = [npm, "pack", library.package, "--pack-destination", str(folder), "--silent"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired as error:
        raise EmulationError(
            f"npm pack {library.package}: no end after {_TIMEOUT_S:g} s"
        ) from error
    packages = list(folder.glob("*.tgz"))
    if done.returncode != 0 or len(packages) != 1:
        raise EmulationError(f"npm pack {library.package} failed: {done.stderr.strip()[-500:]}")
    return packages[0]
