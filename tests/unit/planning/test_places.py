"""What a job may read and write: its namespace's folders, and what the profile lists."""

import re
from fnmatch import _compile_pattern, fnmatchcase  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from finetune_operator.api import InvalidObject, Reason, parse_job, parse_profile
from finetune_operator.planning import Refused, admit, replan
from finetune_operator.planning.policy.locations import (
    Location,
    ProfileFolders,
    covers,
    location_problem,
    matches,
    run_folder_problem,
)
from tests.unit.lifecycle.world import job, profile

STORAGE = ProfileFolders(
    artifacts="gs://art/runs",
    namespace="team-a",
    shared={"cache": "gs://art/runs/cache", "pathwaysScratch": "gs://art/runs/pathways"},
)
OWN = "gs://art/runs/team-a"


def problem(
    uri: str,
    rule: Any = "read",
    listed: tuple[str, ...] | None = None,
    *,
    strict: bool = True,
    folder: bool = True,
) -> str | None:
    place = Location(path="spec.x", uri=uri, folder=folder)
    return location_problem(place, STORAGE, rule, listed, strict=strict)


# --- by text


@pytest.mark.parametrize(
    ("rule", "uri", "folder"),
    [
        ("read", f"{OWN}/support-bot-12345678/export/model", True),
        ("read", f"{OWN}/support-bot-12345678/export/model/", True),
        ("read", f"{OWN}/*/preflight/samples.jsonl", False),
        ("read", f"{OWN}/exports/m", True),
        ("write", f"{OWN}/exports/m", True),
        ("write", f"{OWN}/exports/team-b/m", True),
    ],
)
def test_folders_of_the_namespace_need_no_entry(rule: Any, uri: str, folder: bool) -> None:
    assert problem(uri, rule, folder=folder) is None
    assert problem(uri, rule, (), strict=False, folder=folder) is None


HOSTILE: list[tuple[str, str, bool]] = [
    ("read", "gs://art/runs/team-b/victim-12345678/export/model", True),
    ("read", "gs://art/runs/team-ab/victim-12345678/export/model", True),
    ("read", "gs://art/runs/Team-A/x", True),
    ("read", "gs://art/runs/team-b*/x/preflight/samples.jsonl", False),
    ("read", "gs://art/runs/*/preflight/samples.jsonl", False),
    ("read", "gs://art/runs/*/*/preflight/samples.jsonl", False),
    ("read", "gs://art/runs/team-?/x/a.jsonl", False),
    ("read", "gs://art/runs/team-[ab]/x/a.jsonl", False),
    ("read", "gs://art/r*/team-b/x/a.jsonl", False),
    ("read", "gs://art/*/team-a/x/a.jsonl", False),
    ("read", "gs://art/runs/team-b/a.jsonl", False),
    ("read", "gs://art/runs/a.jsonl", False),
    ("read", "gs://art/runs/cache/convert/f1/items", True),
    ("read", "gs://art/runs/cache/data/f1/tokens.bin", False),
    ("read", "gs://art/runs/c*/data/f1/tokens.bin", False),
    ("read", "gs://art/runs/pathways/x", True),
    ("read", "gs://art/runs", True),
    ("read", "gs://art", True),
    ("read", OWN, True),
    ("write", OWN, True),
    ("write", f"{OWN}/exports", True),
    ("write", f"{OWN}/exports/", True),
    ("write", f"{OWN}/exportsx/m", True),
    ("write", f"{OWN}/other-12345678/attempts/eval-999", True),
    ("write", f"{OWN}/other-12345678/train/checkpoints", True),
    ("write", "gs://art/runs/team-b/exports/m", True),
    ("write", "gs://art/runs/team-b/victim-12345678/export/model", True),
    ("write", "gs://art/runs/cache/convert/f1", True),
    ("write", "gs://art/runs/pathways", True),
    ("write", "gs://art", True),
]
#: Entries whose text covers everything and that name none of these folders.
BROAD = ("gs://*", "gs://art/*", "gs://art/runs/*", "gs://art*", "gs://art/runs/team-*")


