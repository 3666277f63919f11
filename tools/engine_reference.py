"""Reference page of ``engineOverrides``: the engine settings that a job may set, and why it may not set others."""

from collections.abc import Iterator
from itertools import groupby

from finetune_contract.engine import Setting, SettingClass, describe_type, engine_settings

_INTRODUCTION = """\
# engineOverrides

`spec.engineOverrides` of a FineTuneJob sets MaxText's settings by their own names. Each setting of the pinned MaxText
has a class:

| class | settings | who sets it |
|---|---|---|
{classes}

Values are strings, written as on MaxText's command line: `"true"`, `"512"`, `"1e-8"`, `full`. A misspelt key, a key of
another class and a value of another type are refused by `finetune validate`, by `finetune plan`, at admission, and
again by the trainer. `constraints.engineOverrides.allow` of a profile narrows the class Allowed; nothing opens another
class. A setting that a new MaxText brings is refused until it has a class.
"""
_ROLES = {
    SettingClass.ALLOWED: "a job, within its profile's `constraints.engineOverrides.allow`",
    SettingClass.DECIDED: "the field of the API that is listed below, or the trainer itself",
    SettingClass.DANGEROUS: "no job and no profile: it reaches beyond the job, or breaks recovery or accounting",
}


def engine_reference() -> str:
    """Returns the page in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    classes = (f"| {each} | {len(_of(each))} | {role} |" for each, role in _ROLES.items())
    yield _INTRODUCTION.format(classes="\n".join(classes))
    yield "## Allowed\n\n| setting | value | what it does |\n|---|---|---|"
    for setting in _of(SettingClass.ALLOWED):
        yield f"| `{setting.name}` | {describe_type(setting)} | {setting.note} |"
    yield "\n## Decided\n\n| by | settings |\n|---|---|"
    yield from _grouped(SettingClass.DECIDED, "`{}`")
    yield "\n## Dangerous\n\n| because it | settings |\n|---|---|"
    yield from _grouped(SettingClass.DANGEROUS, "{}")
    yield ""


def _of(kind: SettingClass) -> list[Setting]:
    return [setting for setting in engine_settings().values() if setting.kind is kind]


def _grouped(kind: SettingClass, shown: str) -> Iterator[str]:
    settings = sorted(_of(kind), key=lambda setting: (setting.note, setting.name))
    for note, group in groupby(settings, key=lambda setting: setting.note):
        title = shown.format(note) if note.startswith("spec.") or shown == "{}" else note
        yield f"| {title} | {', '.join(f'`{setting.name}`' for setting in group)} |"
