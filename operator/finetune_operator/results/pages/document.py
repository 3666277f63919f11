"""Renders templates of this package. Every text is escaped: those of records are written by tenants."""

import html
import re
from collections.abc import Callable, Iterator
from functools import cache

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

#: What a page may load, which is nothing. Its style is inline, images are part of the page.
CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
#: Control characters, halves of surrogate pairs and noncharacters, which no page may contain, and the marks that
#: change the direction of the text after them.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
#: A tag in the template of a text: a style begins or ends, or BELOW.
_TAG = re.compile(r"<([a-z /]+)>")

#: Style of an empty text that marks the column at which the rest of a line begins that is too long.
BELOW = "below/"

type StyledText = tuple[str, str]
"""A text and its style, as the template names it."""


def render(template: str, /, **values: object) -> str:
    """Returns a page as HTML.

    Args:
        template: name of a template of this package, for example ``compare.html.j2``. It extends
            ``document.html.j2``, whose blocks are ``title`` and ``content``.
        values: what the template uses. Texts are escaped, and lose the characters that :func:`clean` removes;
            ``Markup`` is inserted as it is. A name that is missing is an error.
    """
    text: str = _environment().get_template(template).render(content_policy=CONTENT_POLICY, **values)
    return text


def render_text(
    template: str, /, one_line: Callable[[str], str], **values: object
) -> Iterator[list[StyledText]]:
    """Yields the lines of a text, each as its parts.

    Args:
        template: name of a template of this package, for example ``compare.txt.j2``.
        one_line: makes one line of printable characters of every text that is inserted; the template uses it, too.
        values: what the template uses. A name that is missing is an error.
    """
    environment = _environment().overlay(
        finalize=lambda value: (
            one_line(value) if isinstance(value, str) and type(value) is not Markup else value
        )
    )
    text = environment.get_template(template).render(one_line=one_line, **values)
    for line in text.removesuffix("\n").split("\n"):
        parts, style = list[StyledText](), ""
        for number, part in enumerate(_TAG.split(line)):
            if not number % 2:
                parts.append((html.unescape(part), style))
            elif part == BELOW:
                parts.append(("", part))
            else:
                style = "" if part.startswith("/") else part
        yield [each for each in parts if any(each)]


def part(macro: str, /, *values: object) -> Markup:
    """Returns what a macro of ``charts.html.j2`` makes of its values, for which the same holds as in a page."""
    return Markup(getattr(_environment().get_template("charts.html.j2").module, macro)(*values))  # noqa: S704


def clean(text: str) -> str:
    """Returns the text without characters that a page must not contain; line ends and tabs remain."""
    return _UNSAFE.sub("", text)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        loader=PackageLoader("finetune_operator.results.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_final,
    )


def _final(value: object) -> object:
    """Returns what an expression of a template inserts. Numbers with a fraction, which are places, are rounded."""
    if type(value) is float:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return clean(value) if type(value) is str else value
