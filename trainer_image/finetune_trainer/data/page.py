"""Renders the data report as one HTML file without scripts or external resources. All text from the data is escaped."""

import json
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from finetune_contract import DataReport


def render(found: DataReport) -> str:
    """Returns the report as HTML."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["count"] = lambda number: f"{number:,}"
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    template = environment.from_string(
        files("finetune_trainer.data").joinpath("page.html.j2").read_text("utf-8")
    )
    text: str = template.render(found=found)
    return text


def samples_jsonl(found: DataReport) -> str:
    """Returns the rendered sample rows, one JSON object per line, with trained parts enclosed in ⟦⟧."""
    lines = [
        {
            "dataset": row.dataset,
            "row": row.row,
            "text": "".join(f"⟦{text}⟧" if trained else text for trained, text in row.pieces),
            "tokens": row.tokens,
            "trained": row.trained,
        }
        for row in found.samples
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
