"""Invariants of a job's status and of the operator's actions, which hold for any content of the run folder."""

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
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import Decision
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.observation import RetryRecord, TakeoverRecord
from tests.unit.api.schema_oracle import check_rules, check_schema
from tests.unit.lifecycle.writes import writes
from tests.unit.reconcile.folder_world import PRICE, FolderWorld
from tools.crd import job_crd, root_schema

type Object = dict[str, Any]

STATUS = root_schema(job_crd())["properties"]["status"]
#: Maximum bytes of a status as JSON: etcd must accept the job with its spec and the fields of other clients.
MOST_STATUS = 256 * 1024
#: Maximum bytes of a JobSet as JSON.
MOST_JOBSET = 512 * 1024
#: Start time of every world.
BEGIN = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
#: Default limits of hangPolicy in seconds.
NO_STEP, STARTUP = 900, 1800
#: Reasons that the operator derives from a record's content or missing parts, or from its values under the job's plan.
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
    """Checks a world after every action of the operator."""

    world: FolderWorld
    kept: dict[str, Object] = field(default_factory=dict)
    """Entries of ``status.stages`` that must not change, by the stage's name."""
    figures: Counter[str] = field(default_factory=Counter)

    def keep_untouched(self) -> None:
        """Keeps the entries of stages that have succeeded and whose files are unchanged."""
        touched = self._touched()
        self.kept = {
            each["name"]: each
            for each in copy.deepcopy(self.world.status.get("stages", []))
            if each["phase"] == "Succeeded" and each["name"] not in touched
        }

    def look(self) -> Decision:
        """Runs one reconcile, checks all invariants after it, and returns its decision."""
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
        if world.status != before or writes(decision).jobset:
            self._is_stored(decision)
        self._counts(before)
        assert len(world.live()) <= 1, world.live()
        for deletion in writes(decision).deletions:
            if deletion.name in running:
                cause = self._cause(decision, keys[deletion.name], files, finished)
                assert cause, f"{deletion.name} was running and was deleted: {world.status}"
                self.figures[f"deleted: {cause}"] += 1
        if not finished:
            self._ended_rightly(files, before)
        self._untouched_stages()
        if writes(decision).retry is None and writes(decision).takeover is None:
            self._names_files(files, decision)
        assert decision.requeue_after is None or 0 <= decision.requeue_after < 10**7
        return decision

    def settle(self) -> None:
        """Checks that the operator stops writing when nothing changes."""
        noted: object = None
        for _ in range(8):
            before = copy.deepcopy(self.world.status)
            found = self.look()
            # If a result's date is in the future, every failure record seems to belong to an earlier run, and the
            # operator writes it again after a delay.
            again = writes(found).records == noted and (found.requeue_after or 0) >= 5
            noted = writes(found).records
            wrote = (
                writes(found).jobset,
                writes(found).records and not again,
                writes(found).deletions,
                writes(found).plan,
                writes(found).retry,
                writes(found).takeover,
            )
            if not any(wrote) and self.world.status == before:
                assert found.requeue_after is None or found.requeue_after > 0, "reconciles without delay"
                return
        raise AssertionError(f"every reconcile writes something: {self.world.status}")

    def stops(self) -> None:
        """Checks that a suspended job has no JobSet left after three reconciles, except one that is being deleted."""
        for _ in range(3):
            self.look()
        left = [n for n in self.world.live() if "deletionTimestamp" not in self.world.jobsets[n]["metadata"]]
        assert left == [], f"{left} still run although the job is suspended: {self.world.status}"

    # --- single invariants

    def _is_stored(self, decision: Decision) -> None:
        status = self.world.status
        assert check_schema(status, STATUS) == []
        assert check_rules(status, STATUS, sound=True) == []
        assert read_status(status).to_document() == status
        size = len(json.dumps(status, allow_nan=False))
        assert size < MOST_STATUS, f"a status of {size} bytes"
        if writes(decision).jobset:
            made = len(json.dumps(writes(decision).jobset, allow_nan=False))
            assert made < MOST_JOBSET, f"a JobSet of {made} bytes"
            self.world.request(writes(decision).jobset["metadata"]["name"])

    def _counts(self, before: Object) -> None:
        """Time and cost never decrease, and never exceed what the elapsed time allows."""
        status, elapsed = self.world.status, (self.world.now - BEGIN).total_seconds()
        seconds = status.get("activeTime", {}).get("seconds", 0)
        assert before.get("activeTime", {}).get("seconds", 0) <= seconds <= elapsed + 1
        chips = 8 if "v6e-8" in str(self.world.job["spec"]["resources"]) else 4
        for name, most in (("chipHours", elapsed * chips / 3600), ("amount", elapsed * chips / 3600 * PRICE)):
            told = float(status.get("cost", {}).get(name, 0))
            assert float(before.get("cost", {}).get(name, 0)) <= told <= most + 0.001, name

    def _cause(self, decision: Decision, key: AttemptKey, files: dict[str, bytes], finished: bool) -> str:
        """Returns the cause for which a running training is stopped, if it is both recorded and true; else ''."""
        world, status = self.world, self.world.status
        noted = {attempt: record.reason for attempt, record in writes(decision).records}
        noted |= {(each["stage"], each["number"]): each["reason"] for each in status.get("pending", ())}
        reason = noted.get(key) or noted.get((str(key.stage), key.number)) or self._noted(key, files)
        elapsed, spec = (world.now - BEGIN).total_seconds(), world.job["spec"]
        if finished:
            return "the job had ended"
        if spec.get("suspend"):
            return "suspended"
        if spec.get("cancel"):
            return "cancelled"
        if reason == "BudgetExhausted" and "budget" in spec:
            used, most = elapsed * 8 / 3600, float(spec["budget"]["maxChipHours"])
            return "budget" if used >= most else ""
        if reason == "DeadlineExceeded" and elapsed >= spec.get("activeDeadlineSeconds", 10**12):
            return "deadline"
        # The operator remembers the progress of a completed training.
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
        """Whether a file of an attempt at the stage, whose JobSet was created, shows this reason."""
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
                # As long as the status names no attempt, the first attempts in the run folder count as the job's.
                made.add(1)
            # A tenant may write anything into the job's own attempts: docs/security.md, "Evidence is self-attested".
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
            ), "no attempt at Export has a result that shows success"
        if status.get("phase") == "Failed":
            failure = status["failure"]
            assert failure["reason"]
            assert failure["message"] or failure["reason"] not in DERIVED
            assert world.condition("Succeeded")["status"] == "False"
            assert world.condition("Finished")["status"] == "True"

    def _remembered_export(self) -> bool:
        """Whether the operator has read a successful result of Export before another client changed it."""
        return any(
            key.stage is Stage.EXPORT and each.result and each.result.outcome is Outcome.SUCCEEDED
            for key, each in self.world.view.attempts.items()
            if f"{self.world.job['metadata']['name']}-export-{key.number}" in self.world.ran
        )

    def _untouched_stages(self) -> None:
        told = {each["name"]: each for each in self.world.status.get("stages", ())}
        for name, entry in self.kept.items():
            assert told.get(name) == entry, f"{name} has unchanged files: {entry} -> {told.get(name)}"

    def _names_files(self, files: dict[str, bytes], decision: Decision) -> None:
        """Every file that was read and is no valid record is named in the view; the status has the first warning."""
        world, view = self.world, self.world.view
        texts = [*view.warnings, *(each.malformed or each.newer or "" for each in view.attempts.values())]
        texts += [each.message for each in (view.progress_unknown, view.unreadable) if each]
        for call in world.store.calls:
            verb, _, uri = call.partition(" ")
            model = _model_of(uri)
            if verb == "read" and uri in files and model and _parsed(files[uri], model) is None:
                assert view.unreadable or any(uri in text for text in texts), (
                    f"no message names {uri}: {texts}"
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
        """Returns the stages with at least one changed file."""
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
        # Preflight's result determines which conversion the operator looks up.
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