@pytest.mark.parametrize("listed", [None, (), BROAD], ids=["not set", "empty", "broad"])
@pytest.mark.parametrize("strict", [True, False], ids=["Strict", "Open"])
@pytest.mark.parametrize(("rule", "uri", "folder"), HOSTILE)
def test_broad_entries_never_open_the_profiles_storage(
    rule: Any, uri: str, folder: bool, listed: tuple[str, ...] | None, strict: bool
) -> None:
    assert problem(uri, rule, listed, strict=strict, folder=folder) is not None


@pytest.mark.parametrize(
    ("rule", "uri", "entry"),
    [
        ("read", "gs://art/runs/team-b/model-1/export/model", "gs://art/runs/team-b/*"),
        ("read", "gs://art/runs/team-b/model-1/export/model", "gs://art/runs/team-b/model-1/export/model"),
        ("read", "gs://art/runs/cache/convert/f1", "gs://art/runs/cache/convert/*"),
        ("write", "gs://art/runs/team-b/exports/m", "gs://art/runs/team-b/exports/*"),
        ("write", "gs://art/runs/shared/models/m", "gs://art/runs/shared/models/*"),
    ],
)
def test_an_entry_that_names_a_folder_opens_it(rule: Any, uri: str, entry: str) -> None:
    assert problem(uri, rule, (entry,)) is None


@pytest.mark.parametrize(
    "entry", ["gs://art/runs/team-a/*", "gs://art/runs/team-b/*", "gs://art/runs/team-b*"]
)
def test_the_namespaces_name_alone_does_not_open_a_run_folder_for_exports(entry: str) -> None:
    for folder in ("team-a/other-12345678/export", "team-b/victim-12345678/export"):
        assert problem(f"gs://art/runs/{folder}", "write", (entry,)) is not None


def test_a_broad_entry_opens_folders_beside_the_storage() -> None:
    assert problem("gs://art/models/base", listed=("gs://art/*",)) is None
    assert problem("gs://art/published/m", "write", ("gs://art/*",)) is None
    assert problem("gs://art/*/rows.jsonl", listed=("gs://art/*",), folder=False) is not None
    assert problem("gs://art/sets/*/rows.jsonl", listed=("gs://art/*",), folder=False) is None


#: Parts of a glob that can match one letter, and parts between two.
ONE, MANY = ("{}", "{}", "?", "[{}]", "[!z]", "[*{}]"), ("", "", "", "*")


@st.composite
def matching(draw: st.DrawFn) -> tuple[str, str]:
    """Yields a name in a bucket and a glob that matches it as the trainer does: name by name."""
    text = draw(st.lists(st.sampled_from(["a", "b", "aa", "ab", "]", "b]a"]), min_size=1, max_size=4))
    glob = []
    for name in text:
        pieces = [draw(st.sampled_from(ONE)).format(letter) + draw(st.sampled_from(MANY)) for letter in name]
        glob.append(draw(st.sampled_from(["*", name, "".join(pieces), "".join(pieces)])))
    assume(all(map(fnmatchcase, text, glob)))
    return "/".join(text), "/".join(glob)


@settings(max_examples=300)
@given(pair=matching(), entry=st.text(alphabet="ab/*]", max_size=8))
def test_an_entry_that_covers_a_glob_covers_all_its_matches(pair: tuple[str, str], entry: str) -> None:
    text, glob = pair
    if covers(f"gs://x/{entry}", f"gs://x/{glob}"):
        assert covers(f"gs://x/{entry}", f"gs://x/{text}")


@settings(max_examples=300)
@given(pair=matching())
def test_an_allowed_glob_matches_nothing_of_another_namespace(pair: tuple[str, str]) -> None:
    """With an entry for the whole bucket that contains the storage."""
    text, glob = pair
    storage = ProfileFolders(artifacts="gs://x/a", namespace="aa", shared={"cache": "gs://x/a/b"})
    place = Location(path="spec.x", uri=f"gs://x/{glob}", folder=False)
    if location_problem(place, storage, "read", ("gs://x/*",), strict=True) is None:
        assert not text.startswith("a/") or text.startswith("aa/", 2)


