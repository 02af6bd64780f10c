"""Tables of claims: on the pages for people, in the notebook and on the terminal."""

import re
from collections.abc import Iterator
from typing import Final

from emu.claims.claim_list import PAPERS, Claim, Claims, by_paper

BEGIN: Final = "<!-- written by `cedos-emu claims --update` -->"
END: Final = "<!-- written until here -->"


def state_part(claims: Claims) -> str:
    """Return the part of docs/state.md that is written: our figures, and findings about the papers."""
    ours = [each for each in claims.claim if each.paper == "ours"]
    further = [each for each in ours if not each.page]
    missed = sum(each.verdict in ("missed", "in part") for each in further)
    return "\n".join(
        [
            _state_table(claims),
            "",
            f"{len(further)} further figures, {missed} of which miss a goal or a part of one, are in the"
            " list only: `cedos-emu claims --paper ours`.",
            "",
            "## What the papers say, and was not found here",
            "",
            *_findings(claims),
        ]
    )


def _findings(claims: Claims) -> Iterator[str]:
    for paper, listed in by_paper(claims.claim).items():
        for each in listed:
            if each.verdict in ("reversed", "not reproduced"):
                title = PAPERS[paper].partition(" (")[0]
                found = f"**{each.verdict}**: {each.shown}. {each.why}"
                yield f"- {title}, {each.item}: {each.expected}. {found}"


def _state_table(claims: Claims) -> str:
    lines = ["| what | goal | measured | source |", "| --- | --- | --- | --- |"]
    for each in claims.claim:
        if each.page == "docs/state.md":
            source = claims.source_of(each)
            shown = f"`{each.source}`"
            if source is not None and source.file:
                shown = f"[{each.source}](../notebooks/results/{source.file})"
            lines.append(f"| {each.item} | {each.expected or '-'} | {each.shown} | {shown} |")
    return "\n".join(lines)


def with_part(page: str, part: str) -> str:
    """Return a page with its part between the marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def with_text(page: str, before: str, after: str) -> str:
    """Return a page with a text replaced whose words may stand on several lines.

    The new words stand on the lines of the old ones.
    """

    def replaced(found: re.Match[str]) -> str:
        between = re.findall(r"\s+", found[0])
        words = after.split()
        return words[0] + "".join(map(str.__add__, between, words[1:]))

    if len(before.split()) != len(after.split()):
        return page.replace(before, after)
    return re.sub(r"\s+".join(map(re.escape, before.split())), replaced, page)


def markdown(claims: Claims, paper: str) -> str:
    """Return one paper's table for the notebook, reversed findings first."""
    (listed,) = by_paper(claims.chosen(paper)).values()
    lines = [
        "| item | verdict | the paper | ours | places; configuration | claim |",
        "|" + " --- |" * 6,
    ]
    for each in listed:
        source = claims.source_of(each)
        where = f"{source.places}; {source.configuration}" if source else ""
        ours = ". ".join(part for part in (each.shown, each.why) if part)
        cells = (each.item, f"**{each.verdict}**", each.expected, ours, where, f"`{each.name}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def tally(claims: Claims) -> list[tuple[str, dict[str, int]]]:
    """Return how many items of each paper have each verdict."""
    found = []
    for paper, listed in by_paper(claims.claim).items():
        counts: dict[str, int] = {}
        for each in listed:
            counts[each.verdict] = counts.get(each.verdict, 0) + 1
        found.append((PAPERS[paper], counts))
    return found


def words(text: str) -> str:
    """Return a text of Markdown for the terminal: links by their words, no marks."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")


def entry(claim: Claim, claims: Claims) -> Iterator[tuple[str, str]]:
    """Yield the fields of one claim that people read, with their names."""
    source = claims.source_of(claim)
    yield "item", f"{PAPERS[claim.paper]}: {words(claim.item)}"
    yield "verdict", claim.verdict
    if claim.expected:
        yield ("goal" if claim.paper == "ours" else "paper"), words(claim.expected)
    if claim.ours:
        yield "ours", words(claim.shown)
    if claim.why:
        yield "finding", words(claim.why)
    if source is not None:
        yield "places", source.places
        yield "runs", f"{source.kind}, {source.configuration}"
        yield "when", f"{source.date}, commit {source.commit[:12]}"
        yield "file", f"notebooks/results/{source.file}" if source.file else "none was kept"
        yield "command", source.command or "none is kept"
        if claim.numbers:
            yield "numbers", "; ".join(claim.numbers)
