"""The list of claims, the pages and the notebooks say what the result files say."""

import importlib.util
import json
import re

import pytest

from emu import ROOT
from emu.claims import claim_list, pages

CLAIMS = claim_list.read()
STATE = (ROOT / "docs" / "state.md").read_text()
README = (ROOT / "README.md").read_text()
NAMED = re.compile(r"`claims: ([^`]+)`")
SETTINGS = {
    "0.01", "0.1", "0.3", "1", "2", "3", "4", "5", "6", "8", "12", "20", "30", "45", "02", "52", "61",
    "72", "112", "150", "443", "900", "5,000", "6.15", "1.1.1.1", "2606", "4700", "1111", "198.51.100.7",
}  # fmt: skip
"""Numbers of the README that were set or counted, not measured: seconds, prices, names, addresses,
versions, and the bytes of packets."""


def test_every_number_is_that_of_its_file():
    assert list(claim_list.problems(CLAIMS)) == []


def test_every_commit_is_in_this_history():
    assert claim_list.missing_commits(CLAIMS) == []


def test_each_file_names_the_commit_that_the_list_names_and_an_unmodified_tree():
    for name, source in CLAIMS.sources.items():
        if source.file and name != "gateway":  # (Measured in parts, before commits were rewritten.)
            text = (ROOT / "notebooks" / "results" / source.file).read_text()
            assert f'"{source.commit}"' in text, name
            assert '"modified": true' not in text, name


@pytest.mark.parametrize("name", [name for name, each in CLAIMS.sources.items() if each.command])
def test_commands_name_what_there_is(name):
    command = CLAIMS.sources[name].command
    named = re.findall(r"emu/experiments/\w+\.toml|(?:traces|tests)/[\w/.]+", command)
    assert [each for each in named if not (ROOT / each).exists()] == []
    for module in re.findall(r"python -m ([\w.]+)", command):
        assert importlib.util.find_spec(module), module
    for bench in re.findall(r"cedos-emu bench (\w+)", command):
        assert (ROOT / "emu" / "bench" / f"{bench}.py").exists(), bench
    for command_name in re.findall(r"cedos-emu (\w+)", command):
        assert (ROOT / "emu" / "commands" / f"{command_name}.py").exists(), command_name
    file = CLAIMS.sources[name].file
    assert not file or file in command or "--out notebooks/results" in command


def test_every_table_and_figure_of_the_papers_is_listed():
    items = {
        paper: " ".join(each.item for each in CLAIMS.chosen(paper)) for paper in claim_list.PAPERS
    }
    for paper, kind, numbers in (
        ("delphi", "Table", range(1, 8)), ("delphi", "Figure", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12]),
        ("intnw", "Table 2.", range(1, 4)), ("intnw", "Figure 2.", range(1, 5)),
        ("imp", "Table 3.", [1]), ("imp", "Figure 3.", range(1, 6)),
        ("meatballs", "Table 4.", range(1, 4)), ("meatballs", "Figure 4.", range(1, 5)),
        ("cedos", "Figure", range(6, 11)), ("dtp", "Table", [1, 2]), ("dtp", "Figure", [1, 8, 9]),
        ("cbsp", "Table", [1, 2]), ("cbsp", "Figure", [10, 11, 12, 13, 14, 15, 16, 17, 18, 22]),
    ):  # fmt: skip
        for number in numbers:
            wanted = f"{kind}{'' if kind.endswith('.') else ' '}{number}"
            assert re.search(rf"{re.escape(wanted)}(?!\d)", items[paper]), (paper, wanted)
    for number in ("I", "II", "III", "IV", "V", "VI", "VII"):
        assert re.search(rf"Table {number}\b", items["cedos"]), number


def test_told_figures_are_called_an_upper_bound():
    for each in CLAIMS.claim:
        source = CLAIMS.source_of(each)
        if source is not None and "cedos-told" in source.configuration and "told" in each.shown:
            said = f"{source.configuration} {each.why} {each.item}"
            assert "upper bound" in said or "told" in each.item, each.name


def test_the_state_page_is_written_from_the_list():
    assert pages.with_part(STATE, pages.state_part(CLAIMS)) == STATE, (
        "`cedos-emu claims --update` would be right"
    )


def numbers_of(texts):
    return {each for text in texts for each in re.findall(r"\d+(?:[.,]\d+)*", text)}


def test_the_readme_shows_the_numbers_of_the_list_and_no_others():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    said = " ".join(prose.replace("**", "").split())
    shown = [each.shown for each in CLAIMS.claim if each.page == "README.md"]
    assert len(shown) >= 8
    assert [each for each in shown if each not in said] == []
    assert numbers_of([said]) <= numbers_of(shown) | SETTINGS


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((\S+?/results/\S+?)\)", STATE))))
def test_results_that_the_page_leads_to_are_there(link):
    assert (ROOT / "docs" / link).exists()


NOTEBOOKS = {
    path.stem: json.loads(path.read_text())["cells"]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
}


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS))
def test_each_picture_of_a_notebook_has_its_claims_before_it(notebook):
    names = {each.name for each in CLAIMS.claim}
    named = set()
    for cell in NOTEBOOKS[notebook]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            named = {each for found in NAMED.findall(source) for each in found.split(", ")}
            assert named <= names
        elif any("image/svg+xml" in each.get("data", {}) for each in cell["outputs"]):
            assert named or notebook == "claims", source[:60]


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS))
def test_notebooks_have_one_style(notebook):
    code = "".join(
        "".join(cell["source"]) for cell in NOTEBOOKS[notebook] if cell["cell_type"] == "code"
    )
    assert "pictures.use()" in code
    for own in ("rcParams", "plt.subplots", '"#1f77b4"', '"#ff7f0e"', ".bar("):
        assert own not in code