@settings(max_examples=1000)
@given(pattern=st.text(alphabet="ab/.\n*", max_size=10), text=st.text(alphabet="ab/.\n*", max_size=10))
def test_a_star_matches_like_fnmatch(pattern: str, text: str) -> None:
    assert matches(pattern, text) == fnmatchcase(text, pattern)


@settings(max_examples=300)
@given(text=st.text(alphabet="ab/", max_size=12), data=st.data())
def test_a_star_matches_any_part(text: str, data: st.DataObject) -> None:
    cuts = st.integers(0, len(text))
    pattern = text
    for _ in range(3):
        start, end = sorted((data.draw(cuts), data.draw(cuts)))
        pattern = f"{pattern[:start]}*{pattern[end:]}"
    assert matches(pattern, text) == fnmatchcase(text, pattern)


def test_values_named_by_jobs_are_not_cached() -> None:
    """The operator checks the jobs of all tenants, for months."""
    before = _compile_pattern.cache_info().misses
    for uri in ("gs://name-of-a-tenant/x*", "gs://art/r?ns/[ab]*c/x", "gs://art/runs/team-a/*/x"):
        problem(uri, listed=("gs://other/*", "gs://art/[x]?"), folder=False)
    assert _compile_pattern.cache_info().misses == before


def entry_of(message: str, rule: str) -> str | None:
    """Returns the entry that a refusal names, as users copy it."""
    found = re.search(rf'add "([^"]+)" to spec\.constraints\.uris\.{rule} of the profile$', message)
    return found[1] if found else None


NAMES = st.sampled_from(
    ["runs", "team-a", "team-b", "cache", "exports", "pathways", "j-1", "m", "*", "t*m-b"]
)


@settings(max_examples=300)
@given(
    names=st.lists(NAMES, max_size=5),
    start=st.sampled_from(["gs://art/runs", "gs://art", "gs://other"]),
    rule=st.sampled_from(["read", "write"]),
    listed=st.sampled_from([None, (), BROAD, ("gs://other/m",)]),
    slash=st.booleans(),
)
def test_the_entry_named_in_a_refusal_opens_the_place(
    names: list[str], start: str, rule: Any, listed: tuple[str, ...] | None, slash: bool
) -> None:
    uri = "/".join([start, *names])
    is_glob = "*" in uri
    message = problem(uri + "/" * (slash and not is_glob), rule, listed, folder=not is_glob)
    if message is not None and (entry := entry_of(message, rule)):
        assert not entry.endswith("/")
        assert problem(uri, rule, (*(listed or ()), entry), folder=not is_glob) is None


@pytest.mark.parametrize(
    ("rule", "uri", "advice"),
    [
        ("read", "gs://art/runs/team-b/j-1/export/model", "use data of your own"),
        ("read", "gs://art/runs/team-b/", "use data of your own"),
        ("read", "gs://art/runs/cache/convert/f1", "use data of your own"),
        ("read", "gs://art/runs/pathways/x", "use data of your own"),
        ("write", "gs://art/runs/team-b/exports/m", "use a folder there"),
        ("write", f"{OWN}/other-12345678/export", "use a folder there"),
        ("read", "gs://art", "use data of your own"),
    ],
)
def test_no_refusal_suggests_an_entry_that_opens_foreign_folders(rule: Any, uri: str, advice: str) -> None:
    for listed in (None, (), BROAD):
        message = problem(uri, rule, listed)
        assert message is not None
        assert message.endswith(advice)
        assert "add" not in message


