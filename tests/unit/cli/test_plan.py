"""What ``finetune plan`` knows of the CPU stages' memory and disk without a cluster, and that text and JSON agree."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from finetune_operator.cli.commands import app
from finetune_operator.ledger.layout import record_uri
from tests.snapshots import check
from tests.unit.cli.stand_in import StandIn, stand_in
from tests.unit.ledger.test_record import record

ROOT = Path(__file__).parents[3]
CLOUD = ROOT / "examples" / "profiles" / "gke-v6e.yaml"
PIECE = (
    "Convert and Export need memory for the model's largest piece (a tensor, in most models the embeddings, or one "
    "projection of all experts of a layer)"
)


def plan(
    folder: Path,
    *options: str,
    max_memory: str | None = "115Gi",
    max_ephemeral_storage: str | None = "151Gi",
    **spec: Any,
) -> Result:
    """Of a job with these parts of its spec, under the example's profile with other limits."""
    profile = yaml.safe_load(CLOUD.read_text())
    limits = {"maxMemory": max_memory, "maxEphemeralStorage": max_ephemeral_storage}
    pool = {name: each for name, each in (profile["spec"]["cpuPool"] | limits).items() if each is not None}
    profile["spec"]["cpuPool"] = pool
    job: dict[str, Any] = {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "bot", "namespace": "team-a"},
        "spec": {
            "model": {"huggingFace": {"repo": "Qwen/Qwen3-unpublished"}},
            "datasets": {"train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}]},
            "method": {"type": "SFT"},
            **spec,
        },
    }
    file = folder / "both.yaml"
    file.write_text(yaml.safe_dump_all([job, profile]))
    return CliRunner().invoke(app, ["plan", "-f", str(file), *options])


def facts(folder: Path, **options: Any) -> dict[str, Any]:
    done = plan(folder, "-o", "json", **options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any]
    (found,) = json.loads(done.stdout)["plans"]
    return found


def row(done: Result, label: str) -> str:
    """What stands behind a label of the page."""
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(label))
    return line.removeprefix(label).strip()


def model(repo: str) -> dict[str, Any]:
    return {"model": {"huggingFace": {"repo": repo}}}


@pytest.mark.parametrize(
    ("max_memory", "holds"), [("115Gi", 7_583_000_000), ("16Gi", 671_000_000), ("256Gi", 16_173_000_000)]
)
def test_the_plan_says_which_pieces_the_profiles_cpu_nodes_hold(
    tmp_path: Path, max_memory: str, holds: int
) -> None:
    done = plan(tmp_path, max_memory=max_memory)
    assert done.exit_code == 0
    assert row(done, "Host memory") == (
        f"{PIECE}; cpuPool.maxMemory {max_memory} is enough for one of {holds / 1e9:.2f} billion parameters, and "
        "Preflight checks it"
    )
    assert facts(tmp_path, max_memory=max_memory)["hostMemory"] == {"largestPiece": holds}


def test_without_a_limit_the_plan_names_none(tmp_path: Path) -> None:
    done = plan(tmp_path, max_memory=None)
    assert row(done, "Host memory") == f"{PIECE}, which Preflight reads"
    assert facts(tmp_path, max_memory=None)["hostMemory"] == {}


def test_the_plan_says_how_much_disk_the_profile_gives(tmp_path: Path) -> None:
    need = "Convert and Export need scratch space for weights and the exported model"
    assert row(plan(tmp_path, max_ephemeral_storage="40Gi"), "Disk") == (
        f"{need}; cpuPool.maxEphemeralStorage 40Gi is the most that each may request, and Preflight checks it"
    )
    unlimited = plan(tmp_path, max_ephemeral_storage=None)
    assert row(unlimited, "Disk") == f"{need}, whose sizes Preflight reads"


def test_the_page_names_units_and_the_price(tmp_path: Path) -> None:
    done = plan(
        tmp_path,
        **model("Qwen/Qwen3-0.6B"),
        resources={"tpu": "v6e-4"},
        budget={"maxChipHours": 1000000, "maxCost": 100},
        hyperparameters={"epochs": 1},
    )
    assert done.exit_code == 0, done.output
    flavors = yaml.safe_load(CLOUD.read_text())["spec"]["flavors"]
    price = flavors[0]["chipHourPrice"]
    assert row(done, "Price") == f"{price * 4:.2f} USD per hour (4 chips x {price:.2f})"
    assert "at most 100 USD (spec.budget.maxCost)" in row(done, "Budget")
    assert " chip hours (" in row(done, "Budget")
    assert row(done, "Length") == "1 epoch; Preflight counts the steps"
    for internal in ("fingerprint", "train_step", "hyperparameters.", "converted (from"):
        assert internal not in row(done, "Known later")


