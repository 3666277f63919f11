"""What has to be true of a job's status and of what is done for it, whatever lies in its run folder."""

import copy
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from finetune_contract import (
    ConvertManifest,
    ExportOutcome,
    Failure,
    Outcome,
    Progress,
    Stage,
    StageResult,
)
from finetune_operator.api import Reason
from finetune_operator.api.crd import job_crd, root_schema
from finetune_operator.cli.schema_check import check_rules, check_schema
from finetune_operator.lifecycle import AttemptKey, Decision
from finetune_operator.lifecycle.fitting import fit_schema
from finetune_operator.lifecycle.observation import RetryRecord, TakeoverRecord
from tests.unit.reconcile.folder_world import PRICE, FolderWorld

type Object = dict[str, Any]

STATUS = root_schema(job_crd())["properties"]["status"]
#: Bytes of a status as JSON: a job has to fit into etcd with its spec and what others add.
MOST_STATUS = 256 * 1024
#: Bytes of a JobSet.
MOST_JOBSET = 512 * 1024
#: When every world begins.
BEGIN = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
#: Limits of hangPolicy that apply where a job names none.
NO_STEP, STARTUP = 900, 1800
#: Failures that follow from what a record says or lacks, or from what it comes to under the job's plan.
DERIVED = {
    "ResultMalformed",
    "ResultIncomplete",
    "ExportNotProven",
    "GateNotMet",
    "ContractUnsupported",
    "CpuPoolTooSmall",
}
_MODELS: dict[str, type[Any]] = {
    "result.json": StageResult,
    "failure.json": Failure,
    "progress.json": Progress,
    "manifest.json": ConvertManifest,
}