@pytest.mark.parametrize(
    ("rule", "uri", "folder", "entry"),
    [
        ("read", "gs://other/sets/x.jsonl", False, "gs://other/sets/*"),
        ("read", "gs://other/sets/*/x.jsonl", False, "gs://other/sets/*"),
        ("read", "gs://other/x.jsonl", False, "gs://other/x.jsonl"),
        ("read", "gs://other/*.jsonl", False, None),
        ("read", "gs://other/*/x.jsonl", False, None),
        ("read", "gs://other", True, None),
        ("write", "gs://other/m", True, "gs://other/m"),
        ("write", "gs://other", True, None),
        ("read", "hf://benchmarks/gsm8k", True, "hf://benchmarks/gsm8k"),
        ("write", "hf://m", True, "hf://m"),
    ],
)
def test_no_refusal_suggests_an_entry_for_a_whole_bucket(
    rule: Any, uri: str, folder: bool, entry: str | None
) -> None:
    message = problem(uri, rule, folder=folder)
    assert message is not None
    assert entry_of(message, rule) == entry


@pytest.mark.parametrize("listed", [(), BROAD], ids=["empty", "broad"])
@pytest.mark.parametrize(
    "folder",
    [
        "gs://art/runs/team-b/j-1",
        "gs://art/runs/team-b/j-1/",
        "gs://art/runs/team-b/exports",
        "gs://art/runs/team-b/j-1/train",
        "gs://art/runs/cache/j-1",
        "gs://art/runs",
    ],
)
def test_a_refused_run_folder_of_another_namespace_suggests_no_entry(
    folder: str, listed: tuple[str, ...]
) -> None:
    listed = tuple(each for each in listed if not each.startswith("gs://art/runs/team"))
    message = run_folder_problem("spec.x", folder, STORAGE, listed)
    assert message is not None
    assert message.endswith("use a run folder of your own namespace")


def test_a_refused_run_folder_elsewhere_suggests_its_entry() -> None:
    message = run_folder_problem("spec.x", "gs://other/j-1/", STORAGE, ())
    assert message is not None
    assert entry_of(message, "write") == "gs://other/j-1"
    assert run_folder_problem("spec.x", "gs://other/j-1/", STORAGE, ("gs://other/j-1",)) is None


@pytest.mark.parametrize(
    ("glob", "allowed"),
    [
        ("gs://art/[0-9][0-9]/x.jsonl", True),
        ("gs://art/??/x.jsonl", True),
        ("gs://art/?uns/team-b/x", False),
        ("gs://art/[a-s]uns/team-b/x", False),
        ("gs://art/[!a]uns/team-b/x", False),
        ("gs://art/[r/team-b/x", False),
        ("gs://art/r*/team-b/x", False),
    ],
)
def test_a_glob_touches_the_profiles_storage_only_if_it_can_match_it(glob: str, allowed: bool) -> None:
    """Its artifacts are gs://art/runs."""
    message = location_problem(
        Location(path="spec.x", uri=glob, folder=False), STORAGE, "read", ("gs://art/*",), strict=True
    )
    assert (message is None) is allowed, message


@pytest.mark.parametrize("listed", [(), ("file:///*",), ("file:///tmp/team-a/j-1",)])
def test_a_run_folder_is_never_in_the_file_system_of_a_pod(listed: tuple[str, ...]) -> None:
    message = run_folder_problem("spec.x", "file:///tmp/team-a/j-1", STORAGE, listed)
    assert message is not None
    assert "is the file system of a pod" in message


# --- in an admission


def strict(**spec: Any) -> dict[str, Any]:
    """A profile that allows the job's model and data, and lists nothing else."""
    constraints = {
        "mode": "Strict",
        "uris": {"read": ["gs://models/*", "gs://data/*"]},
        **spec.pop("constraints", {}),
    }
    if "namespaces" not in spec:
        spec["namespaces"] = ["team-a"]
    return profile(constraints=constraints, **spec)


