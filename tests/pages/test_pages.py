"""Each page in a headless Chromium: it requests nothing, can be read by everybody and everywhere, and prints."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from finetune_operator.results.pages.document import clean
from tests.pages.hostile import HOSTILE
from tests.pages.pages import PAGES
from tests.pages.visit import PHONE, WIDE, Scheme, Visit, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCHEMES = get_args(Scheme.__value__)


@pytest.fixture(scope="module", params=list(PAGES))
def named(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Name and HTML of each page."""
    return request.param, PAGES[request.param]()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_page_requests_nothing_and_is_accessible(
    browser: "Browser", axe: str, screenshots: Path, named: tuple[str, str], scheme: Scheme, width: int
) -> None:
    name, html = named
    with visit(browser, html, scheme=scheme, width=width) as opened:
        opened.page.screenshot(path=screenshots / f"{name}-{scheme}-{width}.png", full_page=True)
        assert opened.violations(axe) == []
        assert opened.overflow() == []
        assert opened.problems == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_prints_dark_on_white(
    browser: "Browser", screenshots: Path, named: tuple[str, str], scheme: Scheme
) -> None:
    name, html = named
    with visit(browser, html, scheme=scheme) as opened:
        printed = opened.page.pdf(format="A4", path=screenshots / f"{name}-{scheme}.pdf")
        assert printed.startswith(b"%PDF-")
        opened.page.emulate_media(media="print")
        colors = opened.page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert colors == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
        assert opened.problems == []


@pytest.fixture(scope="module")
def hostile(browser: "Browser") -> Iterator[Visit]:
    with visit(browser, PAGES["compare-hostile"]()) as opened:
        yield opened


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_appears_as_text(hostile: Visit, text: str) -> None:
    shown = hostile.page.evaluate("() => document.body.textContent")
    assert clean(text) in shown
    assert hostile.page.locator("main").is_visible()
    assert hostile.page.locator("script, iframe, img, form, base, link, button").count() == 0
    assert "1337" not in shown
    assert hostile.problems == []


def test_the_browser_reports_what_a_page_must_not_do(browser: "Browser", axe: str) -> None:
    """The checks themselves: a page that does everything wrong."""
    bad = (
        "<!doctype html><html><head><meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"></head>"
        '<body style="background: red"><main><img src="https://example.com/x.png"><div style="width: 2000px">wide'
        "</div></main><script>alert(1)</script></body></html>"
    )
    with visit(browser, bad, width=PHONE) as opened:
        assert any(each.startswith("image-alt:") for each in opened.violations(axe))
        assert len([each for each in opened.problems if "Content Security Policy" in each]) >= 2
    allowed = bad.replace("default-src 'none'", "default-src * 'unsafe-inline'")
    with visit(browser, allowed, width=PHONE) as opened:
        assert any("width: 2000px" in each for each in opened.overflow())
        assert "request: https://example.com/x.png" in opened.problems
        assert "dialog: 1" in opened.problems