@dataclass
class FolderOracle:
    """Looks at a world after the operator has, every time."""

    world: FolderWorld
    kept: dict[str, Object] = field(default_factory=dict)
    """Entries of ``status.stages`` that stay as they are."""
    figures: Counter[str] = field(default_factory=Counter)

    def keep_untouched(self) -> None:
        """Stages that have succeeded, and whose files nobody has touched."""
        touched = self._touched()
        self.kept = {
            each["name"]: each
            for each in copy.deepcopy(self.world.status.get("stages", []))
            if each["phase"] == "Succeeded" and each["name"] not in touched
        }

    def look(self) -> Decision:
        """One reconcile, and all that must hold after it."""
        world = self.world
        before, finished = copy.deepcopy(world.status), world.finished
        running = {
            name: copy.deepcopy(world.jobsets[name])
            for name in world.live()
            if world.key_of(name).stage is Stage.TRAIN
            and "deletionTimestamp" not in world.jobsets[name]["metadata"]
            and any(pod["status"]["phase"] == "Running" for pod in world.pods_of(name))
        }
        keys = {name: world.key_of(name) for name in running}
        files = world.files() if world.config_map else {}
        decision = world.reconcile()
        if world.status != before or decision.jobset:
            self._is_stored(decision)
        self._counts(before)
        assert len(world.live()) <= 1, world.live()
        for deletion in decision.deletions:
            if deletion.name in running:
                cause = self._cause(decision, keys[deletion.name], files, finished)
                assert cause, f"{deletion.name} was running and was deleted: {world.status}"
                self.figures[f"deleted: {cause}"] += 1
        if not finished:
            self._ended_rightly(files, before)
        self._untouched_stages()
        if decision.retry is None and decision.takeover is None:
            self._names_files(files, decision)
        assert decision.requeue_after is None or 0 <= decision.requeue_after < 10**7
        return decision

    def settle(self) -> None:
        """Without anything new, nothing is written any more."""
        noted: object = None
        for _ in range(8):
            before = copy.deepcopy(self.world.status)
            found = self.look()
            # A result with a date to come makes each note one of an earlier run; it is written again, and not at once.
            again = found.records == noted and (found.requeue_after or 0) >= 5
            noted = found.records
            wrote = (
                found.jobset,
                found.records and not again,
                found.deletions,
                found.snapshot,
                found.retry,
                found.takeover,
            )
            if not any(wrote) and self.world.status == before:
                assert found.requeue_after is None or found.requeue_after > 0, "it looks again and again"
                return
        raise AssertionError(f"every look writes something: {self.world.status}")

    def stops(self) -> None:
        """A job that is suspended has nothing running soon."""
        for _ in range(3):
            self.look()
        left = [n for n in self.world.live() if "deletionTimestamp" not in self.world.jobsets[n]["metadata"]]
        assert left == [], f"{left} run on although the job is suspended: {self.world.status}"

    # --- one by one

    def _is_stored(self, decision: Decision) -> None:
        status = self.world.status
        found = check_schema(status, STATUS) or check_rules(status, STATUS, sound=True)
        assert not found, [f"{each.place}: {each.message}" for each in found]
        assert fit_schema(status) == status
        size = len(json.dumps(status, allow_nan=False))
        assert size < MOST_STATUS, f"a status of {size} bytes"
        if decision.jobset:
            made = len(json.dumps(decision.jobset, allow_nan=False))
            assert made < MOST_JOBSET, f"a JobSet of {made} bytes"
            self.world.request(decision.jobset["metadata"]["name"])

    def _counts(self, before: Object) -> None:
        """Hours and money never fall, and are never more than there can have been."""
        status, elapsed = self.world.status, (self.world.now - BEGIN).total_seconds()
        seconds = status.get("activeTime", {}).get("seconds", 0)
        assert before.get("activeTime", {}).get("seconds", 0) <= seconds <= elapsed + 1
        chips = 8 if "v6e-8" in str(self.world.job["spec"]["resources"]) else 4
        for name, most in (("chipHours", elapsed * chips / 3600), ("amount", elapsed * chips / 3600 * PRICE)):
            told = float(status.get("cost", {}).get(name, 0))
            assert float(before.get("cost", {}).get(name, 0)) <= told <= most + 0.001, name

    def _cause(self, decision: Decision, key: AttemptKey, files: dict[str, bytes], finished: bool) -> str:
        """Why a running training is stopped: named, and true. '' where there is no such cause."""
        world, status = self.world, self.world.status
        noted = {attempt: record.reason for attempt, record in decision.records}
        noted |= {(each["stage"], each["number"]): each["reason"] for each in status.get("pending", ())}
        reason = noted.get(key) or noted.get((str(key.stage), key.number)) or self._noted(key, files)
        elapsed, spec = (world.now - BEGIN).total_seconds(), world.job["spec"]
        if finished:
            return "the job had ended"
        if spec.get("suspend"):
            return "suspended"
        if reason == "BudgetExhausted" and "budget" in spec:
            used, most = elapsed * 8 / 3600, float(spec["budget"]["maxChipHours"])
            return "budget" if used >= most else ""
        if reason == "DeadlineExceeded" and elapsed >= spec.get("activeDeadlineSeconds", 10**12):
            return "deadline"
        # What the operator has read of a training that is done it remembers.
        told = (_parsed(files.get(world.folders.run.progress), Progress), world.progress)
        ours = [each for each in told if each and (each.attempt, each.restart) == (key.number, key.restart)]
        if reason == "Hung" and any((world.now - each.updated).total_seconds() > NO_STEP for each in ours):
            return "hung"
        if reason == "StartupTimeout" and elapsed > STARTUP:
            return "startup"
        valid = world.condition("Valid")
        if valid["reason"] == Reason.RUN_FOLDER_TAKEN and world.view.takeovers:
            return "the folder is another job's"
        failed = [each for each in status.get("stages", ()) if each["phase"] == "Failed"]
        for each in failed:
            if self._evident(Stage(each["name"]), each["reason"]):
                return f"{each['name']} has failed"
        return (
            "all stages are done"
            if all(each["phase"] in ("Succeeded", "Skipped") for each in status["stages"])
            else ""
        )

    def _noted(self, key: AttemptKey, files: dict[str, bytes]) -> str:
        found = _parsed(files.get(self.world.folders.run.failure(*key.place)), Failure)
        return found.reason if found else ""

    def _evident(self, stage: Stage, reason: str) -> bool:
        """Whether a file of an attempt at the stage, which was really made, says so."""
        made = {int(name.rpartition("-")[2]) for name in self.world.created if f"-{stage.short}-" in name}
        places = tuple(f"/attempts/{stage.short}-{number}{end}" for number in made for end in ("/", "."))
        ours = {
            uri: content for uri, content in self.world.files().items() if any(each in uri for each in places)
        }
        if reason in DERIVED:
            return bool(ours)
        return any(f'"{reason}"'.encode() in content for content in ours.values())

    def _ended_rightly(self, files: dict[str, bytes], before: Object) -> None:
        world, status = self.world, self.world.status
        if status.get("phase") == "Succeeded":
            run, short = world.folders.run, Stage.EXPORT.short
            made = {_place(name)[1] for name in world.created if _place(name)[0] == short}
            if not before.get("attempts", {}).get("total"):
                # Of a job whose status names no attempt yet, the first ones in its folder count.
                made.add(1)
            # Under its own attempts a tenant may write what it likes: docs/security.md, "Evidence is self-attested".
            places = tuple(f"{run.attempts}/{short}-{number}{end}" for number in made for end in ("/", "."))
            proofs = [
                _parsed(content, StageResult)
                for uri, content in files.items()
                if uri.startswith(places) and uri.endswith("/result.json")
            ]
            assert (
                any(
                    each and each.outcome is Outcome.SUCCEEDED and isinstance(each.details, ExportOutcome)
                    for each in proofs
                )
                or self._remembered_export()
            ), "no Export of the job says so"
        if status.get("phase") == "Failed":
            failure = status["failure"]
            assert failure["reason"]
            assert failure["message"] or failure["reason"] not in DERIVED
            assert world.condition("Succeeded")["status"] == "False"
            assert world.condition("Finished")["status"] == "True"

    def _remembered_export(self) -> bool:
        """The operator has read it before it was tampered with."""
        return any(
            key.stage is Stage.EXPORT and each.result and each.result.outcome is Outcome.SUCCEEDED
            for key, each in self.world.view.attempts.items()
            if f"{self.world.job['metadata']['name']}-export-{key.number}" in self.world.ran
        )

    def _untouched_stages(self) -> None:
        told = {each["name"]: each for each in self.world.status.get("stages", ())}
        for name, entry in self.kept.items():
            assert told.get(name) == entry, f"{name} was not touched: {entry} -> {told.get(name)}"

    def _names_files(self, files: dict[str, bytes], decision: Decision) -> None:
        """Every file that was read and is no record is named; so is the first of them in the status."""
        world, view = self.world, self.world.view
        texts = [*view.warnings, *(each.malformed or each.newer or "" for each in view.attempts.values())]
        texts += [each.message for each in (view.progress_unknown, view.unreadable) if each]
        for call in world.store.calls:
            verb, _, uri = call.partition(" ")
            model = _model_of(uri)
            if verb == "read" and uri in files and model and _parsed(files[uri], model) is None:
                assert view.unreadable or any(uri in text for text in texts), (
                    f"{uri} is named by nobody: {texts}"
                )
        if world.finished or world.config_map is None:
            return
        condition = world.condition("RunFolderReadable")
        if view.unreadable:
            assert condition["reason"] == view.unreadable.reason
        elif view.warnings and condition["status"] == "True":
            assert condition["reason"] == Reason.RECORDS_IGNORED, condition
            assert view.warnings[0][:64] in condition["message"]

    def _touched(self) -> set[str]:
        """Stages of whose files one was changed."""
        found: set[str] = set()
        for uri in self.world.tampered:
            name = uri.removeprefix(self.world.folders.run.uri)
            parts = name.split("/")
            if "/convert/" in uri:
                found.add("Convert")
            elif name.startswith("/train/"):
                found.add("Train")
            elif parts[2].startswith(("retry-", "taken-over-")):
                found |= set(Stage)
            else:
                found |= {stage for stage in Stage if parts[2].startswith(f"{stage.short}-")}
        # The conversion that is looked up is the one that preflight names.
        return found | ({"Convert"} if "Preflight" in found else set())


def _place(name: str) -> tuple[str, int, int]:
    head, _, number = name.rpartition("-")
    return head.rpartition("-")[2], int(number), 0


def _model_of(uri: str) -> type[Any] | None:
    name = uri.rpartition("/")[2]
    if name.startswith("retry-"):
        return RetryRecord
    return TakeoverRecord if name.startswith("taken-over-") else _MODELS.get(name)


def _parsed(content: bytes | None, model: type[Any]) -> Any:
    try:
        return model.model_validate_json(content) if content is not None else None
    except ValidationError:
        return None