def refusal(wanted: Any, *profiles: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(wanted, profiles)
    return caught.value


def test_strict_is_the_default_mode() -> None:
    found = strict()
    del found["spec"]["constraints"]["mode"]
    refused = refusal(job(export={"destinations": [{"uri": "gs://elsewhere/m"}]}), found)
    assert refused.reason == Reason.POLICY_VIOLATION
    admission = admit(job(), [found])
    assert admission.stored.profile["constraints"]["mode"] == "Strict"


HUB_ROWS = {"huggingFace": {"repo": "HuggingFaceH4/ultrachat_200k"}}
ROWS = {"uri": "gs://data/chat.jsonl"}
LISTED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        {"datasets": {"train": [{"uri": "gs://other/set/*.jsonl"}]}},
        'train[0].uri gs://other/set/*.jsonl: to allow it, add "gs://other/set/*" to spec.constraints.uris.read',
        {"read": ["gs://other/set/*", "gs://models/*"]},
    ),
    (
        {"datasets": {"train": [HUB_ROWS]}},
        'add "hf://datasets/HuggingFaceH4/ultrachat_200k" to spec.constraints.uris.read',
        {"read": ["hf://datasets/HuggingFaceH4/*", "gs://models/*"]},
    ),
    (
        {"datasets": {"train": [ROWS], "validation": [HUB_ROWS]}},
        "spec.datasets.validation[0].huggingFace.repo hf://datasets/HuggingFaceH4/ultrachat_200k",
        {"read": ["hf://datasets/*", "gs://*"]},
    ),
    (
        {"evaluation": {"datasets": [{**HUB_ROWS, "name": "chat"}]}},
        "spec.evaluation.datasets[0].huggingFace.repo hf://datasets/",
        {"read": ["hf://datasets/HuggingFaceH4/ultrachat_200k", "gs://*"]},
    ),
    (
        {"evaluation": {"benchmarks": [{"name": "gsm8k"}]}},
        "spec.evaluation.benchmarks[0].name hf://benchmarks/gsm8k",
        {"read": ["hf://benchmarks/gsm8k", "gs://*"]},
    ),
    (
        {"evaluation": {"benchmarks": [{"name": "mine", "uri": "gs://elsewhere/tasks"}]}},
        "spec.evaluation.benchmarks[0].uri gs://elsewhere/tasks",
        {"read": ["gs://*"]},
    ),
    (
        {"model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}},
        'spec.model.huggingFace.repo hf://models/Qwen/Qwen3-0.6B: to allow it, add "hf://models/Qwen/Qwen3-0.6B"',
        {"read": ["hf://models/Qwen/*", "gs://data/*"]},
    ),
    (
        {"model": {"uri": "gs://models/tiny", "tokenizer": {"huggingFace": {"repo": "evil/tokenizer"}}}},
        "spec.model.tokenizer.huggingFace.repo hf://models/evil/tokenizer",
        {"read": ["hf://models/evil/tokenizer", "gs://*"]},
    ),
    (
        {"export": {"destinations": [{"uri": "gs://published/m"}]}},
        'add "gs://published/m" to spec.constraints.uris.write',
        {"read": ["gs://*"], "write": ["gs://published/*"]},
    ),
    (
        {
            "export": {"destinations": [{"huggingFaceHub": {"repo": "acme/m"}}]},
            "huggingFaceTokenSecretRef": {"name": "hf"},
        },
        "spec.export.destinations[0].huggingFaceHub.repo hf://acme/m",
        {"read": ["gs://*"], "write": ["hf://acme/*"]},
    ),
]


@pytest.mark.parametrize(("requested", "expected", "entries"), LISTED)
def test_strict_refuses_unlisted_places_and_names_the_entry(
    requested: dict[str, Any], expected: str, entries: dict[str, Any]
) -> None:
    refused = refusal(job(**requested), strict())
    assert refused.reason == Reason.POLICY_VIOLATION
    assert expected in refused.message
    assert refused.message.endswith("Ask #ml-help.")
    assert admit(job(**requested), [strict(constraints={"uris": entries})]).plan
    assert admit(job(**requested), [profile()]).plan


def test_a_refused_model_in_foreign_storage_suggests_no_entry() -> None:
    taken = job(model={"uri": "gs://artifacts/team-b/exports/m"})
    refused = refusal(taken, strict(models={"allow": ["Qwen/*"]}))
    assert "models.allow is Qwen/*, which does not cover spec.model gs://artifacts/team-b/" in refused.message
    assert "add" not in refused.message


