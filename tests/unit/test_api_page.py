"""The page of the Python API says what the code says."""

from emu import ROOT, api_page


def test_the_page_is_that_of_this_code():
    assert (ROOT / "docs" / "api.md").read_text() == api_page.page(), (
        "`python -m emu.api_page > docs/api.md` would be right"
    )


def test_it_has_what_programs_call():
    lines = api_page.page().splitlines()
    for call in ("await connect(", "wait_for(", "setsockopt(", "prefetch("):
        assert any(line.startswith(f"- `{call}") for line in lines), call
    assert len(lines) <= 600
