"""The list of claims, `docs/claims.toml`, and its comparison with the result files.

In `ours` each number that a result file gives stands in braces; `from` has one expression for each,
or one for several where it gives several numbers. The text keeps the digits that it is shown with:
a number agrees where it is the same after rounding.
"""

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from cedos.errors import ConfigError, DataSetError
from emu import ROOT
from emu.claims import expressions

FILE: Final = ROOT / "docs" / "claims.toml"

PAPERS: Final = {
    "delphi": "Delphi",
    "intnw": "Intentional Networking (Higgins, chapter 2)",
    "imp": "Informed Mobile Prefetching (Higgins, chapter 3)",
    "meatballs": "Meatballs (Higgins, chapter 4)",
    "cedos": "Cedos",
    "dtp": "DTP",
    "cbsp": "CBSP",
    "ours": "our own figures",
}

Verdict = Literal[
    "reversed",
    "not reproduced",
    "in part",
    "reproduced",
    "not tested",
    "missed",
    "reached",
    "no goal",
]
# The verdicts. A paper's item has one of the first five; ours has `missed`, `in part`, `reached`
# or `no goal`.
VERDICTS: Final[tuple[str, ...]] = (
    "reversed", "not reproduced", "in part", "reproduced", "not tested", "missed", "reached", "no goal",
)  # fmt: skip

_MEASURED: Final = re.compile(r"\{([^{}]*)\}")


class Source(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A measurement: what was run, when, of which commit, over which places, in which configuration."""

    command: str
    """A line for bash, in the clone; `{places}` is the collection of real places, `{runs}` a folder of
    this commit for run folders. Empty: none is kept."""
    commit: str
    date: date
    """The measurement's day, or where it is not known, the day on which its result was committed."""
    kind: Literal["live", "simulated", "computed", "read"]
    """`computed` from a data set; `read` off the code, the kernel or the paper."""
    places: str
    configuration: str
    file: str = ""
    """Below notebooks/results. Empty: the figures were noted, and no file was kept."""


class Claim(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table, figure or headline number of a paper, or a figure of ours."""

    name: str
    paper: str
    item: str
    verdict: Verdict
    expected: str = ""
    """The paper's number; of a figure of ours, its goal."""
    ours: str = ""
    """Numbers in braces are checked, others were noted when no file was kept."""
    numbers: list[str] = msgspec.field(default_factory=list, name="from")
    source: str = ""
    why: str = ""
    """The finding in a sentence, or why the item was not tested."""
    page: Literal["", "docs/state.md", "README.md"] = ""
    """The page that shows it."""

    @property
    def shown(self) -> str:
        """The text without its marks of measured numbers."""
        return _MEASURED.sub(r"\1", self.ours)


class Claims(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole list."""

    sources: dict[str, Source]
    claim: list[Claim]

    def source_of(self, claim: Claim) -> Source | None:
        return self.sources[claim.source] if claim.source else None

    def chosen(self, paper: str | None = None) -> list[Claim]:
        return [each for each in self.claim if paper in (None, each.paper)]


def read(file: Path = FILE) -> Claims:
    """Read the list. ConfigError: it cannot be read, or says something that the list does not know."""
    try:
        found = msgspec.convert(tomllib.loads(file.read_text()), Claims)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file}: {error}") from error
    seen: set[str] = set()
    for each in found.claim:
        if each.name in seen:
            raise ConfigError(f"{file}: two claims are named {each.name}")
        if each.paper not in PAPERS:
            raise ConfigError(f"{file}: {each.name}: paper = {each.paper!r}; known: {[*PAPERS]}")
        if each.source and each.source not in found.sources:
            raise ConfigError(f"{file}: {each.name}: no source is named {each.source}")
        seen.add(each.name)
    return found


def problems(claims: Claims) -> Iterator[str]:
    """Yield where the list differs from the result files, or lacks what a claim must have."""
    for each in claims.claim:
        yield from (f"{each.name}: {problem}" for problem in _problems(each, claims))
    for name, source in claims.sources.items():
        if source.file and not (expressions.RESULTS / source.file).exists():
            yield f"source {name}: notebooks/results/{source.file} is missing"
    used = {source.file for source in claims.sources.values()}
    for file in sorted(expressions.RESULTS.glob("*.json")):
        if file.name not in used:
            yield f"notebooks/results/{file.name} is in no source"


def _problems(claim: Claim, claims: Claims) -> Iterator[str]:
    if claim.verdict == "not tested":
        if not claim.why:
            yield "is not tested, and `why` is missing"
    elif not claim.source:
        yield "`source` is missing"
    elif not claim.ours:
        yield "`ours` is missing"
    try:
        current = computed(claim, claims)
    except DataSetError as error:
        yield str(error)
    else:
        if current != claim.ours:
            yield f"says {claim.ours!r}, the file says {current!r}"


def computed(claim: Claim, claims: Claims, read: Callable[[str], Any] = expressions.result) -> str:
    """Return `ours` with each number in braces as its file has it.

    DataSetError: an expression that does not lead to a number, or too few or many numbers.
    """
    if not claim.numbers and not _MEASURED.search(claim.ours):
        return claim.ours
    source = claims.source_of(claim)
    if source is None:
        raise DataSetError("has numbers in braces, and no source")
    values = [
        value
        for expression in claim.numbers
        for value in expressions.evaluate(expression, source.file, read)
    ]
    wanted = len(_MEASURED.findall(claim.ours))
    if len(values) != wanted:
        raise DataSetError(f"{wanted} numbers in braces, `from` gives {len(values)}")
    following = iter(values)
    return _MEASURED.sub(lambda match: f"{{{_like(match[1], next(following))}}}", claim.ours)


def _like(text: str, value: float) -> str:
    """Format a number as another one is written: its decimals, sign and separators."""
    decimals = len(text.partition(".")[2])
    separators = "," if "," in text else ""
    shown = f"{value:{'+' if text.startswith('+') else ''}{separators}.{decimals}f}"
    return shown.removeprefix("-") if float(shown.replace(",", "")) == 0.0 else shown


def rewritten(text: str, claims: Claims) -> str:
    """Return the text of the list with all numbers as the files have them."""
    for each in claims.claim:
        current = computed(each, claims)
        if current != each.ours:
            # Two claims may say the same, so that only this one's part of the text is searched.
            head, name, rest = text.partition(f'name = "{each.name}"\n')
            part, next_claim, tail = rest.partition("[[claim]]")
            quoted = msgspec.json.encode(each.ours).decode()
            if quoted not in part:
                raise DataSetError(f"{each.name}: `ours` is not on one line in quotes")
            part = part.replace(quoted, msgspec.json.encode(current).decode())
            text = f"{head}{name}{part}{next_claim}{tail}"
    return text


def missing_commits(claims: Claims) -> list[str]:
    """Return the sources whose commit this repository does not have; none in a shallow clone."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    if git("rev-parse", "--is-shallow-repository") != "false":
        return []
    return [
        name
        for name, source in claims.sources.items()
        if git("cat-file", "-t", source.commit) != "commit"
    ]


def by_paper(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """Sort claims by paper, and each paper's by verdict, reversed ones first."""
    found: dict[str, list[Claim]] = {paper: [] for paper in PAPERS}
    for each in claims:
        found[each.paper].append(each)
    for listed in found.values():
        listed.sort(key=lambda claim: VERDICTS.index(claim.verdict))
    return {paper: listed for paper, listed in found.items() if listed}