@pytest.mark.parametrize("mode", ["Strict", "Open"])
@pytest.mark.parametrize("read", [None, ["gs://*"], ["gs://*", "hf://models/evil/*"]])
def test_a_hub_model_is_refused_by_models_allow_only_and_with_one_fix(mode: str, read: Any) -> None:
    uris = {} if read is None else {"uris": {"read": read}}
    listed = profile(models={"allow": ["Qwen/*"]}, namespaces=["*"], constraints={"mode": mode, **uris})
    local = {"train": [{"uri": "gs://artifacts/team-a/exports/x.jsonl"}]}
    refused = refusal(job(model={"huggingFace": {"repo": "evil/model"}}, datasets=local), listed)
    assert refused.message == (
        'profile "local": models.allow is Qwen/*, which does not cover spec.model evil/model: use a model that it '
        'covers; to allow this one, add "evil/model" to spec.models.allow of the profile. Ask #ml-help.'
    )
    assert admit(job(model={"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}, datasets=local), [listed]).plan


def test_a_refused_tokenizer_names_only_entries_that_the_profile_holds() -> None:
    tokenizer = {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}, "tokenizer": {"huggingFace": {"repo": "evil/t"}}}
    refused = refusal(job(model=tokenizer), strict(models={"allow": ["Qwen/*"]}))
    assert "constraints.uris.read is gs://models/*, gs://data/*, which does not cover" in refused.message
    assert "hf://models/Qwen" not in refused.message
    assert refused.message.count("add ") == 1
    opened = profile(models={"allow": ["Qwen/*"]}, constraints={"mode": "Open"})
    assert "constraints.uris.read is not set, which does not" in refusal(job(model=tokenizer), opened).message


def test_a_repository_in_models_allow_needs_no_second_entry() -> None:
    allowed = strict(models={"allow": ["Qwen/*"]})
    hub = {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}
    assert admit(job(model=hub), [allowed]).plan
    assert admit(job(model={**hub, "tokenizer": {"huggingFace": {"repo": "Qwen/other"}}}), [allowed]).plan
    for mode in ("Strict", "Open"):
        listed = profile(
            models={"allow": ["Qwen/*"]},
            namespaces=["*"],
            constraints={"mode": mode, "uris": {"read": ["gs://*"]}},
        )
        other = {**hub, "tokenizer": {"huggingFace": {"repo": "evil/tokenizer"}}}
        assert "spec.model.tokenizer.huggingFace.repo" in refusal(job(model=other), listed).message
        assert "models.allow" in refusal(job(model={"huggingFace": {"repo": "evil/model"}}), listed).message


def test_a_uri_in_models_allow_must_still_be_a_readable_place() -> None:
    allowed = strict(models={"allow": ["gs://*"]})
    assert (
        "spec.model.uri gs://elsewhere/m" in refusal(job(model={"uri": "gs://elsewhere/m"}), allowed).message
    )


@pytest.mark.parametrize(
    ("namespaces", "mode", "admitted"),
    [
        (["team-a"], "Strict", True),
        (["*"], "Strict", True),
        (["team-b"], "Strict", False),
        ([], "Strict", False),
        (None, "Strict", False),
        ([], "Open", True),
        (None, "Open", True),
        (["team-b"], "Open", False),
    ],
)
def test_which_namespaces_a_profile_serves(namespaces: Any, mode: str, admitted: bool) -> None:
    given_ = {} if namespaces is None else {"namespaces": namespaces}
    found = profile(constraints={"mode": mode, "uris": {"read": ["gs://*"]}}, **given_)
    if admitted:
        assert admit(job(), [found]).plan
    else:
        named = job(profileRef={"name": found["metadata"]["name"]})
        refused = refusal(named, found)
        assert refused.reason == Reason.PROFILE_NOT_ALLOWED
        assert 'add "team-a" to spec.namespaces' in refused.message


def test_file_paths_are_refused_if_the_profiles_storage_is_a_bucket() -> None:
    for requested in (
        {"model": {"uri": "file:///etc"}},
        {"datasets": {"train": [{"uri": "file:///proc/self/environ"}]}},
        {"export": {"destinations": [{"uri": "file:///tmp/m"}]}},
    ):
        refused = refusal(job(**requested), profile())
        assert "is the file system of a pod" in refused.message
    local = profile(storage={"artifacts": "file:///srv/runs", "cache": "file:///srv/cache"})
    assert admit(job(model={"uri": "file:///models/tiny"}), [local]).plan
    assert (
        "file:///srv/cache/convert/f"
        in refusal(job(model={"uri": "file:///srv/cache/convert/f"}), local).message
    )


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (
            {"artifacts": "gs://a/runs", "cache": "gs://a/runs"},
            "spec.storage.cache: gs://a/runs is spec.storage.artifacts",
        ),
        (
            {"artifacts": "gs://a/runs", "cache": "gs://a/"},
            "spec.storage.artifacts: gs://a/runs is in spec.storage.cache, gs://a",
        ),
        (
            {"artifacts": "gs://a/runs", "pathwaysScratch": "gs://a/"},
            "spec.storage.artifacts: gs://a/runs is in spec.storage.pathwaysScratch, gs://a",
        ),
        (
            {"artifacts": "gs://art", "cache": "gs://art/team-a"},
            "spec.storage.cache: gs://art/team-a is in spec.storage.artifacts, gs://art",
        ),
        (
            {"artifacts": "gs://art", "pathwaysScratch": "gs://art/team-a/x"},
            "spec.storage.pathwaysScratch: gs://art/team-a/x is in spec.storage.artifacts, gs://art",
        ),
        (
            {"artifacts": "gs://art", "cache": "gs://pool", "pathwaysScratch": "gs://pool/team-a"},
            "spec.storage.pathwaysScratch: gs://pool/team-a is in spec.storage.cache, gs://pool",
        ),
        ({"artifacts": "gs://art/runs", "cache": "file:///cache"}, "is a file system"),
    ],
)
def test_overlapping_folders_make_a_profile_invalid(storage: Any, expected: str) -> None:
    refused = refusal(job(), profile(storage=storage))
    assert refused.reason == Reason.PROFILE_INVALID
    assert expected in refused.message


