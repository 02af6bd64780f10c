"""The page of bounds says what the code says."""

from emu import ROOT, bounds_page


def test_the_page_is_that_of_this_code():
    assert (ROOT / "docs" / "bounds.md").read_text() == bounds_page.page(), (
        "`python -m emu.bounds_page > docs/bounds.md` would be right"
    )


def test_each_bound_is_a_number_with_what_happens_beyond():
    rows = [each for each in bounds_page.page().splitlines() if each.startswith("| ")][2:]
    assert len(rows) > 30
    for row in rows:
        what, most, beyond = (each.strip() for each in row.strip("|").split("|"))
        if not what.startswith("**"):
            assert any(each.isdigit() for each in most) or "--cache" in most, row
            assert beyond, row
