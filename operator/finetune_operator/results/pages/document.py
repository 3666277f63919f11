"""Renders templates of this package. Every text is escaped: those of records are written by tenants."""

from functools import cache

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from finetune_operator.results.pages.markup import clean

#: What a page may load, which is nothing. Its style is inline, images are part of the page.
CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)


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
    """Returns what an expression of a template inserts."""
    return clean(value) if type(value) is str else value
