"""Of two releases that serve one namespace the later one waits."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from finetune_operator.cluster.port import CLUSTER_ROLES, KubernetesClient, Rejected
from finetune_operator.cluster.releases import RELEASE, SERVES
from finetune_operator.objects import Object
from finetune_operator.runtime.other_releases import earlier_releases
from finetune_operator.runtime.prerequisites import check_prerequisites

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def role(name: str, serves: str | None, created: str = OLD, *, release: str | None = "") -> Object:
    """The role of the release ours/NAME, unless ``release`` is another one; None for an old chart."""
    said = {SERVES: serves, RELEASE: f"ours/{name}" if release == "" else release}
    annotations = {name: value for name, value in said.items() if value is not None}
    return {"metadata": {"name": name, "creationTimestamp": created, "annotations": annotations}}


class Cluster:
    """Serves ClusterRoles, or refuses to."""

    def __init__(self, *roles: Object, refused: bool = False) -> None:
        self.roles, self.refused = roles, refused

    async def pages(self, kind: Any, *_: Any, **__: Any) -> AsyncIterator[Sequence[Object]]:
        if kind != CLUSTER_ROLES:
            return
        if self.refused:
            raise Rejected("forbidden")
        yield self.roles


async def found(
    *roles: Object, namespaces: Sequence[str] = ("a", "b"), refused: bool = False
) -> tuple[str, ...]:
    cluster = cast("KubernetesClient", Cluster(*roles, refused=refused))
    return await earlier_releases(cluster, "ours", "own", namespaces)


OWN = role("own", "a,b", NEW)


@pytest.mark.parametrize(
    ("other", "namespaces", "shared"),
    [
        (role("other", "b,c"), ("a", "b"), "b"),
        (role("other", "*"), ("a", "b"), "a, b"),
        (role("other", "c,d"), (), "c, d"),
        (role("other", "*"), (), "every namespace"),
        (role("one", "b", NEW), ("b",), "b"),
        (role("other", "c"), ("a", "b"), None),
        (role("other", None), (), None),
        (role("z-other", "a", NEW), ("a",), None),
        (role("other", "a", "2026-03-01T00:00:00Z"), ("a",), None),
    ],
)
async def test_an_earlier_release_of_a_shared_namespace_is_reported(
    other: Object, namespaces: Sequence[str], shared: str | None
) -> None:
    told = await found(OWN, other, namespaces=namespaces)
    assert len(told) == (shared is not None)
    if shared:
        assert f'ClusterRole "{other["metadata"]["name"]}" serves {shared} already' in told[0]


async def test_a_release_without_a_role_of_its_own_is_the_later_one() -> None:
    assert await found(role("other", "a", "2099-01-01T00:00:00Z"))


async def test_a_release_of_the_same_name_in_another_namespace_is_reported_although_it_serves_others() -> (
    None
):
    (told,) = await found(role("own", "c", NEW, release="theirs/own"), role("other", "a"))
    assert 'ClusterRole "own" belongs to release theirs/own, not to ours/own' in told
    assert "fullnameOverride" in told


async def test_a_role_that_an_earlier_chart_wrote_is_the_operators_own() -> None:
    assert await found(role("own", "a,b", NEW, release=None)) == ()


async def test_the_own_role_is_found_under_the_name_that_kustomize_has_given_it() -> None:
    """Kustomize renames the role, but neither its annotations nor the operator's environment."""
    renamed = role("prod-own", "a,b", NEW, release="ours/own")
    assert await found(renamed) == ()
    assert await found(role("old-own", "a,b", release="ours/own"), renamed) == ()
    assert await found(role("own", "c", release="theirs/own"), renamed) == ()
    (told,) = await found(role("test-own", "b", release="theirs/own"), renamed)
    assert 'ClusterRole "test-own" serves b already' in told


async def test_roles_that_cannot_be_read_stop_no_operator() -> None:
    assert await found(refused=True) == ()


async def test_the_operator_waits_until_the_other_release_has_gone() -> None:
    cluster = Cluster(OWN, role("other", "a"))

    async def missing() -> tuple[str, ...]:
        client = cast("KubernetesClient", cluster)
        return (await check_prerequisites(client, ["a"], own_namespace="ours", own_name="own")).missing

    assert "other" in (await missing())[0]
    cluster.roles = (OWN,)
    assert not await missing()
