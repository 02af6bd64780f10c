"""The measurement of a source again: its command, its result file, and the list that quotes it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cedos.errors import HostError, NotFoundError
from emu import ROOT, WRITTEN
from emu.claims import claim_list, expressions, pages
from emu.claims.claim_list import Claims


def chosen(claims: Claims, name: str) -> list[str]:
    """Return the sources that a name stands for: a source, a claim, a paper, or `all`.

    NotFoundError: it is none of these, or no command is kept for it.
    """
    if name in claims.sources:
        found = [name]
    else:
        of = [each.source for each in claims.claim if name in ("all", each.name, each.paper)]
        found = [each for each in dict.fromkeys(of) if each]
    if not found:
        raise NotFoundError(f"{name} is no claim, source or paper in the list")
    found = [each for each in found if claims.sources[each].command]
    if not found:
        raise NotFoundError(f"no command is kept that measures {name}")
    return found


def head() -> str:
    """Return this commit.

    HostError: the tree is no clone, or has changes beside results, so that no commit would say what was
    measured.
    """
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    if commit is None or changes is None:
        raise HostError(f"{ROOT} is no git clone: a measurement must name its commit")
    others = [line for line in changes.splitlines() if not line[3:].startswith(WRITTEN)]
    if others:
        raise HostError(
            f"the tree is modified ({others[0].strip()}): commit first, so that the result names"
            " the code that gave it"
        )
    return commit.strip()


def measure(name: str, claims: Claims, places: Path, commit: str) -> None:
    """Run a source's command and note commit and day in the list.

    HostError: the command failed, or did not write its result file.
    """
    source = claims.sources[name]
    result = expressions.RESULTS / source.file if source.file else None
    before = result.stat().st_mtime_ns if result is not None and result.exists() else None
    runs = Path("runs") / "claims" / commit[:12]
    line = source.command.replace("{places}", str(places)).replace("{runs}", str(runs))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line], cwd=ROOT, check=False, env=environment
    )
    if done.returncode != 0:
        raise HostError(f"{name}: the command ended with status {done.returncode}: {line}")
    if result is not None and (not result.exists() or result.stat().st_mtime_ns == before):
        raise HostError(f"{name}: the command did not write {result}")
    text = claim_list.FILE.read_text()
    claim_list.FILE.write_text(stamped(text, name, commit, datetime.now(UTC).date().isoformat()))


def stamped(text: str, name: str, commit: str, day: str) -> str:
    """Return the list's text with commit and date of one source replaced."""
    head, mark, rest = text.partition(f"[sources.{name}]\n")
    body, end, tail = rest.partition("\n\n")
    body = re.sub(r'^commit = ".*"$', f'commit = "{commit}"', body, flags=re.M)
    body = re.sub(r"^date = .*$", f"date = {day}", body, flags=re.M)
    return f"{head}{mark}{body}{end}{tail}"


def update() -> Iterator[str]:
    """Bring the list's numbers and the pages to the result files; yield what changed, for people."""
    expressions.result.cache_clear()
    old = claim_list.read(claim_list.FILE)
    text = claim_list.FILE.read_text()
    current = claim_list.rewritten(text, old)
    if current != text:
        claim_list.FILE.write_text(current)
        yield "written: docs/claims.toml"
    new = claim_list.read(claim_list.FILE)
    for before, after in zip(old.claim, new.claim, strict=True):
        if before != after:
            yield f"{after.name}: {pages.words(after.shown)} (before: {pages.words(before.shown)})"
    for name in ("docs/state.md", "README.md"):
        page = written = (ROOT / name).read_text()
        if name == "docs/state.md":
            written = pages.with_part(page, pages.state_part(new))
        for before, after in zip(old.claim, new.claim, strict=True):
            if before.page == "README.md" == name:
                written = pages.with_text(written, before.shown, after.shown)
        if written != page:
            (ROOT / name).write_text(written)
            yield f"written: {name}"


def _git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else None
