"""The page of ``finetune compare``: its numbers and structure, and hostile texts; without a browser."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from finetune_operator.cli.commands import app
from finetune_operator.cli.results.compare_page import comparison_page
from finetune_operator.cli.results.compare_text import comparison_lines
from finetune_operator.results.comparison.compare import compared
from finetune_operator.results.comparison.model import Comparison
from finetune_operator.results.pages.document import clean
from finetune_operator.results.records import RunRecords
from tests.pages.hostile import HOSTILE
from tests.pages.pages import PAGES, hostile_runs
from tests.unit.comparison.runs import request, row, rows, run, samples, status

#: Elements without an end tag.
VOID = {"meta", "br"}
#: All elements and attributes that the page has; none of them runs or loads anything.
ELEMENTS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "section",
        "article",
        "div",
        "span",
        "p",
        "br",
    ),
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "b",
        "strong",
        "bdi",
        "ins",
        "del",
        "ul",
        "li",
        "dl",
        "dt",
        "dd",
        "figure",
        "figcaption",
    ),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("a", "nav", "pre", "code", "svg", "desc", "line", "polyline", "circle", "rect", "text"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "name", "content", "id", "class", "scope", "role", "aria-labelledby"),
    *(
        "aria-hidden",
        "viewbox",
        "preserveaspectratio",
        "width",
        "height",
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
        "cx",
        "cy",
    ),
    *("r", "points", "text-anchor", "href", "aria-label"),
}


class Page(HTMLParser):
    """Elements, attributes and texts of a page, and whether every element is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.identifiers: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        assert all((value or "").startswith("#") for name, value in attrs if name == "href"), attrs
        self.identifiers += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.texts.append(" ")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """The text with single spaces."""
        return " ".join("".join(self.texts).split())


def two(**changes: Any) -> Comparison:
    """Two runs, of which the second one is better."""
    return compared(
        [
            run(
                "support-bot",
                rows(200, seed=1),
                samples=samples("Open Settings and choose Security.", "Yes."),
            ),
            run(
                "support-bot-2",
                rows(200, seed=2, gain=0.1, right=0.8),
                samples=samples("Open Settings, then Security.", "Yes."),
                request=request(hyperparameters__learning_rate=1e-4),
                status=status(cost={"chipHours": "1.9", "amount": "5.13", "currency": "USD"}),
                **changes,
            ),
        ]
    )


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_has_known_elements_alone_all_closed_and_identifiers_once(name: str) -> None:
    page = Page(PAGES[name]())
    assert page.elements <= ELEMENTS
    assert page.attributes <= ATTRIBUTES
    assert len(page.identifiers) == len(set(page.identifiers))


def test_the_page_has_every_line_of_the_text() -> None:
    """Apart from the parts that the page words in its own way: headings, jobs, answers, and arrows."""
    comparison = two()
    shown = Page(comparison_page(comparison)).text
    lines = ["".join(text for text, _ in parts) for parts in comparison_lines(comparison, colors=True)]
    lines = [line for line in lines if re.match(r"  [AB]     \S+  [+-]", line)]
    differences = [re.sub(r"^.*?  ([+-].*)$", r"\1", line) for line in lines]
    assert len(differences) == 4
    assert [each for each in differences if " ".join(each.split()) not in shown] == []
    means = [f"{value.job} {value.value:.4f}" for metric in comparison.metrics for value in metric.values]
    assert [each for each in means if each not in shown] == []
    for each in comparison.configuration:
        values = " ".join(f"{label} {value}" for label, value in each.values.items())
        assert f"{each.path} {values}" in shown
    assert "hyperparameters.learningRate A 0.0002 B 0.0001" in shown
    assert "chip hours A 1.412 B 1.9" in shown
    assert "cost A 3.81 B 5.13 USD" in shown


def test_the_page_shows_differences_with_intervals() -> None:
    comparison = two()
    page = comparison_page(comparison)
    loss = comparison.metrics[0].values[1].from_reference
    assert loss is not None
    assert loss.interval is not None
    low, high = loss.interval
    assert f"{loss.difference:+.4f} [{low:+.4f}, {high:+.4f}] better than A" in Page(page).text
    assert page.count("interval good") == 6, (
        "both metrics: the interval and its two ends, in the color of better ones"
    )
    assert (
        f"<desc>B − A: {loss.difference:,.4g}, 95 % interval from {low:,.4g} to {high:,.4g}.</desc>" in page
    )


