"""The words of every error in an object: what is wrong with a value, and what to write instead."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from finetune_operator.api.numbers import canonical, unquoted
from finetune_operator.api.paths import known_fields, only_required_text

_WORD = "letters, digits, '-', '_' and '.'"
#: Text that YAML writes without quotes and reads as text.
_PLAIN = re.compile(r"(?!(?:true|false|null|yes|no|on|off|[yn])$)[A-Za-z][-\w./]{0,63}", re.IGNORECASE)
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


def unknown_field(location: Sequence[int | str], value: Any, known: Sequence[str]) -> str:
    """Returns the message for a field that its object, which has the fields ``known``, does not have."""
    name = str(location[-1])
    if location[-2:-1] == ("columns",) and value in known:
        return f"unknown field: write {{{value}: {name}}}, our name of the column first"
    return "unknown field" + did_you_mean(name, known)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Returns ``: did you mean learningRate?``, or the list of known words, or nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6) or _same_letters(word, known)
    if close:
        return f": did you mean {close[0]}?"
    return f": expected one of {', '.join(known)}" if known else ""


def _same_letters(word: str, known: Sequence[str]) -> list[str]:
    """Returns the known words that differ from ``word`` in case, underscores and hyphens alone."""

    def plain(value: str) -> str:
        return value.lower().replace("_", "").replace("-", "")

    return [each for each in known if plain(each) == plain(word)]


#: difflib's ratio from which a value counts as a misspelling. Names of methods are short: GRPO shares three letters
#: with ORPO but is another method.
_MISTYPED = 0.8


def one_of(word: str, known: Sequence[str]) -> str:
    """Returns ``: expected one of SFT, DPO, ORPO``, preceded by the most similar word, if there is one."""
    close = _same_letters(word, known) or difflib.get_close_matches(word, known, n=1, cutoff=_MISTYPED)
    listed = f"xpected one of {', '.join(known)}"
    return f": did you mean {close[0]}? E{listed}" if close else f": e{listed}"


def shown(value: Any) -> str:
    """Formats a value for a message: long texts are truncated, objects and lists are named by their type."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 64 else f'"{value[:61]}…"'
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return str(value)[:64]


def too_many(number: int, most: int) -> str:
    """Returns the message for a list or a map of more than ``most`` entries."""
    return f"has {number} entries, may have at most {most}"


#: The type that a field requires, by pydantic's type of error.
_REQUIRED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "tuple_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
}
#: Bounds by pydantic's type of error: the key of the limit in its context, and words.
_BOUNDS = {
    "greater_than": ("gt", "must be above"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be below"),
    "less_than_equal": ("le", "may be at most"),
}


def worded(model: type[BaseModel], detail: ErrorDetails) -> tuple[str, str]:
    """Returns message and fix for one of pydantic's errors in a document of ``model``.

    The fix is empty if the message includes it.
    """
    location, actual, context = detail["loc"], detail["input"], detail.get("ctx", {})
    message, fix = detail["msg"].removeprefix("Value error, "), ""
    match detail["type"]:
        case "missing":
            message = "required, but not set"
        case "extra_forbidden":
            message = unknown_field(location, actual, known_fields(model, location[:-1]))
        case "enum" | "literal_error":
            # 'SFT', 'DPO' or 'ORPO'
            values = re.findall(r"'([^']+)'", context["expected"])
            message = f"unknown value {shown(actual)}{one_of(str(actual)[:64], values)}"
        case "string_pattern_mismatch":
            message = f"must be {form(context['pattern'])}, not {shown(actual)}"
            if actual.startswith("hf://") and "hf://models/" in message:
                fix = f"For a model or tokenizer, write hf://models/{actual.removeprefix('hf://')}."
        case "string_too_short" | "too_short":
            message, fix = "must not be empty", "Leave the field out instead."
        case "string_too_long":
            message = f"has {len(actual)} characters, may have at most {context['max_length']}"
        case "too_long":
            message = too_many(len(actual), context["max_length"])
        case kind if kind in _BOUNDS:
            limit, words = _BOUNDS[kind]
            message = f"is {shown(actual)}, {words} {canonical(context[limit])}"
        case kind if kind in _REQUIRED:
            message, fix = _of_another_type(actual, _REQUIRED[kind])
            name = only_required_text(model, location) if isinstance(actual, str) else None
            if name and _REQUIRED[kind] == "an object":
                fix = f"Write {{{name}: {actual if _PLAIN.fullmatch(actual) else '…'}}}."
    return message, fix


def _of_another_type(actual: Any, required: str) -> tuple[str, str]:
    whole = required == "an integer"
    if isinstance(actual, str) and required in ("an integer", "a number"):
        if said := unquoted(actual, whole=whole):
            return said, ""
        fix = f"Write {'a whole' if whole else 'the'} number alone, without a unit."
    elif whole and isinstance(actual, float) and actual.is_integer():
        return f"is {actual:g}, too {'small' if actual < 0 else 'large'} for an integer", ""
    elif required == "a string" and isinstance(actual, int | float | bool):
        fix = "Write it in quotes."
    elif required == "a boolean" and isinstance(actual, str):
        fix = "Write it without quotes."
    else:
        fix = "Leave the field out, or give it a value." if actual is None else ""
    return f"must be {required}, not {shown(actual)}", fix
