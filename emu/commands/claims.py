"""`cedos-emu claims`: each figure of the papers and of ours, checked and measured again."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedos.commands.console.render import echo, show, wrap
from emu.console import examples

if TYPE_CHECKING:
    from emu.claims.claim_list import Claim, Claims


@click.command(
    "claims",
    epilog=examples(
        "cedos-emu claims --paper delphi",
        "cedos-emu claims delphi-table-6",
        "cedos-emu claims --check",
        "cedos-emu claims --measure cedos_days",
    ),
)
@click.argument("names", metavar="[CLAIM]...", nargs=-1)
@click.option(
    "--paper", help="Only this paper's: delphi, intnw, imp, meatballs, cedos, dtp, cbsp, ours."
)
@click.option(
    "--check", is_flag=True, help="Compute every number from its file; fail where one differs."
)
@click.option(
    "--update", is_flag=True, help="Bring the list, docs/state.md and README.md to the files."
)
@click.option(
    "--measure", metavar="NAME", help="Measure a claim, a source, a paper or `all` again."
)
@click.option(
    "--places", "directory", type=click.Path(path_type=Path), help="Collection of real places."
)
def command(
    names: tuple[str, ...],
    paper: str | None,
    check: bool,
    update: bool,
    measure: str | None,
    directory: Path | None,
) -> None:
    """List what the papers say, what was measured here, and by which command.

    The list is docs/claims.toml. With the name of a CLAIM, everything that is known of it is shown.
    --measure goes on where it was ended: what was measured of this commit is not measured again.
    It refuses a modified tree.
    """
    from cedos.errors import DataSetError, NotFoundError  # noqa: PLC0415
    from emu.claims import claim_list, measuring  # noqa: PLC0415

    claims = claim_list.read()
    if measure is not None:
        _measure(claims, measure, directory)
    if update or measure is not None:
        for line in measuring.update():
            show(wrap(line, hanging="  "))
        return
    if check:
        problems = [
            *claim_list.problems(claims),
            *map(_no_commit, claim_list.missing_commits(claims)),
        ]
        if problems:
            show(problems)
            raise DataSetError(f"{len(problems)} of the list's claims do not hold")
        numbers = sum(each.ours.count("{") for each in claims.claim)
        echo(f"{len(claims.claim)} claims; {numbers} numbers are those of their files")
        return
    chosen = [each for each in claims.chosen(paper) if each.name in names or not names]
    if not chosen:
        raise NotFoundError("no claim is so; `cedos-emu claims` lists all")
    if names:
        _details(chosen, claims)
    else:
        _overview(chosen)


def _no_commit(source: str) -> str:
    return f"source {source}: its commit is not in this repository; `--measure {source}` names one"


def _measure(claims: "Claims", name: str, directory: Path | None) -> None:
    from emu.claims import measuring  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415

    commit = measuring.head()
    collection = places.default_directory(directory)
    for source in measuring.chosen(claims, name):
        if claims.sources[source].commit == commit:
            echo(f"{source}: was measured of this commit")
        else:
            echo(f"{source}: {claims.sources[source].command}")
            measuring.measure(source, claims, collection, commit)


def _overview(chosen: "list[Claim]") -> None:
    from emu.claims import claim_list, pages  # noqa: PLC0415

    for paper, of_paper in claim_list.by_paper(chosen).items():
        echo(f"{claim_list.PAPERS[paper]}:")
        verdict = ""
        for each in of_paper:
            if each.verdict != verdict:
                verdict = each.verdict
                echo(f"  {verdict}")
            show(wrap(f"{each.name}: {pages.words(each.item)}", "    ", "  "))
            theirs = "goal" if paper == "ours" else "paper"
            for title, text in ((theirs, each.expected), ("ours", each.shown or each.why)):
                if text:
                    show(wrap(f"{title:<6}{pages.words(text)}", "      ", " " * 6))
        echo("")


def _details(chosen: "list[Claim]", claims: "Claims") -> None:
    from emu.claims import pages  # noqa: PLC0415

    for each in chosen:
        echo(each.name)
        for field, text in pages.entry(each, claims):
            show(wrap(f"{field:<9}{text}", "  ", " " * 9))