def test_a_file_without_a_job_gets_a_hint_where_job_and_profile_are_named() -> None:
    done = CliRunner().invoke(app, ["plan", "-f", str(CLOUD)])
    assert done.exit_code == 1
    assert "contains no FineTuneJob." in done.stderr
    assert "--profile" in done.stderr


def test_a_profile_that_holds_no_stage_is_refused_with_what_to_change(tmp_path: Path) -> None:
    done = plan(tmp_path, max_memory="1Gi")
    assert done.exit_code == 1
    assert "CpuPoolTooSmall" in done.stderr
    assert "Traceback" not in done.output


def test_text_and_json_name_the_same_checkpoint(tmp_path: Path) -> None:
    datasets = {
        "train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}],
        "validation": [{"uri": "gs://my-project-data/team-a/held-back.jsonl"}],
    }
    measured = {"datasets": datasets, "evaluation": {"everySteps": 100}}
    assert "the best is exported" in plan(tmp_path, **measured).stdout
    assert facts(tmp_path, **measured)["checkpoint"] == "Best"
    assert facts(tmp_path)["checkpoint"] == "Last"


def test_a_job_that_names_no_slice_shows_which_one_is_tried_first_and_which_follow(tmp_path: Path) -> None:
    hyperparameters = {"steps": 10, "globalBatchSize": 16}
    memory = facts(tmp_path, hyperparameters=hyperparameters)["memory"]
    page = plan(tmp_path, hyperparameters=hyperparameters)
    first, *others = facts(tmp_path)["resources"]["tpu"], *memory["candidates"]
    assert others
    assert f"where the training does not fit it, preflight tries {', '.join(others)}" in page.stdout
    assert first in row(page, "  Train")
    assert "slice (from Preflight)" in row(page, "Known later")
    named = plan(tmp_path, hyperparameters=hyperparameters, resources={"tpu": first})
    assert "slice (from Preflight)" not in named.stdout


# --- with the model's config.json and the number of rows ------------------------------------------------------

PUBLISHED = json.loads((ROOT / "tests" / "trainer" / "published.json").read_text())


def config(folder: Path, name: str = "Qwen3-4B-2507", **changed: Any) -> str:
    """The config.json of a published model."""
    file = folder / "config.json"
    file.write_text(json.dumps({**PUBLISHED[name]["config"], "torch_dtype": "bfloat16", **changed}))
    return str(file)


def unknown(done: Result) -> list[str]:
    """What the page lists as unknown."""
    lines = done.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Unknown"))
    return [line[12:].strip() for line in lines[first:]]


def test_what_is_unknown_is_listed_with_the_way_to_learn_it(tmp_path: Path) -> None:
    bare = unknown(plan(tmp_path))
    assert [line.rpartition(": ")[2].split(",")[0] for line in bare[:2]] == [
        "--model-config FILE",
        "--rows N",
    ]
    assert any("in the cache: planOnly: true" in line for line in bare)
    assert any("upper end of time and cost: planOnly: true" in line for line in bare)
    known = unknown(plan(tmp_path, "--model-config", config(tmp_path), "--rows", "1000"))
    assert known == bare[2:]


