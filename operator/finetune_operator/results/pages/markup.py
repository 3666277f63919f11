"""Elements of HTML and SVG, from texts that may contain anything."""

import re
from html import escape

#: Control characters, halves of surrogate pairs and noncharacters, which no page may contain, and the marks that
#: change the direction of the text after them.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


class Markup(str):
    """Markup that is complete and safe; templates insert it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def clean(text: str) -> str:
    """Returns the text without characters that a page must not contain; line ends and tabs remain."""
    return _UNSAFE.sub("", text)


def element(tag: str, *content: str, **attributes: str | float) -> Markup:
    """Returns an element.

    Args:
        tag: name of the element.
        content: its children in order: Markup as it is, other texts escaped.
        attributes: by name, with ``_`` for ``-`` and ``class_`` for ``class``. Numbers are rounded to hundredths.
    """
    given = "".join(f' {_name(name)}="{_value(value)}"' for name, value in attributes.items())
    children = "".join(each if isinstance(each, Markup) else escape(clean(each)) for each in content)
    return Markup(f"<{tag}{given}>{children}</{tag}>")


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(clean(value))
    return f"{value:.2f}".rstrip("0").rstrip(".")
