"""Finds the host of a slice that blocks the others, by the progress record of each process.

The processes of a training synchronize at every step. If one hangs, the others continue to the step that needs it, so
the process that started the earliest step is the one that hangs. If all have started the same step, chips or the
network are at fault, and no host is named.
"""

from collections.abc import Mapping, Sequence

from finetune_contract import Failure, HostProgress, MeshSpec
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.pods import first_start, pod_of_host

#: Maximum number of hosts that a message names; a slice may have hundreds.
_NAMED = 3


def identify_stragglers(
    failure: Failure, attempt: Attempt, reports: Mapping[int, HostProgress], mesh: MeshSpec
) -> Failure:
    """Returns ``failure`` with the hosts that block the others; unchanged if no host has a record of this run.

    ``failure``: the record of an attempt without progress. ``reports``: the hosts' progress records, by their number;
    also those of earlier attempts.
    """
    count = mesh.hosts * mesh.slices
    begun = first_start(attempt.pods)
    words = {
        host: word
        for host, word in reports.items()
        if (word.attempt, word.restart) == (attempt.key.number, attempt.key.restart)
        and (begun is None or word.updated >= begun)
    }
    if not words:
        return failure
    absent = [host for host in range(count) if host not in words]
    furthest = max(map(_place, words.values()))
    behind = [host for host in range(count) if host in words and _place(words[host]) < furthest]
    if absent:
        which = _names(absent, attempt, mesh)
        return _naming(failure, absent[0], f"{which} did not start training, and the others wait for it.")
    if behind:
        least = min(_place(words[host]) for host in behind)
        last = [host for host in behind if _place(words[host]) == least]
        which, word = _names(last, attempt, mesh), words[last[0]]
        return _naming(
            failure,
            last[0],
            f"{which} got no further than {_where(word)} (at {stamp(word.updated)}); the others were at "
            f"{_where(max(words.values(), key=_place))}.",
        )
    alike = (
        f"All {count} hosts were at {_where(words[0])}, so none of them lags: chips or network are at fault."
    )
    return _naming(failure, 0, alike)


def _place(word: HostProgress) -> tuple[int, int]:
    return word.step, word.evaluated


def _where(word: HostProgress) -> str:
    if word.evaluated:
        return f"batch {word.evaluated} of the evaluation after step {max(0, word.step)}"
    return f"step {word.step}" if word.step else "the preparation of the first step"


def _names(hosts: Sequence[int], attempt: Attempt, mesh: MeshSpec) -> str:
    """Returns names such as ``Host 3 (pod demo-train-1-slice-0-3-x7k2p on node tpu-3)``."""
    named = []
    for host in hosts[:_NAMED]:
        pod = pod_of_host(attempt.pods, host, mesh.hosts)
        node = pod.node_name if pod else None
        place = f" (pod {pod.name}{f' on node {node}' if node else ''})" if pod else ""
        named.append(f"{host}{place}")
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return f"{'Host' if len(hosts) == 1 else 'Hosts'} {', '.join(named)}{more}"


def _naming(failure: Failure, host: int, sentence: str) -> Failure:
    return failure.model_copy(update={"host": host, "message": f"{failure.message} {sentence}"[:1024]})
