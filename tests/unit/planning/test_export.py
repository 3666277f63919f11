"""How spec.export is resolved."""

import re
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.planning import Findings, Refused, admit
from finetune_operator.rendering import render_jobset
from tests.unit.lifecycle.world import job, profile

HUB = {"huggingFaceHub": {"repo": "acme/bot", "tokenSecretRef": {"name": "hf-write", "key": "rw"}}}
BUCKET = {"uri": "gs://models/bot/"}


def refusal(wanted: Any, **profiles: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(wanted, [profile(**profiles)])
    return caught.value


def secrets(stage: Stage, **spec: Any) -> dict[str, tuple[str, str]]:
    """Returns the Secrets of the stage's container by environment variable."""
    jobset = render_jobset(admit(job(**spec), [profile()]).plan, stage, 1, Findings())
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    found = {each["name"]: each.get("valueFrom", {}).get("secretKeyRef") for each in container["env"]}
    return {name: (ref["name"], ref["key"]) for name, ref in found.items() if ref}


def test_destinations_reach_the_trainer_without_any_token() -> None:
    plan = admit(job(export={"destinations": [BUCKET, HUB]}), [profile()]).plan
    bucket, hub = plan.export.destinations
    assert (bucket.uri, bucket.hub) == ("gs://models/bot", None)
    assert hub.path == "spec.export.destinations[1].huggingFaceHub"
    assert hub.hub is not None
    assert (hub.hub.repo, hub.hub.private, hub.hub.token_variable) == ("acme/bot", True, "HF_UPLOAD_TOKEN_1")


@pytest.mark.parametrize("stage", list(Stage))
def test_the_token_is_passed_by_reference_to_export_and_preflight(stage: Stage) -> None:
    """Preflight's pod does not start if the Secret is missing, which is found before any TPU is claimed."""
    found = secrets(stage, export={"destinations": [BUCKET, HUB]})
    wanted = {"HF_UPLOAD_TOKEN_1": ("hf-write", "rw")} if stage in (Stage.PREFLIGHT, Stage.EXPORT) else {}
    assert found == wanted


def test_the_jobs_token_is_used_if_the_destination_names_none() -> None:
    export = {"destinations": [{"huggingFaceHub": {"repo": "acme/bot", "private": False}}]}
    found = secrets(Stage.EXPORT, export=export, huggingFaceTokenSecretRef={"name": "hf"})
    assert found == {"HF_UPLOAD_TOKEN_0": ("hf", "token")}
    refused = refusal(job(export=export))
    assert refused.reason is Reason.INVALID_SPEC
    assert "spec.export.destinations[0].huggingFaceHub has no token" in refused.message


@pytest.mark.parametrize(
    ("destinations", "expected"),
    [
        (
            [BUCKET, HUB, {"uri": "gs://models/bot"}],
            r"destinations\[2\] is the same place as .*destinations\[0\]",
        ),
        ([HUB, HUB], r"destinations\[1\].huggingFaceHub is the same place as"),
        ([BUCKET, {"uri": "gs://models/bot/adapter"}], r"destinations\[1\] is in the folder of .*\[0\]"),
        ([{"uri": "gs://models/bot/a/b/"}, BUCKET], r"destinations\[0\] is in the folder of .*\[1\]"),
    ],
)
def test_destinations_that_overwrite_each_other_are_refused(destinations: list[Any], expected: str) -> None:
    refused = refusal(job(export={"destinations": destinations}))
    assert refused.reason is Reason.INVALID_SPEC
    assert re.search(expected, refused.message), refused.message


def test_destinations_beside_each_other_are_accepted() -> None:
    beside = [BUCKET, {"uri": "gs://models/bot-2"}, {"uri": "gs://models/other/bot"}]
    assert len(admit(job(export={"destinations": beside}), [profile()]).plan.export.destinations) == 3


def test_a_profile_that_restricts_exports_also_restricts_repositories() -> None:
    wanted = job(export={"destinations": [HUB]})
    uris = {"write": ["gs://models/*"]}
    assert "hf://acme/bot" in refusal(wanted, constraints={"uris": uris}).message
    admit(wanted, [profile(constraints={"uris": {"write": ["hf://acme/*"]}})])


def test_serving_manifests_run_as_the_account_that_reads_the_bucket() -> None:
    requested = {"serving": {"enabled": True}}
    accounts = profile(serviceAccounts={"tpu": "ft-train", "cpu": "ft-cpu"})
    assert admit(job(export=requested), [accounts]).plan.export.serving_account == "ft-cpu"
    assert admit(job(export={"serving": {"enabled": False}}), [accounts]).plan.export.serving_account is None
    lora = {"type": "SFT", "lora": {"rank": 4}}
    refused = refusal(job(method=lora, export={**requested, "content": "Adapter"}))
    assert "serve the merged model: use Both" in refused.message


def test_an_additional_format_is_exported_with_hugging_face() -> None:
    both = ["HuggingFace", "OrbaxParams"]
    assert admit(job(export={"formats": both}), [profile()]).plan.export.orbax
    assert not admit(job(), [profile()]).plan.export.orbax
    assert "Add HuggingFace" in refusal(job(export={"formats": ["OrbaxParams"]})).message
    lora = {"type": "SFT", "lora": {"rank": 4}}
    refused = refusal(job(method=lora, export={"formats": both, "content": "Adapter"}))
    assert "OrbaxParams holds the merged model" in refused.message