def test_answers_are_side_by_side_with_differences_marked() -> None:
    page = comparison_page(two())
    assert (
        "<bdi><span>Open </span><del>Settings and choose </del><ins>Settings, then </ins><span>Security.</span></bdi>"
        in page
    )
    assert "2 prompts that A and B have; 1 with equal answers, 1 of the others here." in Page(page).text


def test_an_answer_that_is_too_long_to_mark_is_shown_as_it_is() -> None:
    long = "word " * 350
    page = comparison_page(
        compared(
            [
                run("a", rows(12, seed=1), samples=samples("x")),
                run("b", rows(12, seed=1), samples=samples(long)),
            ]
        )
    )
    assert long.strip() in Page(page).text
    assert "<ins>word word" not in page


def test_what_is_missing_and_what_limits_the_comparison_is_shown() -> None:
    measured = [row(at, 10.0, base=20.0) for at in range(12)]
    more = [row(at, float("nan"), base=20.0) for at in range(14)]
    comparison = compared(
        [run("a", measured), run("b", more, unreadable=["train/progress.json is garbage."])], common=True
    )
    shown = Page(comparison_page(comparison)).text
    assert "Only the 12 rows that all have are compared; rows left out: 2 of B." in shown
    assert "validation-0 Validation 12 2 more in B" in shown
    assert "not comparable with A (12 values are not a finite number)" in shown
    assert "train/progress.json is garbage." in shown


def test_runs_without_anything_have_a_page() -> None:
    page = Page(comparison_page(compared([RunRecords(name="a"), RunRecords(name="b")])))
    assert "a, b" in page.text
    assert "Configuration and data: what differs Nothing." in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_text_wherever_it_occurs(text: str) -> None:
    html = comparison_page(compared(hostile_runs([text]), samples=10))
    html.encode()
    page = Page(html)
    assert page.elements <= ELEMENTS
    assert page.attributes <= ATTRIBUTES
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    shown = " ".join(clean(text).split())
    for place in (
        "name",
        "namespace",
        "phase",
        "metric",
        "dataset",
        "prompt",
        "reference",
        "setting",
        "unreadable",
    ):
        assert shown in page.text, place
    assert page.text.count(shown) >= 15
    assert "1337" not in page.text


def test_a_page_of_hostile_texts_is_bounded() -> None:
    assert len(comparison_page(compared(hostile_runs(), samples=100))) < 2_000_000


def test_the_page_is_the_same_each_time() -> None:
    assert comparison_page(two()) == comparison_page(two())


# --- the command


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    from tests.unit.cli.test_compare import written

    return [written(tmp_path / name, rows(20, seed=at)) for at, name in enumerate(("a", "b"))]


def test_the_command_writes_the_page_and_prints_its_name(folders: list[str], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = compare(*folders, "-o", f"html={file}")
    assert (done.exit_code, done.stdout) == (0, f"{file}\n")
    assert "no difference from A that these 20 rows can show" in Page(file.read_text()).text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b", "page.html"]


def test_a_file_is_replaced_with_force_alone(folders: list[str], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("mine")
    done = compare(*folders, "-o", f"html={file}")
    assert done.exit_code == 1
    assert done.stderr == (
        f"Error: {file} exists already.\nFix:   Choose another file, or replace it with --force.\n"
    )
    assert file.read_text() == "mine"
    assert compare(*folders, "-o", f"html={file}", "--force").exit_code == 0
    assert file.read_text().startswith("<!doctype html>")


def test_runs_that_are_refused_write_no_page(folders: list[str], tmp_path: Path) -> None:
    from tests.unit.cli.test_compare import written

    other = written(tmp_path / "other", rows(21, seed=2))
    done = compare(folders[0], other, "-o", f"html={tmp_path}/page.html")
    assert done.exit_code == 1
    assert "The evaluations measure different rows" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_place_that_cannot_be_written_is_an_error(folders: list[str], tmp_path: Path) -> None:
    done = compare(*folders, "-o", f"html={tmp_path}/none/page.html")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {tmp_path}/none/page.html: No such file or directory")


def test_json_does_not_load_jinja2(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert compare(*folders, "-o", "json").exit_code == 0


@pytest.mark.parametrize("output", ["html", "html=", "xml=page", "text=page", ""])
def test_an_unknown_output_is_a_wrong_argument(output: str) -> None:
    done = compare("a", "b", "-o", output)
    assert done.exit_code == 2
    assert "is not one of 'text', 'json', 'html=FILE'" in " ".join(done.stderr.replace("│", " ").split())