def test_the_models_config_adds_sizes_memory_and_time(tmp_path: Path) -> None:
    done = plan(
        tmp_path,
        "--model-config", config(tmp_path), "--rows", "64000",
        resources={"tpu": "v6e-4"}, datasets={"train": [{"uri": "gs://my-project-data/team-a/a.jsonl"}],
        "packing": False},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert row(done, "Model").endswith(", 4.02 B parameters")
    assert row(done, "Length") == "8,000 steps, 1 epoch of 64,000 rows"
    assert re.fullmatch(
        r"\d\d\.\d GiB of the 31\.2 GiB of a chip at the peak, headroom \d+\.\d GiB: "
        r"parameters 3\.7 GiB, optimizer 7\.5 GiB, gradients 3\.7 GiB, activations \d+\.\d GiB",
        row(done, "Per chip"),
    )
    assert "an estimate, in most cases within 10 % of the compiler" in done.stdout
    assert "Preflight 8 GiB, Convert 12 GiB, Export 12 GiB" in row(done, "Host memory")
    assert row(done, "Disk") == "Preflight 16 GiB, Convert 16 GiB, Export 19 GiB"
    assert row(done, "Time").startswith("at least 7 min")
    assert row(done, "Cost").startswith("at least 1.")
    assert "that time at the profile's chipHourPrice" in row(done, "Cost")


@pytest.mark.parametrize(
    ("changed", "first", "second"),
    [
        ({"engineOverrides": {"remat_policy": "full"}}, "at the peak, headroom", "with remat policy full"),
        (
            {"engineOverrides": {"remat_policy": "minimal"}},
            "11.2 GiB of the 31.2 GiB of a chip; the rest is not known with remat policy minimal",
            "",
        ),
        ({"hyperparameters": {"globalBatchSize": 1024}, "resources": {"tpu": "v6e-4"}}, "GiB too much: ", "with the"),
    ],
)  # fmt: skip
def test_memory_follows_from_the_remat_policy(
    changed: dict[str, Any], first: str, second: str, tmp_path: Path
) -> None:
    done = plan(tmp_path, "--model-config", config(tmp_path), **{"resources": {"tpu": "v6e-4"}, **changed})
    assert done.exit_code == 0, done.output
    assert first in row(done, "Per chip")
    assert second in done.stdout


def test_packing_makes_the_steps_an_upper_bound(tmp_path: Path) -> None:
    options = ("--model-config", config(tmp_path), "--rows", "1000")
    done = plan(tmp_path, *options)
    assert row(done, "Length") == (
        "at most 125 steps, 1 epoch of 1,000 rows; fewer where short rows are packed into one"
    )
    (found,) = json.loads(plan(tmp_path, *options, "-o", "json").stdout)["plans"]
    assert found["steps"] == {"value": 125, "atMost": True}
    assert found["time"]["trainingSeconds"]["low"] is None
    assert found["time"]["secondsPerStep"]["low"] > 0


#: Of about 2.5 chip hours at least, and 6.8 USD.
LONG = {
    "hyperparameters": {"steps": 20_000, "globalBatchSize": 8},
    "method": {"type": "SFT", "lora": {"rank": 16}},
}


@pytest.mark.parametrize("where", [{}, {"resources": {"tpu": "v6e-4"}}], ids=["chosen by Preflight", "named"])
@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"maxCost": 1}, r" USD for 20,000 steps, and spec\.budget\.maxCost is 1\."),
        ({"maxChipHours": 0.5}, r" chip hours for 20,000 steps, and spec\.budget\.maxChipHours is 0\.5\."),
    ],
)
def test_a_budget_below_the_least_cost_is_refused(
    where: dict[str, Any], budget: dict[str, Any], said: str, tmp_path: Path
) -> None:
    done = plan(tmp_path, "-o", "json", budget=budget, **LONG, **where, **model("Qwen/Qwen3-4B"))
    assert done.exit_code == 1
    assert re.search(r"BudgetTooSmall: training takes at least [\d.]+" + said, done.stderr)
    assert "Train fewer steps, or raise spec.budget." in done.stderr
    (found,) = json.loads(done.stdout)["plans"]
    assert found["cost"]["training"]["low"] > 1
    assert found["cost"]["training"]["high"] is None


@pytest.mark.parametrize(
    "spec",
    [
        {"budget": {"maxCost": 100}},
        {"budget": {"maxCost": 1}, "planOnly": True},
        {"budget": {"maxCost": 1}, "preflight": {"memory": "Off"}},
    ],
    ids=["enough", "nothing is trained", "nothing estimates the training"],
)
def test_a_budget_that_lets_the_job_start_is_accepted(spec: dict[str, Any], tmp_path: Path) -> None:
    assert plan(tmp_path, **spec, **LONG, **model("Qwen/Qwen3-4B")).exit_code == 0