@pytest.mark.parametrize("namespace", ["cache", "pathways"])
def test_every_namespace_has_a_cache_folder_by_default(namespace: str) -> None:
    wanted = job()
    wanted["metadata"]["namespace"] = namespace
    plan = admit(wanted, [profile(storage={"artifacts": "gs://artifacts"})]).plan
    assert plan.cache.uri == f"gs://artifacts/{namespace}/cache"


def test_the_cache_of_a_namespace_is_no_run_folder_or_export_destination() -> None:
    for folder in ("cache", "pathways", "programs", "exports"):
        refused = refusal(job(resumeFrom={"runFolder": f"gs://artifacts/team-a/{folder}"}), profile())
        assert "is neither a run folder in gs://artifacts/team-a/" in refused.message
    inside = {"destinations": [{"uri": "gs://artifacts/team-a/cache/convert/f1"}]}
    refused = refusal(job(export=inside), profile(storage={"artifacts": "gs://artifacts"}))
    assert "is in the profile's own storage" in refused.message


def test_no_broad_entry_allows_writing_compiled_programs() -> None:
    inside = {"destinations": [{"uri": "gs://artifacts/team-a/programs/x"}]}
    listed = {"uris": {"write": ["gs://artifacts/*", "gs://artifacts/team-a/*"]}}
    refused = refusal(job(export=inside), profile(constraints=listed))
    assert "is in the profile's own storage" in refused.message


