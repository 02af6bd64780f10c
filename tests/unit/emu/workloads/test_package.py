"""The repository that apt is given, made by Debian's own programs."""

import os
from pathlib import Path

from emu.workloads.unmodified.tools import PackageArchive


def test_the_package_is_in_the_archive_and_in_its_list(tmp_path: Path) -> None:
    www = tmp_path / "www"
    www.mkdir()
    PackageArchive(www, tmp_path / "apt", os.getuid(), 100_000)
    (package,) = (www / "packages").glob("*.deb")
    listed = (www / "packages" / "Packages").read_text()
    assert f"Filename: ./{package.name}\n" in listed
    assert f"Size: {package.stat().st_size}\n" in listed
    assert package.stat().st_size >= 100_000
