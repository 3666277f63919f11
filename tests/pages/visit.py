"""One page in a browser, and everything that it must not do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

type Scheme = Literal["light", "dark"]

#: Answered by the test itself; any other address is a request that the page should not make.
ADDRESS = "https://page.test/"
WIDE, PHONE = 1280, 360


@dataclass(slots=True)
class Visit:
    """An opened page."""

    page: "Page"
    problems: list[str] = field(default_factory=list)
    """Requests, messages on the console (a violation of the content policy is one), errors and dialogs."""

    def violations(self, axe: str) -> list[str]:
        """Returns the rules of accessibility that the page violates, each with the first elements."""
        # Evaluated by the debugger, to which the page's content policy does not apply.
        self.page.evaluate(axe)
        found: list[dict[str, Any]] = self.page.evaluate("async () => (await axe.run(document)).violations")
        return [
            f"{rule['id']}: {rule['help']}: {[node['html'][:200] for node in rule['nodes'][:3]]}"
            for rule in found
        ]

    def overflow(self) -> list[str]:
        """Returns the elements that make the page wider than the window; empty if it is not wider."""
        found: list[str] = self.page.evaluate(
            """() => {
                const width = document.documentElement.clientWidth;
                if (document.documentElement.scrollWidth <= width) return [];
                const wide = [...document.querySelectorAll("main *")].filter(
                    each => each.getBoundingClientRect().right > width + 1);
                return ["wider than the window", ...wide.slice(0, 5).map(each => each.outerHTML.slice(0, 200))];
            }"""
        )
        return found


@contextmanager
def visit(browser: "Browser", html: str, *, scheme: Scheme = "light", width: int = WIDE) -> Iterator[Visit]:
    """Opens a page. Every request that leaves it is aborted and is a problem."""
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 800}, service_workers="block"
    )
    try:
        page = context.new_page()
        opened = Visit(page)

        def answer(route: "Route") -> None:
            if route.request.url == ADDRESS and route.request.is_navigation_request():
                route.fulfill(body=html, content_type="text/html; charset=utf-8")
            else:
                opened.problems.append(f"request: {route.request.url}")
                route.abort()

        context.route("**/*", answer)
        context.on("page", lambda other: opened.problems.append(f"window: {other.url}"))
        page.on("console", lambda message: opened.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: opened.problems.append(f"error: {error}"))
        page.on(
            "dialog", lambda dialog: (opened.problems.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        page.goto(ADDRESS, wait_until="load")
        yield opened
    finally:
        context.close()