def test_an_edit_is_checked_like_an_admission() -> None:
    found = strict()
    stored = admit(job(), [found]).stored
    edited = job(export={"destinations": [{"uri": "gs://artifacts/team-b/victim-12345678/export/model"}]})
    with pytest.raises(Refused, match="is in the profile's own storage"):
        replan(edited, stored)
    with pytest.raises(Refused, match="does not cover"):
        replan(job(evaluation={"benchmarks": [{"name": "gsm8k"}]}), stored)


# --- forms


BAD = [
    "gs://b/a/../x",
    "gs://b/..",
    "gs://b/./x",
    "gs://b/.",
    "gs://b//x",
    "gs://b/x//",
    "gs://b/a/%2e%2e/x",
    "gs://b/a/%2E./x",
    "gs://b/a%2fx",
    "gs://b/a%5c..",
    "gs://b/a%252e",
    "gs://b/%00",
    "gs://b/a\\..\\x",
    "gs://b/a\nx",
    "gs://b/a\n",
    "gs://b/a\x7f",
    "gs://b/a\x85x",
    "gs://b/a#x",
    "gs://B/x",
    "gs:///x/y",
    "file:///",
    "file:////x",
    "file:///x/../y",
    "file:///x%20y",
    "file:///%2e%2e/x",
    "file://host/x",
    "s3://b/x",
]
GOOD = [
    "gs://b/a",
    "gs://b/a/",
    "gs://bucket",
    "gs://b/.hidden/..x/x../...",
    "gs://b/rows of may (final)/été.jsonl",
    "gs://b/hour=00%3A00/x",
    "gs://b/a@b+c=d,e&f~g!'$",
    "file:///srv/runs/a b",
]
FIELDS: dict[str, Any] = {
    "model": lambda uri: {"model": {"uri": uri}},
    "tokenizer": lambda uri: {"model": {"uri": "gs://models/tiny", "tokenizer": {"uri": uri}}},
    "orbax": lambda uri: {
        "model": {
            "orbax": {"uri": f"{uri.rstrip('/')}/items" if uri in GOOD else f"{uri}/items"},
            "maxtextModel": "m",
            "tokenizer": {"uri": "gs://t/t"},
        }
    },
    "train": lambda uri: {"datasets": {"train": [{"uri": uri}]}},
    "validation": lambda uri: {"datasets": {"train": [ROWS], "validation": [{"uri": uri}]}},
    "evaluation": lambda uri: {"evaluation": {"datasets": [{"name": "d", "uri": uri}]}},
    "benchmark": lambda uri: {"evaluation": {"benchmarks": [{"name": "d", "uri": uri}]}},
    "destination": lambda uri: {"export": {"destinations": [{"uri": uri}]}},
    "resumeFrom": lambda uri: {"resumeFrom": {"runFolder": uri}},
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("uri", BAD)
def test_an_ambiguous_place_is_refused_in_every_field(field: str, uri: str) -> None:
    with pytest.raises(InvalidObject):
        parse_job(job(**FIELDS[field](uri)))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("uri", GOOD)
def test_ordinary_names_are_accepted(field: str, uri: str) -> None:
    parse_job(job(**FIELDS[field](uri)))


@pytest.mark.parametrize("name", ["artifacts", "cache", "pathwaysScratch"])
@pytest.mark.parametrize("uri", [*BAD, "gs://b/*", "gs://b/?", "gs://b/[a]"])
def test_the_profiles_own_folders_have_the_same_form(name: str, uri: str) -> None:
    with pytest.raises(InvalidObject):
        parse_profile(profile(storage={"artifacts": "gs://art", name: uri}))


@pytest.mark.parametrize(
    "field", [field for field in FIELDS if field not in ("train", "validation", "evaluation")]
)
def test_only_datasets_take_a_glob(field: str) -> None:
    for uri in ("gs://b/*/x", "gs://b/a?", "gs://b/[ab]"):
        with pytest.raises(InvalidObject, match=re.escape("names one place")):
            parse_job(job(**FIELDS[field](uri)))
    parse_job(job(datasets={"train": [{"uri": "gs://b/*/part-[0-9]?.jsonl"}]}))
