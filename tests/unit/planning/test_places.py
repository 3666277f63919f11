"""What a job may read and write: its namespace's folders, and what the profile lists."""

import re
from dataclasses import replace
from fnmatch import _compile_pattern, fnmatchcase  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from finetune_operator.api import InvalidObject, Reason, parse_job, parse_profile
from finetune_operator.planning import Refused, admit, replan
from finetune_operator.planning.locations import (
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
def test_a_namespaces_own_folders_need_no_entry(rule: Any, uri: str, folder: bool) -> None:
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
#: Entries that cover everything by their text and name none of these folders.
BROAD = ("gs://*", "gs://art/*", "gs://art/runs/*", "gs://art*", "gs://art/runs/team-*")


@pytest.mark.parametrize("listed", [None, (), BROAD], ids=["not set", "empty", "broad"])
@pytest.mark.parametrize("strict", [True, False], ids=["Strict", "Open"])
@pytest.mark.parametrize(("rule", "uri", "folder"), HOSTILE)
def test_the_profiles_storage_is_closed_in_every_mode_and_to_every_broad_entry(
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
def test_an_entry_that_names_the_folder_opens_it(rule: Any, uri: str, entry: str) -> None:
    assert problem(uri, rule, (entry,)) is None


@pytest.mark.parametrize(
    "entry", ["gs://art/runs/team-a/*", "gs://art/runs/team-b/*", "gs://art/runs/team-b*"]
)
def test_a_namespaces_name_alone_opens_no_run_folder_for_exports(entry: str) -> None:
    for folder in ("team-a/other-12345678/export", "team-b/victim-12345678/export"):
        assert problem(f"gs://art/runs/{folder}", "write", (entry,)) is not None


def test_a_broad_entry_opens_what_is_beside_the_storage() -> None:
    assert problem("gs://art/models/base", listed=("gs://art/*",)) is None
    assert problem("gs://art/published/m", "write", ("gs://art/*",)) is None
    assert problem("gs://art/*/rows.jsonl", listed=("gs://art/*",), folder=False) is not None
    assert problem("gs://art/sets/*/rows.jsonl", listed=("gs://art/*",), folder=False) is None


#: What may stand in a glob for one letter, and between two.
ONE, MANY = ("{}", "{}", "?", "[{}]", "[!z]", "[*{}]"), ("", "", "", "*")


@st.composite
def matching(draw: st.DrawFn) -> tuple[str, str]:
    """A name in a bucket and a glob that matches it, as the trainer matches: name by name."""
    text = draw(st.lists(st.sampled_from(["a", "b", "aa", "ab", "]", "b]a"]), min_size=1, max_size=4))
    glob = []
    for name in text:
        pieces = [draw(st.sampled_from(ONE)).format(letter) + draw(st.sampled_from(MANY)) for letter in name]
        glob.append(draw(st.sampled_from(["*", name, "".join(pieces), "".join(pieces)])))
    assume(all(map(fnmatchcase, text, glob)))
    return "/".join(text), "/".join(glob)


@settings(max_examples=300)
@given(pair=matching(), entry=st.text(alphabet="ab/*]", max_size=8))
def test_an_entry_that_covers_a_glob_covers_all_that_it_matches(pair: tuple[str, str], entry: str) -> None:
    text, glob = pair
    if covers(f"gs://x/{entry}", f"gs://x/{glob}"):
        assert covers(f"gs://x/{entry}", f"gs://x/{text}")


@settings(max_examples=300)
@given(pair=matching())
def test_a_glob_that_is_allowed_matches_nothing_of_another_namespace(pair: tuple[str, str]) -> None:
    """With an entry for the whole bucket, in which the storage lies."""
    text, glob = pair
    storage = ProfileFolders(artifacts="gs://x/a", namespace="aa", shared={"cache": "gs://x/a/b"})
    place = Location(path="spec.x", uri=f"gs://x/{glob}", folder=False)
    if location_problem(place, storage, "read", ("gs://x/*",), strict=True) is None:
        assert not text.startswith("a/") or text.startswith("aa/", 2)


@settings(max_examples=1000)
@given(pattern=st.text(alphabet="ab/.\n*", max_size=10), text=st.text(alphabet="ab/.\n*", max_size=10))
def test_a_star_is_matched_as_fnmatch_does(pattern: str, text: str) -> None:
    assert matches(pattern, text) == fnmatchcase(text, pattern)


@settings(max_examples=300)
@given(text=st.text(alphabet="ab/", max_size=12), data=st.data())
def test_a_star_stands_for_any_part(text: str, data: st.DataObject) -> None:
    cuts = st.integers(0, len(text))
    pattern = text
    for _ in range(3):
        start, end = sorted((data.draw(cuts), data.draw(cuts)))
        pattern = f"{pattern[:start]}*{pattern[end:]}"
    assert matches(pattern, text) == fnmatchcase(text, pattern)


def test_nothing_of_what_jobs_name_is_kept() -> None:
    """The operator judges the jobs of all tenants, for months."""
    before = _compile_pattern.cache_info().misses
    for uri in ("gs://name-of-a-tenant/x*", "gs://art/r?ns/[ab]*c/x", "gs://art/runs/team-a/*/x"):
        problem(uri, listed=("gs://other/*", "gs://art/[x]?"), folder=False)
    assert _compile_pattern.cache_info().misses == before


def entry_of(said: str, rule: str) -> str | None:
    """The entry that a refusal names, as people copy it."""
    found = re.search(rf'add "([^"]+)" to spec\.constraints\.uris\.{rule} of the profile$', said)
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
def test_the_entry_that_a_refusal_names_opens_the_place(
    names: list[str], start: str, rule: Any, listed: tuple[str, ...] | None, slash: bool
) -> None:
    uri = "/".join([start, *names])
    is_glob = "*" in uri
    said = problem(uri + "/" * (slash and not is_glob), rule, listed, folder=not is_glob)
    if said is not None and (entry := entry_of(said, rule)):
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
def test_no_refusal_advises_an_entry_that_opens_what_is_others(rule: Any, uri: str, advice: str) -> None:
    for listed in (None, (), BROAD):
        said = problem(uri, rule, listed)
        assert said is not None
        assert said.endswith(advice)
        assert "add" not in said


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
def test_no_refusal_advises_an_entry_for_a_whole_bucket(
    rule: Any, uri: str, folder: bool, entry: str | None
) -> None:
    said = problem(uri, rule, folder=folder)
    assert said is not None
    assert entry_of(said, rule) == entry


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
def test_a_refused_run_folder_of_others_comes_with_no_entry(folder: str, listed: tuple[str, ...]) -> None:
    listed = tuple(each for each in listed if not each.startswith("gs://art/runs/team"))
    said = run_folder_problem("spec.x", folder, STORAGE, listed)
    assert said is not None
    assert said.endswith("use a run folder of your own namespace")


def test_a_refused_run_folder_elsewhere_comes_with_its_own_entry() -> None:
    said = run_folder_problem("spec.x", "gs://other/j-1/", STORAGE, ())
    assert said is not None
    assert entry_of(said, "write") == "gs://other/j-1"
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
def test_a_glob_touches_the_profiles_storage_only_where_it_may_match_it(glob: str, allowed: bool) -> None:
    """Its artifacts are gs://art/runs."""
    said = location_problem(
        Location(path="spec.x", uri=glob, folder=False), STORAGE, "read", ("gs://art/*",), strict=True
    )
    assert (said is None) is allowed, said


@pytest.mark.parametrize("listed", [(), ("file:///*",), ("file:///tmp/team-a/j-1",)])
def test_no_run_folder_lies_in_the_file_system_of_a_pod(listed: tuple[str, ...]) -> None:
    said = run_folder_problem("spec.x", "file:///tmp/team-a/j-1", STORAGE, listed)
    assert said is not None
    assert "is the file system of a pod" in said


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


def test_strict_is_what_holds_where_a_profile_names_no_mode() -> None:
    found = strict()
    del found["spec"]["constraints"]["mode"]
    refused = refusal(job(export={"destinations": [{"uri": "gs://elsewhere/m"}]}), found)
    assert refused.reason == Reason.POLICY_VIOLATION
    admission = admit(job(), [found])
    assert admission.snapshot.profile["constraints"]["mode"] == "Strict"


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


@pytest.mark.parametrize(("asked", "said", "entries"), LISTED)
def test_strict_refuses_what_is_not_listed_and_says_the_entry(
    asked: dict[str, Any], said: str, entries: dict[str, Any]
) -> None:
    refused = refusal(job(**asked), strict())
    assert refused.reason == Reason.POLICY_VIOLATION
    assert said in refused.message
    assert refused.message.endswith("Ask #ml-help.")
    assert admit(job(**asked), [strict(constraints={"uris": entries})]).plan
    assert admit(job(**asked), [profile()]).plan


def test_a_model_in_storage_of_others_comes_with_no_entry_at_all() -> None:
    taken = job(model={"uri": "gs://artifacts/team-b/exports/m"})
    refused = refusal(taken, strict(models={"allow": ["Qwen/*"]}))
    assert "models.allow is Qwen/*, which does not cover spec.model gs://artifacts/team-b/" in refused.message
    assert "add" not in refused.message


@pytest.mark.parametrize("mode", ["Strict", "Open"])
@pytest.mark.parametrize("read", [None, ["gs://*"], ["gs://*", "hf://models/evil/*"]])
def test_a_hub_model_is_refused_by_models_allow_alone_with_one_fix(mode: str, read: Any) -> None:
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


def test_a_repository_that_models_allow_names_needs_no_second_entry() -> None:
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


def test_what_models_allow_names_by_uri_still_has_to_be_a_place_to_read_from() -> None:
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
        refused = refusal(job(), found)
        assert refused.reason == Reason.PROFILE_NOT_ALLOWED
        assert 'add "team-a" to spec.namespaces' in refused.message


def test_a_file_system_is_no_place_under_a_profile_that_keeps_things_in_a_bucket() -> None:
    for asked in (
        {"model": {"uri": "file:///etc"}},
        {"datasets": {"train": [{"uri": "file:///proc/self/environ"}]}},
        {"export": {"destinations": [{"uri": "file:///tmp/m"}]}},
    ):
        refused = refusal(job(**asked), profile())
        assert "is the file system of a pod" in refused.message
    local = profile(storage={"artifacts": "file:///srv/runs", "cache": "file:///srv/cache"})
    assert admit(job(model={"uri": "file:///models/tiny"}), [local]).plan
    assert (
        "file:///srv/cache/convert/f"
        in refusal(job(model={"uri": "file:///srv/cache/convert/f"}), local).message
    )


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (
            {"artifacts": "gs://a/runs", "cache": "gs://a/runs"},
            "spec.storage.cache: gs://a/runs is spec.storage.artifacts",
        ),
        (
            {"artifacts": "gs://a/runs", "cache": "gs://a/"},
            "spec.storage.artifacts: gs://a/runs lies in spec.storage.cache, gs://a",
        ),
        (
            {"artifacts": "gs://a/runs", "pathwaysScratch": "gs://a/"},
            "spec.storage.artifacts: gs://a/runs lies in spec.storage.pathwaysScratch, gs://a",
        ),
        (
            {"artifacts": "gs://art", "cache": "gs://art/team-a"},
            "spec.storage.cache: gs://art/team-a lies in spec.storage.artifacts, gs://art",
        ),
        (
            {"artifacts": "gs://art", "pathwaysScratch": "gs://art/team-a/x"},
            "spec.storage.pathwaysScratch: gs://art/team-a/x lies in spec.storage.artifacts, gs://art",
        ),
        (
            {"artifacts": "gs://art", "cache": "gs://pool", "pathwaysScratch": "gs://pool/team-a"},
            "spec.storage.pathwaysScratch: gs://pool/team-a lies in spec.storage.cache, gs://pool",
        ),
        ({"artifacts": "gs://art/runs", "cache": "file:///cache"}, "is a file system"),
    ],
)
def test_folders_that_cannot_be_kept_apart_make_a_profile_invalid(storage: Any, said: str) -> None:
    refused = refusal(job(), profile(storage=storage))
    assert refused.reason == Reason.PROFILE_INVALID
    assert said in refused.message


