"""The page of the Python API says what the code says."""

from emu import api_page
from emu.repository import ROOT


def test_the_page_is_that_of_this_code() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_page.page(), (
        "`python -m emu.api_page > docs/api.md` would be right"
    )


def test_it_has_what_programs_call() -> None:
    text = api_page.page()
    for call in (
        "### connect",
        "#### Connection.wait_for",
        "#### socket.makefile",
        "### create_server",
    ):
        assert f"\n{call}\n" in text
