"""The frame of pages: escaping, what a page may load, and what templates may do."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import SecurityError
from markupsafe import Markup

from finetune_operator.results.pages import document
from finetune_operator.results.pages.document import BELOW, CONTENT_POLICY, clean, render, render_text

TEMPLATES = Path(document.__file__).parent / "templates"
PAGE = """{% extends "document.html.j2" %}{% block title %}{{ name }}{% endblock %}
{% block content %}<h1 title="{{ name }}">{{ name }}</h1>{{ chart }}{% endblock %}"""

TEXT = "<bold>{{ name }}  <below/>is</bold> a name\n{{ one_line(name) }}\n"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Templates ``page`` and ``text`` beside those of the package."""
    environment = document._environment()
    loader = jinja2.ChoiceLoader([environment.loader, jinja2.DictLoader({"page": PAGE, "text": TEXT})])  # type: ignore[list-item]
    monkeypatch.setattr(environment, "loader", loader)
    environment.cache.clear()  # type: ignore[union-attr]
    yield
    environment.cache.clear()  # type: ignore[union-attr]


class Tags(HTMLParser):
    """Names of all elements, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.usefixtures("page")
def test_a_page_loads_nothing_and_has_no_script() -> None:
    text = render("page", name="x", chart=Markup())
    tags = Tags(text).found
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": CONTENT_POLICY}) in tags
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in tags}
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in tags)
    assert "url(" not in text
    assert "@import" not in text
    assert text.lstrip().startswith("<!doctype html>")


def test_the_policy_forbids_everything_but_the_inline_style() -> None:
    assert CONTENT_POLICY.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    "hostile",
    ["</title><script>alert(1)</script>", '" onmouseover="alert(1)', "{{ 7 * 7 }}", "{% raw %}", "<!--", "]]>",
     "<svg onload=alert(1)>", "&lt;script&gt;"],
)  # fmt: skip
def test_texts_appear_as_they_are(hostile: str) -> None:
    text = render("page", name=hostile, chart=Markup("<p>{}</p>").format(hostile))
    tags = Tags(text).found
    assert [tag for tag, _ in tags].count("script") == 0
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert dict(tags)["h1"] == {"title": hostile}
    assert "49" not in re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)


@pytest.mark.usefixtures("page")
def test_texts_lose_control_characters_and_marks_of_direction() -> None:
    text = render("page", name="a\x00\x1b[31m\u202eb\ud800\nc\u200dd", chart=Markup())
    text.encode()
    assert '<h1 title="a[31mb\nc\u200dd">' in text


@pytest.mark.usefixtures("page")
def test_a_missing_name_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("page", name="x")


@pytest.mark.parametrize("name", ["../document.py", "/etc/passwd", "none", "templates/../../document.py"])
def test_only_templates_of_the_package_are_loaded(name: str) -> None:
    with pytest.raises(jinja2.TemplateNotFound):
        render(name)


def test_templates_run_in_a_sandbox() -> None:
    environment = document._environment()
    for expression in ("''.__class__.__mro__", "[].append(1)"):
        with pytest.raises(SecurityError):
            environment.from_string("{{ " + expression + " }}").render()


def test_templates_turn_no_text_into_markup() -> None:
    assert not [
        path.name for path in TEMPLATES.iterdir() if re.search(r"\|\s*safe\b|autoescape", path.read_text())
    ]


def test_clean_keeps_what_is_written_in_any_language() -> None:
    kept = "Grüße, 你好, مرحبا, नमस्ते, 👩\u200d💻, a\u00a0b\n\tc"
    assert clean(kept) == kept


@pytest.mark.usefixtures("page")
def test_what_looks_like_a_style_in_a_text_s_values_is_words() -> None:
    name = "a\n<red>b</red> & &lt;"
    assert list(render_text("text", lambda text: " ".join(text.split()), name=name)) == [
        [("a <red>b</red> & &lt;  ", "bold"), ("", BELOW), ("is", "bold"), (" a name", "")],
        [("a <red>b</red> & &lt;", "")],
    ]
