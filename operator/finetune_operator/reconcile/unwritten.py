"""Statuses that the API server has not taken, so that what their jobs use counts although nothing shows it.

A tenant can fill the metadata of a job until etcd has no room for its status.
"""

from finetune_operator.cluster.port import Object

#: Jobs that are remembered; those whose status failed first are forgotten. A status has some 10 KB.
_MOST = 256


class UnwrittenStatuses:
    """Of one operator, in memory. It is used by one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[str, Object] = {}
        """By UID: the job with the status that could not be written last."""

    def keep(self, job: Object) -> None:
        """Takes a job with a status that could not be written. One that reports an error has no newer usage."""
        uid = job["metadata"]["uid"]
        if _reported_at(job) > _reported_at(self._jobs.get(uid, {})):
            self._jobs[uid] = job
        if len(self._jobs) > _MOST:
            del self._jobs[next(iter(self._jobs))]

    def newest(self, job: Object) -> Object:
        """Returns a job with the newer of its status and one that could not be written."""
        # Of two with the same time, one reports an error and repeats the stored status.
        return max(self._jobs.get(job["metadata"]["uid"], job), job, key=_reported_at)


def _reported_at(job: Object) -> str:
    """Timestamps of one format sort as the times do."""
    return str(((job.get("status") or {}).get("activeTime") or {}).get("asOf") or "")
