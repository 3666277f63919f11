"""Which host of a slice holds up the others, by what each process has written of itself.

The processes of a training meet at every step. So when one stands still the others get as far as the step that they
need it for, and what each began last tells which one it is. Where all have begun the same step, the fault lies below
them, in chips or network, and nobody is named.
"""

from collections.abc import Mapping, Sequence

from finetune_contract import Failure, HostProgress, MeshSpec
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.times import stamp

#: As many are named; a slice may have hundreds.
_NAMED = 3


def identify_stragglers(
    failure: Failure, attempt: Attempt, told: Mapping[int, HostProgress], mesh: MeshSpec
) -> Failure:
    """``failure``, of an attempt that stands still, with the hosts that lag.

    Args:
        failure: that it stands still.
        attempt: which one.
        told: what the hosts say, by their number; also of earlier attempts.
        mesh: how many there are.
    """
    count = mesh.hosts * mesh.slices
    begun = children.first_start(attempt.pods)
    words = {
        host: word
        for host, word in told.items()
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
        f"All {count} hosts were at {_where(words[0])}, so none of them lags: chips or network stand still."
    )
    return _naming(failure, 0, alike)


def _place(word: HostProgress) -> tuple[int, int]:
    return word.step, word.evaluated


def _where(word: HostProgress) -> str:
    if word.evaluated:
        return f"batch {word.evaluated} of the evaluation after step {max(0, word.step)}"
    return f"step {word.step}" if word.step else "the preparation of the first step"


def _names(hosts: Sequence[int], attempt: Attempt, mesh: MeshSpec) -> str:
    """``Host 3 (pod demo-train-1-slice-0-3-x7k2p on node tpu-3)``."""
    named = []
    for host in hosts[:_NAMED]:
        pod = children.pod_of(attempt.pods, host, mesh.hosts)
        node = pod.get("spec", {}).get("nodeName") if pod else None
        place = f" (pod {pod['metadata']['name']}{f' on node {node}' if node else ''})" if pod else ""
        named.append(f"{host}{place}")
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return f"{'Host' if len(hosts) == 1 else 'Hosts'} {', '.join(named)}{more}"


def _naming(failure: Failure, host: int, sentence: str) -> Failure:
    return failure.model_copy(update={"host": host, "message": f"{failure.message} {sentence}"[:1024]})
