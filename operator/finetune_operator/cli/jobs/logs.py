"""``finetune logs``: the logs of a stage's pods, or the stored end of the log after they are deleted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finetune_contract import RunFolder, Stage
from finetune_contract.log_line import readable
from finetune_operator.artifacts.port import ObjectStore, ObjectTooLarge
from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.connect.store import explained
from finetune_operator.cli.errors import CliError, task_group
from finetune_operator.cluster.port import JOBS, PODS, ClusterError
from finetune_operator.objects import Object
from finetune_operator.rendering import attempt_of

type Write = Callable[[str], None]

_OVER = ("Succeeded", "Failed", "Skipped")
#: Maximum bytes of a stored log. The trainer stores 200 lines of any length.
_KEPT_LIMIT = 16 * 2**20


type Place = tuple[Stage, int, int]
"""An attempt: stage, number of the JobSet, restart of that JobSet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSelection:
    """Selects the logs of a whole job, of one stage, or of one attempt of a stage."""

    stage: Stage | None = None
    attempt: int | None = None

    def matches(self, pod: Object, job: Object) -> bool:
        place = attempt_of(pod)
        if place is None or self.stage not in (None, place[0]):
            return False
        return self.attempt is None or _numbers(job).get(place) == self.attempt


def _numbers(job: Object) -> dict[Place, int]:
    """Returns the number that users see for every attempt in the status."""
    status = job_status.status_of(job)
    newest = [{**each, "stage": each["name"]} for each in status.get("stages") or []]
    record = [*((status.get("attempts") or {}).get("history") or []), *newest]
    return {
        _place(each): int(each["attempt"]) for each in record if each.get("attempt") and each.get("jobSet")
    }


def _place(record: Object) -> Place:
    number = int(str(record["jobSet"]).rpartition("-")[2])
    return Stage(record["stage"]), number, int(record.get("restart") or 0)


def has_started(pod: Object) -> bool:
    """Whether the pod's container runs or has run, so that it has a log."""
    states = [status.get("state", {}) for status in pod.get("status", {}).get("containerStatuses") or []]
    return any("running" in state or "terminated" in state for state in states)


async def show_logs(
    connection: Connection,
    name: str,
    selection: LogSelection,
    *,
    follow: bool,
    store: ObjectStore,
    write: Write,
) -> None:
    """Prints the newest attempt of the selection; with ``follow``, also all later output of the selection."""
    job = await connection.job(name)
    labels = {"tpu-finetune.dev/job-uid": str(job["metadata"]["uid"])}
    if follow and not _over(job, selection):
        await _follow(connection, job, labels, selection, write)
        return
    pods = [pod for pod in await connection.pods(labels) if selection.matches(pod, job) and has_started(pod)]
    if not pods:
        write(await kept_log(job, selection, store))
        return
    places = [place for pod in pods if (place := attempt_of(pod))]
    newest = max(places, key=lambda place: (place[0].order, *place[1:]))
    chosen = sorted(
        (pod["metadata"]["name"] for pod in pods if attempt_of(pod) == newest),
    )
    for pod in chosen:
        async for line in connection.log(pod, follow=False):
            write(f"{_prefix(pod, chosen)}{text.printable(readable(line))}")


def _over(job: Object, selection: LogSelection) -> bool:
    """Whether the selection will produce no further output."""
    if job_status.ended(job):
        return True
    if selection.stage is None:
        return False
    for stage in job_status.status_of(job).get("stages") or []:
        if stage.get("name") == selection.stage:
            current = int(stage.get("attempt") or 0)
            passed = selection.attempt is not None and current > selection.attempt
            return passed or stage.get("phase") in _OVER
    return False


def _prefix(pod: str, all_pods: Sequence[str]) -> str:
    """Returns the prefix of a pod's lines, ``slice-0-1 | ``; empty if there is only one pod."""
    if len(all_pods) < 2:
        return ""
    # <jobset>-<replicated job>-<job index>-<pod index>-<random>
    return f"{'-'.join(pod.split('-')[-4:-1])} | "


