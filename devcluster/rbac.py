"""A controller's permissions, bound to the user that it runs as."""

from finetune_operator.objects import Object

_GROUP = "rbac.authorization.k8s.io"


def manager_role(name: str, role: Object, user: str) -> list[Object]:
    """``role``, the project's own ClusterRole, under the name ``<name>-manager-role``, and its binding."""
    named = {**role, "metadata": {**role["metadata"], "name": f"{name}-manager-role"}}
    binding = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{name}-manager-rolebinding"},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": named["metadata"]["name"]},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": user}],
    }
    return [named, binding]
