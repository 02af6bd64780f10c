"""Players that others wrote are taken from the very package that is meant, and kept."""

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from cedos.errors import EmulationError
from emu.workloads.web import libraries
from emu.workloads.web.libraries import LIBRARIES, Library, fetched, unpacked
from emu.workloads.web.video import PLAYER

SCRIPT = b"play();"


def package(name: str = "package/dist/player.js") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(SCRIPT)
        archive.addfile(member, io.BytesIO(SCRIPT))
    return packed.getvalue()


def library(packed: bytes) -> Library:
    checksum = base64.b64encode(hashlib.sha512(packed).digest()).decode()
    return Library("player@1.0.0", checksum, "package/dist/player.js", "by_player.html")


def test_the_script_of_the_package_that_is_meant() -> None:
    packed = package()
    assert unpacked(library(packed), packed) == SCRIPT


def test_another_package_of_the_same_name_is_refused() -> None:
    packed = package()
    with pytest.raises(EmulationError, match=r"another player@1\.0\.0"):
        unpacked(library(packed + b" "), packed)


def test_a_package_without_the_script() -> None:
    packed = package("package/dist/other.js")
    with pytest.raises(EmulationError, match=r"has no package/dist/player\.js"):
        unpacked(library(packed), packed)


def test_without_npm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEDOS_EMU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulationError, match="npm is not installed"):
        fetched(library(package()))


def test_without_the_registry_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'ENOTFOUND registry' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("CEDOS_EMU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulationError, match="failed: ENOTFOUND registry"):
        fetched(library(package()))


def test_it_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = package()
    packed_file = tmp_path / "player.tgz"
    packed_file.write_bytes(packed)
    asked = []

    def pack(wanted: Library, _: Path) -> Path:
        asked.append(wanted.package)
        return packed_file

    monkeypatch.setenv("CEDOS_EMU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(libraries, "_packed", pack)
    first, second = fetched(library(packed)), fetched(library(packed))
    assert first == second
    assert first.read_bytes() == SCRIPT
    assert asked == ["player@1.0.0"]


@pytest.mark.parametrize("each", LIBRARIES.values(), ids=LIBRARIES)
def test_its_page_loads_it_and_is_here(each: Library) -> None:
    page = (PLAYER / each.page).read_text()
    assert f'src="libraries/{each.file_name}"' in page