@pytest.mark.parametrize("namespace", ["cache", "pathways"])
def test_every_namespace_has_a_folder_where_the_profile_names_no_cache(namespace: str) -> None:
    wanted = job()
    wanted["metadata"]["namespace"] = namespace
    plan = admit(wanted, [profile(storage={"artifacts": "gs://artifacts"})]).plan
    assert plan.cache.uri == f"gs://artifacts/{namespace}/cache"


def test_a_namespaces_own_cache_is_no_run_folder_and_no_place_for_exports() -> None:
    for folder in ("cache", "pathways", "programs", "exports"):
        refused = refusal(job(resumeFrom={"runFolder": f"gs://artifacts/team-a/{folder}"}), profile())
        assert "is neither a run folder in gs://artifacts/team-a/" in refused.message
    inside = {"destinations": [{"uri": "gs://artifacts/team-a/cache/convert/f1"}]}
    refused = refusal(job(export=inside), profile(storage={"artifacts": "gs://artifacts"}))
    assert "lies in the profile's own storage" in refused.message


def test_no_broad_entry_lets_a_job_write_compiled_programs() -> None:
    inside = {"destinations": [{"uri": "gs://artifacts/team-a/programs/x"}]}
    listed = {"uris": {"write": ["gs://artifacts/*", "gs://artifacts/team-a/*"]}}
    refused = refusal(job(export=inside), profile(constraints=listed))
    assert "lies in the profile's own storage" in refused.message


def test_an_edit_is_judged_as_an_admission_is() -> None:
    found = strict()
    snapshot = admit(job(), [found]).snapshot
    edited = job(export={"destinations": [{"uri": "gs://artifacts/team-b/victim-12345678/export/model"}]})
    with pytest.raises(Refused, match="lies in the profile's own storage"):
        replan(edited, snapshot)
    with pytest.raises(Refused, match="does not cover"):
        replan(job(evaluation={"benchmarks": [{"name": "gsm8k"}]}), snapshot)


def test_a_plan_of_before_there_were_modes_keeps_what_it_was_admitted_with() -> None:
    found = profile()
    admission = admit(job(), [found])
    constraints = {"limits": [{"path": "hyperparameters.globalBatchSize", "max": 1}]}
    old = {**admission.snapshot.profile, "constraints": constraints}
    assert replan(job(), replace(admission.snapshot, profile=old))


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
def test_a_place_with_more_than_one_reading_is_refused_in_every_field(field: str, uri: str) -> None:
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