def _title(pod: Object) -> str:
    """Returns an attempt's title: ``Train quickstart-train-2``, with ``, restart 1`` after a restart of the JobSet."""
    labels, place = pod["metadata"]["labels"], attempt_of(pod)
    assert place is not None, "only pods of attempts are chosen"
    stage, number, restart = place
    jobset = labels.get("jobset.sigs.k8s.io/jobset-name", f"{stage.short}-{number}")
    return f"{stage} {jobset}{f', restart {restart}' if restart else ''}"


async def _follow(
    connection: Connection, job: Object, labels: Mapping[str, str], selection: LogSelection, write: Write
) -> None:
    """Prints the log of each pod of the selection from its start, until the job or the selected stage has ended."""
    name, streams = str(job["metadata"]["name"]), set[str]()

    async def stream(pod: str, peers: Sequence[str]) -> None:
        try:
            async for line in connection.log(pod, follow=True):
                write(f"{_prefix(pod, peers)}{text.printable(readable(line))}")
        except ClusterError as error:
            write(f"[the log stream of {pod} ended early: {error}]")

    async def start_streams() -> None:
        async for pods in connection.follow(PODS, labels=labels):
            chosen = {pod: attempt_of(pods[pod]) for pod in pods if selection.matches(pods[pod], job)}
            for pod, attempt in chosen.items():
                if not has_started(pods[pod]) or pod in streams:
                    continue
                peers = [peer for peer in chosen if chosen[peer] == attempt]
                if streams.isdisjoint(peers):
                    write(f"=== {_title(pods[pod])}")
                streams.add(pod)
                group.create_task(stream(pod, peers))

    async with task_group() as group:
        starting = group.create_task(start_streams())
        async for jobs in connection.follow(JOBS, name=name):
            if name not in jobs or _over(jobs[name], selection):
                break
            job = jobs[name]
        # The group waits for the streams: their last lines may arrive after the end of the job was observed.
        starting.cancel()


async def kept_log(job: Object, selection: LogSelection, store: ObjectStore) -> str:
    """Returns the end of an attempt's log that the trainer stored in the run folder. Raises CliError if it has none."""
    status = job_status.status_of(job)
    folder = (status.get("resolved") or {}).get("runFolder")
    if not folder:
        raise CliError(
            f"{job['metadata']['name']} has no pods and no run folder yet.",
            fix=f"`finetune status {job['metadata']['name']}` shows what it waits for.",
        )
    stage, number, restart = _newest_attempt(job, selection)
    uri = RunFolder(str(folder)).log_tail(stage.short, number, restart)
    try:
        with explained():
            content = await store.read(uri, limit=_KEPT_LIMIT)
    except CliError as error:
        large = "Copy that file with the store's own client (on Google Cloud: gcloud storage cp)."
        raise CliError(
            f"The pods of {stage} are deleted, and the stored end of its log is not readable. {error.message}",
            fix=large if isinstance(error.__cause__, ObjectTooLarge) else error.fix,
        ) from error
    if content is None:
        raise CliError(
            f"The pods of {stage} are deleted and there is no stored log at {uri}.",
            fix="An attempt that was killed stores none; try an earlier one with --attempt.",
        )
    return text.printable(content.decode(errors="replace").rstrip("\n"))


def _newest_attempt(job: Object, selection: LogSelection) -> Place:
    """Returns the last attempt of the last stage that ran, within the selection. Raises CliError if none ran."""
    name = job["metadata"]["name"]
    numbers = _numbers(job)
    if selection.stage is not None and not any(stage is selection.stage for stage, *_ in numbers):
        there = ", ".join(dict.fromkeys(stage.value for stage, *_ in numbers)) or "no stage"
        raise CliError(f"{selection.stage} of {name} has not run. Stages that ran: {there}.")
    chosen = [
        place
        for place, number in numbers.items()
        if selection.stage in (None, place[0]) and selection.attempt in (None, number)
    ]
    if not chosen:
        raise CliError(
            f"{'No stage' if not numbers else 'No such attempt'} of {name} has run yet.",
            fix=f"`finetune status {name}` shows what it waits for.",
        )
    return max(chosen, key=lambda place: (place[0].order, *place[1:]))