def test_a_budget_below_an_upper_bound_of_the_steps_is_accepted(tmp_path: Path) -> None:
    long = {"hyperparameters": {"epochs": 1}, "budget": {"maxCost": 1}, **model("Qwen/Qwen3-4B")}
    assert plan(tmp_path, "--rows", "1000000", **long).exit_code == 0
    exact = plan(tmp_path, "--rows", "1000000", **long | {"datasets": {
        "train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}], "packing": False}})  # fmt: skip
    assert exact.exit_code == 1
    assert "BudgetTooSmall" in exact.stderr


def test_each_slice_shows_its_price_and_whether_the_state_fits(tmp_path: Path) -> None:
    done = plan(
        tmp_path,
        "--model-config", config(tmp_path, "Qwen2.5-72B-Instruct"),
        max_memory="200Gi", max_ephemeral_storage=None, hyperparameters={"globalBatchSize": 16},
    )  # fmt: skip
    assert done.exit_code == 1
    assert "bot: MemoryExceeded: parameters and optimizer state alone take 101." in done.stderr
    assert row(done, "Considered") == (
        "v6e-4 2x2 (one-host, OnDemand, 10.80 USD/h): chosen; too small, parameters and optimizer state take "
        "203.1 GiB of 31.2 GiB a chip"
    )
    assert (
        "v6e-8 2x4 (two-hosts, OnDemand, 21.60 USD/h): tried next (1), if the training does not fit; "
        in done.stdout
    )


def test_nodes_that_are_too_small_for_the_model_are_refused(tmp_path: Path) -> None:
    small = plan(tmp_path, "--model-config", config(tmp_path, "Qwen2.5-72B-Instruct"), max_memory="16Gi")
    assert small.exit_code == 1
    assert "bot: CpuPoolTooSmall: Convert needs " in small.stderr
    assert row(small, "Host memory").startswith("Preflight 8 GiB, Convert ")
    disk = plan(tmp_path, "--model-config", config(tmp_path, "Qwen2.5-72B-Instruct"))
    assert "of scratch space, and the profile's cpuPool.maxEphemeralStorage is 151Gi" in disk.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not the JSON object of a model's config.json"),
        ("[1]", "is not the JSON object of a model's config.json"),
        ("[" * 100_000, "is not the JSON object of a model's config.json"),
        ('{"a": "' + "b" * (1 << 20) + '"}', "is not the JSON object of a model's config.json"),
        ('{"architectures": ["Other"]}', "architectures: ['Other'] is not supported: expected one of Llama"),
        (
            '{"architectures": ["LlamaForCausalLM"], "hidden_size": -1}',
            "hidden_size: -1, expected an integer",
        ),
    ],
)
def test_a_file_that_is_no_models_config_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    done = plan(tmp_path, "--model-config", str(file))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{file}: " in done.stderr
    assert said in done.stderr


def test_a_config_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = plan(tmp_path, "--model-config", "/no/such/config.json")
    assert done.exit_code == 1
    assert "/no/such/config.json: No such file" in done.stderr


def test_one_models_config_is_not_used_for_another_model(tmp_path: Path) -> None:
    jobs = [
        {
            "apiVersion": "tpu-finetune.dev/v1alpha1",
            "kind": "FineTuneJob",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": {
                **model(f"Qwen/{name}"),
                "datasets": {"train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}]},
                "method": {"type": "SFT"},
            },
        }
        for name in ("one", "two")
    ]
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all(jobs))
    done = CliRunner().invoke(app, ["plan", "-f", str(file), "--model-config", config(tmp_path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--model-config is for jobs of one model" in done.stderr


def past_ledger(folder: Path, *seconds: int) -> str:
    """Returns the URI of a ledger with jobs of 100 steps like the one that ``plan`` plans, which took so long."""
    found = facts(folder, hyperparameters={"globalBatchSize": 16})
    chips = found["resources"]["chips"]
    trained = {
        "start_step": 0,
        "end_step": 100,
        "attempts": 1,
        "method": "SFT",
        "lora": False,
        "max_seq_length": 1024,
        "global_batch_size": 16,
    }
    for number, each in enumerate(seconds):
        kept = record(
            day=datetime.now(UTC).date(), uid=f"job-{number}", model="Qwen/Qwen3-unpublished",
            trained={**trained, "seconds": each}, tpu=found["resources"]["tpu"], chips=chips,
        )  # fmt: skip
        file = Path(record_uri(str(folder / "ledger"), kept))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(kept.to_json())
    return f"file://{folder}/ledger"


def test_past_runs_of_the_shape_in_the_ledger_add_time_and_cost(tmp_path: Path) -> None:
    uri = past_ledger(tmp_path, 1000, 1200, 3000)
    options: dict[str, Any] = {"hyperparameters": {"globalBatchSize": 16, "steps": 500}}
    done = plan(tmp_path, "--ledger", uri, **options)
    assert row(done, "Past runs") == "12 s a step (10 s to 30 s)"
    assert "1 h 40 min (1 h 23 min to 4 h 10 min) for 500 steps" in done.stdout
    assert "median and range of 3 jobs of 100 steps (3 attempts) with this model" in done.stdout
    assert "how long such trainings have taken" not in done.stdout
    (found,) = json.loads(plan(tmp_path, "--ledger", uri, "-o", "json", **options).stdout)["plans"]
    past, chips = found["time"]["pastRuns"], found["resources"]["chips"]
    assert (past["attempts"], past["jobs"], past["steps"]) == (3, 3, {"low": 100, "high": 100})
    assert past["secondsPerStep"] == {"low": 10.0, "median": 12.0, "high": 30.0}
    assert past["trainingSeconds"] == {"low": 5000.0, "median": 6000.0, "high": 15000.0}
    hours = {
        name: pytest.approx(each * chips / 3600, rel=1e-4) for name, each in past["trainingSeconds"].items()
    }
    assert past["chipHours"] == hours


def test_without_past_runs_the_plan_is_as_without_a_ledger(tmp_path: Path) -> None:
    options: dict[str, Any] = {"hyperparameters": {"globalBatchSize": 32}}
    done = plan(tmp_path, "--ledger", past_ledger(tmp_path, 1000), **options)
    assert row(done, "Past runs").startswith("none of the last 90 days in the ledger with this model, method")


def test_without_the_number_of_steps_past_runs_tell_the_time_of_a_step(tmp_path: Path) -> None:
    uri = past_ledger(tmp_path, 1000)
    done = plan(tmp_path, "--ledger", uri, "-o", "json", hyperparameters={"globalBatchSize": 16})
    (found,) = json.loads(done.stdout)["plans"]
    past = found["time"]["pastRuns"]
    assert past["secondsPerStep"]["median"] == 10.0
    assert past["trainingSeconds"] is past["chipHours"] is None


@pytest.mark.parametrize("uri", ["http://ledger", "gs://", "/ledger"])
def test_a_ledger_that_is_no_folder_is_a_wrong_argument(tmp_path: Path, uri: str) -> None:
    done = plan(tmp_path, "--ledger", uri)
    assert done.exit_code == 2
    assert "is not the URI of a folder" in done.stderr


def test_a_plan_without_the_option_reads_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``plan`` opens no socket: the variable of ``finetune costs`` is not used."""
    monkeypatch.setenv("FINETUNE_LEDGER", past_ledger(tmp_path, 1000))
    assert facts(tmp_path, hyperparameters={"globalBatchSize": 16})["time"]["pastRuns"] is None


@pytest.mark.parametrize("name", ["bare", "known"])
def test_the_output_for_programs_is_as_documented(name: str, tmp_path: Path) -> None:
    """A change of a field's name or meaning needs another FACTS_VERSION; docs/command-line.md lists the fields."""
    options = ("--model-config", config(tmp_path), "--rows", "1000") if name == "known" else ()
    done = plan(
        tmp_path, *options, "-o", "json", hyperparameters={"globalBatchSize": 16}, budget={"maxCost": 100}
    )
    document = json.loads(done.stdout)
    for each in document["plans"]:
        del each["jobSets"]  # compared with files of their own
    check(Path(__file__).parent / "plans" / f"{name}.json", json.dumps(document, indent=2) + "\n")


def test_the_documentation_lists_the_fields_of_the_output() -> None:
    (found,) = json.loads((Path(__file__).parent / "plans" / "known.json").read_text())["plans"]
    page = (ROOT / "docs" / "command-line.md").read_text()
    rows = "\n".join(line.partition("|")[2].partition("|")[0] for line in page.splitlines())
    documented = set(re.findall(r"`plans\[\]\.(\w+)`", rows))
    assert {*found, "jobSets", "cpuImage", "pathways", "monthlyChipHours"} == documented


def test_a_chat_template_is_shown_as_the_jinja_that_json_becomes(tmp_path: Path) -> None:
    given = json.dumps({"PROMPT_TEMPLATE": "Solve:\n{question}"})
    datasets = {"train": [{"uri": "gs://my-project-data/team-a/a.jsonl"}], "chatTemplate": {"inline": given}}
    page = plan(tmp_path, datasets=datasets).stdout
    assert "Template     {%- set rewritten = namespace(messages=[]) %}" in page
    assert r"{%- set text = 'Solve:\n' ~ (text | trim) %}" in page
    assert page.count("{% include 'tokenizer' %}") == 1
    (shown,) = json.loads(plan(tmp_path, "-o", "json", datasets=datasets).stdout)["plans"]
    assert shown["chatTemplate"].splitlines()[-1] == "{% include 'tokenizer' %}"


def test_a_long_chat_template_is_shown_in_part(tmp_path: Path) -> None:
    datasets = {
        "train": [{"uri": "gs://my-project-data/team-a/a.jsonl"}],
        "chatTemplate": {"inline": "\n".join(f"{{#- {number} #}}" for number in range(30))},
    }
    page = plan(tmp_path, datasets=datasets).stdout
    assert "{#- 23 #}" in page
    assert "{#- 24 #}" not in page
    assert "and 6 more lines; -o json has all" in page


# --- the profile of a cluster ----------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The cluster of the current context, whose namespace is team-a, with the example's profile."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with stand_in(folder) as server:
        server.put("finetuneprofiles", yaml.safe_load(CLOUD.read_text()))
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


def planned(folder: Path, *options: object, **metadata: str) -> Result:
    """Of a job without a profile in its file, and without a namespace unless ``metadata`` has one."""
    spec = {
        "datasets": {"train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}]},
        "method": {"type": "SFT"},
    }
    job = {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "bot", **metadata},
        "spec": {**model("Qwen/Qwen3-0.6B"), **spec},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return CliRunner().invoke(app, ["plan", "-f", str(file), *map(str, options)])


def name_of(profile: Path) -> str:
    return str(yaml.safe_load(profile.read_text())["metadata"]["name"])


def source(server: StandIn, profile: str = name_of(CLOUD)) -> str:
    return f"Profile {profile} of context test, cluster {server.address}.\n"


def without_profile(done: Result) -> bool:
    """Whether the command says that the file contains none, and nothing else."""
    return done.exit_code == 1 and re.fullmatch(
        r"Error: \S+job\.yaml: contains no FineTuneProfile, which defines where jobs may run\.\n"
        r"Fix:   Give --profile FILE; .*\n",
        done.stderr,
    ) is not None  # fmt: skip


def test_without_a_profile_the_clusters_is_taken_and_named(tmp_path: Path, server: StandIn) -> None:
    asked = planned(tmp_path)
    assert (asked.exit_code, asked.stderr) == (0, source(server)), asked.output
    assert asked.stdout == planned(tmp_path, "--profile", CLOUD, "-n", "team-a").stdout


def test_a_profile_among_the_manifests_asks_no_cluster(tmp_path: Path, server: StandIn) -> None:
    done = planned(tmp_path, "--profile", CLOUD, namespace="team-a")
    assert (done.exit_code, done.stderr, server.api.lists) == (0, "", [])


def test_offline_asks_no_cluster(tmp_path: Path, server: StandIn) -> None:
    assert without_profile(planned(tmp_path, "--offline"))
    assert server.api.lists == []


def test_a_cluster_that_does_not_answer_in_time_is_as_none(
    tmp_path: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hangs = True
    monkeypatch.setattr("finetune_operator.cli.connect.options._SECONDS", 0.05)
    assert without_profile(planned(tmp_path))


def test_without_a_kubeconfig_a_profile_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert without_profile(planned(tmp_path))


def test_a_cluster_that_an_option_names_has_to_answer(tmp_path: Path, server: StandIn) -> None:
    done = planned(tmp_path, "--context", "tset")
    assert done.exit_code == 1
    assert "Did you mean test?" in done.stderr


def test_a_cluster_without_a_profile_is_named(tmp_path: Path, server: StandIn) -> None:
    server.api.objects.clear()
    done = planned(tmp_path)
    assert done.exit_code == 1
    named, error, _ = done.stderr.splitlines()
    assert named == f"No profile of context test, cluster {server.address}."
    assert error.endswith("contains no FineTuneProfile, which defines where jobs may run.")


def test_what_the_clusters_profile_refuses_is_reported_in_its_words(tmp_path: Path, server: StandIn) -> None:
    done = planned(tmp_path, namespace="team-b")
    assert done.exit_code == 1
    assert "bot: NoDefaultProfile: spec.profileRef is left out" in done.stderr
