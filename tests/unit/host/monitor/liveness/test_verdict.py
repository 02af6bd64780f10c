"""The verdict by the test page's answers."""

import pytest

from cedos.host.monitor.portal_check import (
    PortalVerdict,
    TestPage,
    judge,
)

PAGE = TestPage.of("http://portal.test:8080/nm?x=1", "all is well")


def test_the_page_of_a_url():
    assert (PAGE.host, PAGE.port, PAGE.path) == ("portal.test", 8080, "/nm?x=1")
    assert b"GET /nm?x=1 HTTP/1.1\r\nHost: portal.test\r\n" in PAGE.request()
    assert b"Host: [2001:db8::1]\r\n" in TestPage.of("http://[2001:db8::1]", "").request()
    for url in ("https://portal.test/", "portal.test", "http:///x", "http://a:b@c/", "http://a:x/"):
        with pytest.raises(ValueError, match=r"."):
            TestPage.of(url, "")


@pytest.mark.parametrize(
    ("answer", "verdict", "page"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", PortalVerdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nall is well\n", PortalVerdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\nb\r\nall is well\r\n0\r\n\r\n", PortalVerdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>Welcome", PortalVerdict.CAPTIVE, ""),
        (
            b"HTTP/1.1 302 Found\r\nLOCATION: http://gw/l\r\n\r\n",
            PortalVerdict.CAPTIVE,
            "http://gw/l",
        ),
        (b"HTTP/1.0 511 Log in\r\n\r\n", PortalVerdict.CAPTIVE, ""),
        (b"HTTP/1.1 407 Proxy\r\n\r\n", PortalVerdict.CAPTIVE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\n", PortalVerdict.UNCLEAR, ""),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", PortalVerdict.UNCLEAR, ""),
        (b"HTTP/1.1 503 Busy\r\n\r\nall is well", PortalVerdict.UNCLEAR, ""),
        (b"SSH-2.0-x\r\n", PortalVerdict.CAPTIVE, ""),
        (b"", PortalVerdict.SILENT, ""),
    ],
)
def test_what_an_answer_says(answer, verdict, page):
    finding = judge(PAGE, answer)
    assert (finding.verdict, finding.page) == (verdict, page)


@pytest.mark.parametrize(
    "location",
    [
        "javascript:alert(1)", "file:///etc/passwd", "http://gw/\x1b[2J\x1b]0;owned\x07",
        "http://gw/ ; curl evil | sh", "http://g\u202ew/", "https://" + "a" * 4000, "/login",
    ],
)  # fmt: skip
def test_only_a_web_page_is_ever_suggested(location):
    answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode()
    finding = judge(PAGE, answer)
    assert (finding.verdict, finding.page) == (PortalVerdict.CAPTIVE, "")
    assert finding.why == "the test page was redirected to something that is no web page"


@pytest.mark.parametrize(
    ("expected", "body", "verdict"),
    [
        ("success", b"success\n", PortalVerdict.FREE),
        ("success", b"8\r\nsuccess\n\r\n0\r\n\r\n", PortalVerdict.FREE),
        ("Success", b"<HTML><TITLE>Success</TITLE><BODY>Success</BODY></HTML>", PortalVerdict.FREE),
        ("<b>OK</b>", b"\r\n<b>OK</b>", PortalVerdict.FREE),
        ("success", b"<html>Welcome. <script>success: go()</script>", PortalVerdict.CAPTIVE),
        ("OK", b"<p>Pay here</p><button>OK</button>", PortalVerdict.CAPTIVE),
        ("OK", b"1f\r\n<p>Room number</p><button>OK</button>", PortalVerdict.CAPTIVE),
        ("NetworkManager is online", b"<p>Not NetworkManager is online", PortalVerdict.CAPTIVE),
    ],
)
def test_the_pages_words_within_a_log_in_page_are_no_page(expected, body, verdict):
    page = TestPage.of("http://page.test/", expected)
    assert judge(page, b"HTTP/1.1 200 OK\r\n\r\n" + body).verdict is verdict
