"""Explanations of the schema's patterns, for messages to users."""

from collections.abc import Mapping

_WORD = "letters, digits, '-', '_' and '.'"
_LABEL = "lower-case letters, digits and '-', first and last none of '-'"
#: Descriptions by pattern, each of which completes "must be …".
FORMS: Mapping[str, str] = {
    r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$": 'a number in a string, such as "0.1"',
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": _LABEL,
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'",
    r"^[a-z]([-a-z0-9]*[a-z0-9])?$": f"{_LABEL}, first a letter",
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?|\*)$": "the name of a namespace, or * for every one",
    r"^[-._a-zA-Z0-9]+$": _WORD,
    r"^[-._a-z0-9]+$": "lower-case letters, digits, '-', '_' and '.'",
    r"^[A-Za-z0-9][-_.()A-Za-z0-9]*$": "letters, digits, '-', '_', '.' and parentheses, first a letter or digit",
    r"^[a-z_]+$": "lower-case letters and '_'",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of a variable: letters, digits and '_', first no digit",
    r"^[A-Za-z_][A-Za-z0-9_.]*$": "a setting of MaxText: letters, digits, '_' and '.'",
    r"^--[A-Za-z0-9_]+(=[A-Za-z0-9_.,:;/+@%-]*)?$": "a flag of XLA, --name=value, without spaces",
    r"^[A-Z]{3}$": "a currency of three capitals, such as USD",
    r"^[^\s]+$": "without spaces",
    r"^[a-z0-9]+-[0-9]+(x[0-9]+(x[0-9]+)?)?$": "a family and a size or topology, such as v6e-16 or v6e-4x4",
    r"^[0-9]+x[0-9]+(x[0-9]+)?$": "a topology, such as 4x4 or 2x2x4",
    r"^[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?$": (
        f"a repository, OWNER/NAME, such as Qwen/Qwen3-0.6B, of {_WORD}"
    ),
    r"^[-._/A-Za-z0-9]+$": f"a branch, tag or commit, of {_WORD} and '/'",
    r"^(gs://[a-z0-9]|file:///).+": "gs://bucket/path or file:///path",
    r"^((gs|file)://|hf://(models|datasets|benchmarks)/).+": (
        "gs://…, file://…, hf://models/…, hf://datasets/… or hf://benchmarks/…"
    ),
    r"^(gs|file|hf)://.+": "gs://…, file://… or hf://OWNER/NAME",
    r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$": "a quantity, such as 115Gi",
    r"^[a-z][A-Za-z0-9]*(\.[a-z][A-Za-z0-9]*)*$": "a field of a job's spec, such as hyperparameters.epochs",
    (
        r"^(projects/[a-z]([-a-z0-9]{0,61}[a-z0-9])?/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
        r"(/reservationBlocks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?(/reservationSubBlocks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?)?)?$"
    ): "the name of a reservation, or projects/PROJECT/reservations/NAME, with its block where it has some",
}


def form(pattern: str) -> str:
    """Returns a description of the text that matches the pattern."""
    return FORMS.get(pattern, "of another form")
