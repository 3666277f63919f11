"""``finetune validate`` finds offline what the API server would refuse, and says file, line, place and fix."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.api import InvalidObject, MethodType, parse_job
from finetune_operator.cli.documents import read_documents
from finetune_operator.cli.manifests.validate import Problem, validate_text
from finetune_operator.cli.yaml_text import yaml_text
from tests.unit.api.bad_jobs import BAD_JOBS
from tests.unit.api.documents import JOB, PROFILE, Document, profile
from tests.unit.cli.created import CREATED
from tests.unit.cli.scalars import KEYS, SCALARS

HEAD = """\
apiVersion: tpu-finetune.dev/v1alpha1
kind: FineTuneJob
metadata: {name: support-bot}
spec:
  model: {huggingFace: {repo: Qwen/Qwen3-0.6B}}
  datasets: {train: [{uri: gs://team-a/chats.jsonl}]}
  method: {type: SFT}
"""


def problems(text: str) -> list[Problem]:
    return validate_text(text, file="job.yaml")


def only(text: str) -> Problem:
    (problem,) = problems(text)
    return problem


@pytest.mark.parametrize("name", CREATED)
def test_nulls_and_generated_names_are_taken_as_the_api_server_takes_them(name: str) -> None:
    document, taken = CREATED[name]
    assert (problems(json.dumps(document)) == []) is taken


def test_a_generated_name_that_is_too_long_names_the_prefix() -> None:
    problem = only(HEAD.replace("name: support-bot", f"generateName: {'a' * 24}"))
    assert problem.path == "metadata.generateName"
    assert problem.line == 3
    assert "28 characters" in problem.message
    assert problem.fix.endswith("The API server adds 5 characters to it.")


@pytest.mark.parametrize(
    ("metadata", "path", "said"),
    [
        ({"lables": {}}, "metadata.lables", "unknown field: did you mean labels?"),
        ({"labels": {"a b": "c"}}, "metadata.labels", 'not "a b"'),
        ({"labels": {"a": "b c"}}, "metadata.labels.a", 'not "b c": longer texts fit into annotations'),
        ({"labels": {"A.example/b": "c"}}, "metadata.labels", 'not "A.example/b"'),
        ({"annotations": {"a b": "c"}}, "metadata.annotations", 'not "a b"'),
    ],
)
def test_metadata_that_the_api_server_refuses_is_named(metadata: Document, path: str, said: str) -> None:
    problem = only(yaml.safe_dump({**JOB, "metadata": {**JOB["metadata"], **metadata}}))
    assert problem.path == path
    assert said in problem.message


@pytest.mark.parametrize("name", ["Team A", "a..b", "a" * 254])
def test_a_profile_has_the_name_of_an_object(name: str) -> None:
    problem = only(yaml.safe_dump({**PROFILE, "metadata": {"name": name}}))
    assert problem.path == "metadata.name"
    assert problem.message.startswith("must be the name of a Kubernetes object")


def test_an_annotation_may_hold_any_text_under_a_key_with_capitals() -> None:
    metadata = {
        **JOB["metadata"],
        "annotations": {"Example.com/b": "a text, with spaces"},
        "labels": {"a": ""},
    }
    assert problems(yaml.safe_dump({**JOB, "metadata": metadata})) == []


def test_good_manifests_have_no_problems() -> None:
    assert problems(HEAD) == []
    assert problems(yaml.safe_dump_all([JOB, PROFILE])) == []


@BAD_JOBS
def test_a_bad_job_is_refused_with_the_place(document: Document, path: str) -> None:
    found = problems(yaml.safe_dump(document))
    assert path in {problem.path for problem in found}


def test_a_problem_names_file_line_place_and_fix() -> None:
    problem = only(HEAD + "  hyperparameters:\n    seed: 1\n    learningRate: true\n")
    assert str(problem) == "job.yaml:10: spec.hyperparameters.learningRate: must be a number, not true"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ('learningRate: "2e-5"', '"2e-5" is text; write 2e-5 without quotes'),
        ("learningRate: '.5'", '".5" is text; write .5 without quotes'),
        ('epochs: "2"', '"2" is text; write 2 without quotes'),
        ('epochs: "1.5"', 'must be an integer, not "1.5". Write a whole number alone, without a unit.'),
        ('learningRate: "\u0663"', 'must be a number, not "\u0663". Write the number alone, without a unit.'),
        ("learningRate: 1e400", 'must be a number, not "1e400". Write the number alone, without a unit.'),
        ("learningRate: 5%", 'must be a number, not "5%". Write the number alone, without a unit.'),
        ("learningRate: 0", "is 0, must be above 0"),
        ("learningRate: 1e-400", "is 0, must be above 0"),
        ("weightDecay: -0.1", "is -0.1, must be at least 0"),
        ("warmupRatio: 1.0", "is 1, must be below 1"),
    ],
)
def test_a_number_that_is_text_or_out_of_bounds_is_explained_with_its_line(field: str, said: str) -> None:
    name = field.partition(":")[0]
    problem = only(HEAD + f"  hyperparameters:\n    {field}\n")
    assert str(problem) == f"job.yaml:9: spec.hyperparameters.{name}: {said}"


@pytest.mark.parametrize(
    "number", ["2e-5", "2.0e-5", "1_000", ".5", "1", "1.0", "1e0", "1.7e308", "5e-324", "9" * 25]
)
def test_a_number_is_taken_however_it_is_written(number: str) -> None:
    assert problems(HEAD + f"  hyperparameters: {{learningRate: {number}}}\n") == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"3600"', '"3600" is text; write 3600 without quotes'),
        ("24h", "Write a whole number alone, without a unit."),
    ],
)
def test_an_integer_in_quotes_and_one_with_a_unit_are_distinguished(value: str, said: str) -> None:
    assert said in str(only(HEAD + f"  activeDeadlineSeconds: {value}\n"))


def test_a_value_of_another_type_or_form_is_reported_once() -> None:
    assert "must be gs://" in only(HEAD.replace("gs://team-a", "s3://team-a")).message
    flavors = [PROFILE["spec"]["flavors"][0] | {"libtpuInitArgs": "--xla_tpu_a=1"}]
    assert only(yaml.safe_dump(profile(flavors=flavors))).message == 'must be a list, not "--xla_tpu_a=1"'


KNOWN = ", ".join(MethodType)


@pytest.mark.parametrize("value", ["GRPO", "PPO", "KTO", "reinforce"])
def test_a_method_that_there_is_not_gets_the_list_and_no_guess(value: str) -> None:
    problem = only(HEAD.replace("type: SFT", f"type: {value}"))
    assert problem.message == f'unknown value "{value}": expected one of {KNOWN}'


@pytest.mark.parametrize(
    ("value", "meant"), [("orpo", "ORPO"), ("DP0", None), ("ORPOO", "ORPO"), ("sft", "SFT")]
)
def test_a_mistyped_method_gets_the_one_that_was_meant_and_the_list(value: str, meant: str | None) -> None:
    problem = only(HEAD.replace("type: SFT", f"type: {value}"))
    assert ("did you mean" in problem.message) is (meant is not None)
    assert meant is None or f"did you mean {meant}? Expected one of {KNOWN}" in problem.message


@pytest.mark.parametrize(
    "uri", ["gs://art/team-a/../team-b/x", "gs://a/b//c", "file:///mnt/%2e%2e/x", "gs://a/b#c"]
)
def test_a_uri_with_more_than_one_reading_is_refused_offline(uri: str) -> None:
    problem = only(HEAD + f'  resumeFrom: {{runFolder: "{uri}"}}\n')
    assert problem.path == "spec.resumeFrom.runFolder"
    assert "must" in problem.message


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: [1\n", 2, "not valid YAML"),
        (HEAD + "  suspend: true\n  suspend: false\n", 9, "'suspend' occurs twice"),
        (HEAD + "  engineOverrides: {~: a}\n", 8, "key None is not a string"),
        (HEAD + "  engineOverrides: {true: a, yes: a}\n", 8, "'true' occurs twice"),
        (HEAD + "  engineOverrides: {a: .inf}\n", 8, ".inf is not a valid JSON number"),
        (HEAD + "  engineOverrides: {a: !!set {b}}\n", 8, "!!set is not allowed"),
        (HEAD + "  engineOverrides: {a: !other b}\n", 8, "!other is not allowed"),
        ("x: *nothing\n", 1, "undefined alias"),
        ("[" * 1500, 1, "nested too deeply"),
        ("x: 1\ny: \x00\n", 2, "character 0x0"),
    ],
)
def test_what_cannot_be_read_is_reported_with_its_line(text: str, line: int, said: str) -> None:
    problem = only(text)
    assert problem.line == line
    assert said in problem.message


#: kubectl prints these with other digits of the same float.
LARGE = {"9223372036854775808": 2.0**63, "18446744073709551615": 2.0**64, "0xffffffffffffffff": 2.0**64}


@pytest.mark.parametrize(("text", "value"), [*SCALARS.items(), *LARGE.items()])
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: object) -> None:
    """The table is held against kubectl itself by tests/integration/test_cli.py."""
    (document,) = read_documents(f"key: {text}\n")
    read = document.content["key"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *SCALARS,
        "-.5",
        "+1_0e3",
        ".inf",
        "",
        " a",
        "#",
        "a: b",
        "a\u2028b",
        "a\x85",
        "\u2029 b\n",
        "\ufeff",
        "\x7f",
        "😀",
    ],
)
def test_a_string_of_a_printed_manifest_is_read_as_that_string(text: str) -> None:
    printed = yaml_text({"key": text, text: "value"})
    (document,) = read_documents(printed)
    assert document.content == {"key": text, text: "value"}


@pytest.mark.parametrize(("text", "key"), KEYS.items())
def test_keys_are_strings(text: str, key: str) -> None:
    (document,) = read_documents(f"{text}: 1\n")
    assert document.content == {key: 1}


def test_anchors_are_merged() -> None:
    (document,) = read_documents("base: &base {x: 1, z: 1}\nother: {<<: *base, x: 2}\n")
    assert document.content["other"] == {"x": 2, "z": 1}


def test_aliases_that_repeat_too_much_are_one_error() -> None:
    text = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
    for above, name in zip("abcdefgh", "bcdefghi", strict=True):
        text += f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]\n"
    problem = only(HEAD + "---\n" + text)
    assert "aliases repeat more than 10,000 values" in problem.message
    merged = "a: &a {x: 1}\n" + "".join(
        f"{name}: &{name} {{<<: [{', '.join([f'*{above}'] * 9)}]}}\n"
        for above, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert "aliases repeat more than 10,000 values" in only(HEAD + "---\n" + merged).message


def test_a_long_text_that_is_repeated_counts_as_many_values() -> None:
    text = f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 20)}]\n"
    assert "aliases repeat more than 10,000 values" in only(HEAD + "---\n" + text).message


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "&a [[*a]]\n"])
def test_an_alias_that_contains_itself_is_an_error(text: str) -> None:
    (problem,) = (each for each in problems(text) if "alias" in each.message)
    assert problem.message == "is not valid YAML: an alias contains itself"
    assert problem.line == 1


@given(st.integers(1, 2000))
def test_a_document_without_aliases_has_any_number_of_values(number: int) -> None:
    (document,) = read_documents(f"a: &a [{'1, ' * number}]\nb: *a\n")
    assert document.content["b"] == [1] * number


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("2e-5", "a string, not 2e-05"),
        ("1.5", "a string, not 1.5"),
        ("1_000", "a string, not 1000"),
        ("yes", "a string, not true"),
        ("1:30", None),
        ("2026-01-01", None),
        ('"2e-5"', None),
        ("[1]", "a string, not a list"),
        ("null", None),
        ("", None),
    ],
)
def test_a_number_where_text_belongs_is_refused_as_the_server_does(value: str, kind: str | None) -> None:
    found = problems(HEAD + f"  engineOverrides:\n    key: {value}\n")
    assert [problem.message for problem in found] == ([f"must be {kind}"] if kind else [])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            "{conversations: messages}",
            "unknown field: write {messages: conversations}, our name of the column first",
        ),
        ("{conversations: dialog}", "unknown field: "),
        ("{mesages: chat}", "unknown field: did you mean messages?"),
    ],
)
def test_a_mapping_of_columns_the_wrong_way_round_is_turned(columns: str, said: str) -> None:
    source = f"{{uri: 'gs://data/chat.jsonl', columns: {columns}}}"
    document = {**JOB, "spec": {**JOB["spec"], "datasets": {"train": [yaml.safe_load(source)]}}}
    (problem,) = problems(yaml.safe_dump(document))
    assert problem.path.startswith("spec.datasets.train[0].columns.")
    assert problem.message.startswith(said)
    with pytest.raises(InvalidObject, match=re.escape(said)):
        parse_job(document)


def test_all_problems_of_all_documents_are_reported_in_order() -> None:
    found = problems(HEAD + "  cache: Sometimes\n---\n" + HEAD + "  budgets: {}\n  suspend: 1\n")
    assert [(problem.document, problem.line, problem.path) for problem in found] == [
        (1, 8, "spec.cache"),
        (2, 17, "spec.budgets"),
        (2, 18, "spec.suspend"),
    ]


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        (HEAD.replace("kind: FineTuneJob", "kind: FinetuneJob"), "kind", "did you mean FineTuneJob?"),
        (HEAD.replace("kind: FineTuneJob", "kind: Deployment"), "kind", "FineTuneJob, FineTuneProfile"),
        (HEAD.replace("v1alpha1", "v1"), "apiVersion", "tpu-finetune.dev/v1"),
        (HEAD.replace("apiVersion: tpu-finetune.dev/v1alpha1\n", ""), "apiVersion", "empty"),
        (HEAD.replace("{name: support-bot}", "{}"), "metadata.name", "required"),
        (HEAD.replace("{name: support-bot}", ""), "metadata", "required"),
        ("just text\n", "", "must be an object"),
    ],
)
def test_what_is_meant_to_be_ours_is_not_passed_over(text: str, path: str, said: str) -> None:
    assert any(problem.path == path and said in problem.message for problem in problems(text))


def test_other_objects_are_left_alone_but_not_alone_in_a_file() -> None:
    other = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team-a}\n"
    assert problems(f"{other}---\n{HEAD}") == []
    assert "no FineTuneJob" in only(other).message
    assert "no FineTuneJob" in only("").message


def test_documents_after_an_invalid_one_are_read() -> None:
    texts = [
        HEAD,
        "kind: [",
        "a: 'b",
        "x: 1\ny: \x00\n",
        "[" * 1500,
        "# nothing",
        HEAD + "  cache: Sometimes\n",
    ]
    found = problems("\n---\n".join(texts))
    assert [problem.document for problem in found] == [2, 3, 4, 5, 7]
    assert [problem.path for problem in found] == ["", "", "", "", "spec.cache"]
    assert str(found[-1]).startswith("job.yaml:")
    assert "(document 7): spec.cache: unknown value" in str(found[-1])
    lines = "\n---\n".join(texts).splitlines()
    assert lines[(found[-1].line or 0) - 1] == "  cache: Sometimes"
    assert lines[(found[2].line or 0) - 1].startswith("y: ")


@pytest.mark.parametrize(
    "text",
    [
        "%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n",
        "# head\n---\na: 1\n--- # second\nb: 2\n---\n",
        "\ufeffa: 1\r\n---\r\nb: 2\r\n",
        "--- {a: 1}\n--- {b: 2}\n",
    ],
)
def test_documents_are_separated_as_yaml_does(text: str) -> None:
    assert [(each.number, each.content) for each in read_documents(text)] == [(1, {"a": 1}), (2, {"b": 2})]


def test_a_line_of_a_text_is_no_beginning_of_a_document() -> None:
    (document,) = read_documents("a: |\n  b\n  ---\n  c\n")
    assert document.content == {"a": "b\n---\nc\n"}


#: Without the characters that YAML requires to be escaped where JSON does not.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cn", "Cs", "Zl", "Zp")), max_size=40)


@given(
    content=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    ),
    indent=st.sampled_from([None, "\t", "  "]),
    ascii_only=st.booleans(),
)
def test_json_is_read_as_the_value_that_it_is(content: object, indent: str | None, ascii_only: bool) -> None:
    text = json.dumps({"key": content}, indent=indent, ensure_ascii=ascii_only)
    (document,) = read_documents(text)
    assert document.content == {"key": content}


def test_half_a_surrogate_pair_is_refused_with_its_line() -> None:
    problem = only('{"kind":\n"\\ud83d"}')
    assert (problem.line, problem.message) == (
        2,
        "is not valid YAML: a text contains half of a surrogate pair",
    )


def test_items_of_a_list_are_checked() -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [JOB, {**JOB, "spec": {}}]})
    assert [problem.path for problem in problems(text)] == [
        f"items[1].spec.{name}" for name in ("model", "datasets", "method")
    ]


def test_a_profile_is_checked_too() -> None:
    flavor = PROFILE["spec"]["flavors"][0]
    problem = only(yaml.safe_dump(profile(flavors=[flavor, flavor])))
    assert problem.path == "spec.flavors"
    assert "'ondemand' occurs twice" in problem.message


def test_a_number_in_place_of_a_list_that_a_rule_reads_is_reported() -> None:
    assert only(yaml.safe_dump(profile(namespaces=5))).message == "must be a list, not 5"


def test_rules_on_changes_need_the_stored_object_and_are_left_out() -> None:
    assert problems(HEAD + "  planOnly: true\n  retry: {generation: 1}\n") == []


def test_a_stored_object_with_its_status_can_be_checked() -> None:
    text = yaml.safe_dump({**JOB, "status": {"observedGeneration": 1, "phase": "Running"}})
    assert problems(text) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "  evaluation: {prompts: [a], datasets: [{name: d, uri: gs://team-a-*/x}]}\n",
            "a wildcard in the bucket's name",
        ),
        (
            "  hyperparameters: {learningRate: fast}\n",
            'must be a number, not "fast"',
        ),
        ("  resources: {tpu: v6e}\n", 'such as v6e-16 or v6e-4x4, not "v6e"'),
    ],
)
def test_what_has_another_form_is_described_in_words(given: str, said: str) -> None:
    assert said in only(HEAD + given).message


def test_an_entry_of_the_hub_without_its_kind_gets_the_form_to_write() -> None:
    problem = only(yaml.safe_dump(profile(constraints={"uris": {"read": ["hf://Qwen/*"]}})))
    assert "hf://models/…, hf://datasets/… or hf://benchmarks/…" in problem.message
    assert problem.fix == "For a model or tokenizer, write hf://models/Qwen/*."


@pytest.mark.parametrize(
    ("written", "replaced", "path", "message"),
    [
        ("name: support-bot", "name: 2024", "metadata.name", "must be a string, not 2024"),
        ("{name: support-bot}", "[a]", "metadata", "must be an object, not a list"),
        ("{name: support-bot}", "{}", "metadata.name", "required, but not set"),
        ("kind: FineTuneJob", "kind: [FineTuneJob]", "kind", "unknown kind a list"),
    ],
)
def test_what_is_wrong_with_the_head_of_a_manifest_is_named(
    written: str, replaced: str, path: str, message: str
) -> None:
    problem = only(HEAD.replace(written, replaced))
    assert problem.path == path
    assert problem.message.startswith(message)
