"""What hostile XML does to the reader of manifests: nothing."""

import tracemalloc

import pytest

from cedos.proxy.local.players.manifest_tree import read

HEAD = '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011">'
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE MPD [<!ENTITY l0 "lol">'
    + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    + f"]>{HEAD}<BaseURL>&l9;</BaseURL></MPD>"
)
OUTSIDE = (
    f'<!DOCTYPE MPD [<!ENTITY x SYSTEM "file:///etc/passwd">]>{HEAD}<BaseURL>&x;</BaseURL></MPD>'
)


@pytest.mark.parametrize(
    "code", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
@pytest.mark.parametrize(
    "document",
    [
        LAUGHS,
        OUTSIDE,
        f'<!DOCTYPE MPD SYSTEM "http://elsewhere.example/a.dtd">{HEAD}</MPD>',
        f"<!DOCTYPE MPD>{HEAD}</MPD>",
        f'<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE MPD>{HEAD}</MPD>',
        f"{HEAD}<BaseURL>&x;</BaseURL></MPD>",
        HEAD + "<Period>" * 32 + "</Period>" * 32 + "</MPD>",
        HEAD + "<x>" * 32 + "</x>" * 32 + "</MPD>",
        HEAD + "<x>" * 200_000,
        HEAD + "<S/>" * 30_000 + "</MPD>",
        HEAD + "<x/>" * 30_001 + "</MPD>",
        HEAD + "<x>" + "<S/>" * 30_000 + "</x></MPD>",
        f"{HEAD}<BaseURL>{'&amp;' * 2_049}</BaseURL></MPD>",
        f"{HEAD}{' ' * (1 << 20)}</MPD>",
        "<m:MPD xmlns:m='urn:mpeg:dash:schema:mpd:2011'></m:MPD>",
        f"{HEAD}</MPD>{HEAD}</MPD>",
        HEAD,
    ],
)
def test_it_is_refused_and_nothing_grows(document: str, code: str) -> None:
    body = document.encode(code)
    tracemalloc.start()
    try:
        assert read(body) is None
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_only_utf_8_is_read() -> None:
    document = (
        f'<?xml version="1.0" encoding="ISO-8859-1"?>{HEAD}<BaseURL>\u00e4&amp;</BaseURL></MPD>'
    )
    for code in ("utf-8", "utf-8-sig"):
        root = read(document.encode(code))
        assert root is not None
        assert [each.text for each in root.all("BaseURL")] == ["\u00e4&"]
    for code in ("latin-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        assert read(document.encode(code)) is None


def test_what_is_none_of_a_manifests_own_is_passed_over() -> None:
    others = (
        "<ProgramInformation><Period/></ProgramInformation>",
        "<x:Period xmlns:x='urn:x'><Period/></x:Period><Period xmlns='urn:x'/>",
        "<!-- <Period/> --><![CDATA[<Period/>]]>",
    )
    own = "<Period id='a'><Period/></Period>"
    root = read(f"{HEAD}{''.join(others)}{own}</MPD>".encode())
    assert root is not None
    assert [each.attributes for each in root.all("Period")] == [{"id": "a"}]
    assert root.first("BaseURL") is None


def test_of_what_is_elsewhere_nothing_is_read() -> None:
    root = read(
        f"{HEAD}<Period xmlns:l='urn:l' l:href='a.xml'><BaseURL>a</BaseURL></Period></MPD>".encode()
    )
    assert root is not None
    (period,) = root.all("Period")
    assert period.linked
    assert period.children == {}
