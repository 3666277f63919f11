"""The checks of ``finetune doctor``: a :class:`Setup` in, findings out. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from finetune_operator.api import DEFAULT_PROFILE_ANNOTATION, Reason
from finetune_operator.api.conditions import stored_condition
from finetune_operator.cli.doctor.nodes import check_nodes
from finetune_operator.cli.doctor.setup import Check, Finding, Findings, Setup
from finetune_operator.cluster.port import JOBS, JOBSETS, LOCAL_QUEUES, PROFILES, ResourceKind
from finetune_operator.cluster.releases import EVERY, served_namespaces
from finetune_operator.lifecycle.children.quotas import Quota, applies_to_all_pods, needs
from finetune_operator.objects import Object
from finetune_operator.planning import Refused, check_profile_object, default_profile
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.policy.profile_checks import image_remarks
from finetune_operator.planning.slices.choice import slice_label
from finetune_operator.planning.slices.topology import offered_shapes
from finetune_operator.rendering import quantities

_JOB_COUNT = "count/finetunejobs.tpu-finetune.dev"
_GOOGLE_ACCOUNT = "iam.gke.io/gcp-service-account"


def findings(setup: Setup) -> list[Finding]:
    """Returns the findings of all checks, in the order in which they should be mended."""
    return [found for check in CHECKS for found in check(setup)]


def _kinds(setup: Setup) -> Findings:
    for kind in (JOBS, PROFILES):
        yield _served(setup, Check.CRDS, kind, _install(setup.operator_namespace))


def _install(namespace: str) -> str:
    return (
        f"helm upgrade --install finetune-operator charts/finetune-operator --namespace {namespace} "
        "--create-namespace --values values.yaml"
    )


def _operator(setup: Setup) -> Findings:
    where = setup.operator_namespace
    if setup.operators is None:
        yield Check.OPERATOR.unknown(f"You may not read Deployments in {where}.")
    elif not setup.operators:
        fix = f"--operator-namespace, if it runs elsewhere (helm list --all-namespaces); {_install(where)}"
        yield Check.OPERATOR.missing(f"Namespace {where} has no operator.", fix)
    elif not any((each.get("status") or {}).get("availableReplicas") for each in setup.operators):
        deployment = setup.operators[0]["metadata"]["name"]
        fix = f"kubectl describe pods --namespace {where} --selector app.kubernetes.io/name=finetune-operator"
        yield Check.OPERATOR.missing(f"No pod of Deployment {where}/{deployment} is ready.", fix)
    else:
        yield Check.OPERATOR.ok(f"The operator in {where} is ready.")
    yield from _served_namespace(setup)


def _served_namespace(setup: Setup) -> Findings:
    """Whether an operator serves the namespace: a profile that does is not enough."""
    namespace = setup.namespace
    if setup.operator_roles is None:
        yield Check.OPERATOR.unknown(
            f"You may not read ClusterRoles, which say whether {namespace} is served."
        )
        return
    served = {each for role in setup.operator_roles for each in served_namespaces(role)}
    statuses = (profile.get("status") or {} for profile in setup.serving)
    if any(namespace in (status.get("lostNamespaces") or ()) for status in statuses):
        fix = f"give the operator its Role and RoleBinding again: {_install(setup.operator_namespace)}"
        yield Check.OPERATOR.missing(
            f"The operator may not watch {namespace}: nothing starts or stops there.", fix
        )
    elif {EVERY, namespace} & served:
        yield Check.OPERATOR.ok(f"An operator serves {namespace}.")
    elif setup.operator_roles:
        fix = (
            f"add {namespace} to namespaces in values.yaml (deploy/gke/setup.sh: TEAMS), then "
            f"{_install(setup.operator_namespace)}"
        )
        others = ", ".join(sorted(served)) or "no namespace"
        yield Check.OPERATOR.missing(f"No operator serves {namespace}; served: {others}.", fix)


def _jobset(setup: Setup) -> Findings:
    release = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
    yield _served(setup, Check.JOBSET, JOBSETS, f"kubectl apply --server-side -f {release}")


def _profiles(setup: Setup) -> Findings:
    if setup.profiles is None:
        yield Check.PROFILES.unknown("You may not read FineTuneProfiles, nor is what they name checked.")
        return
    if not setup.serving:
        fix = f"kubectl edit finetuneprofile NAME, and add {setup.namespace} to spec.namespaces"
        yield Check.PROFILES.missing(f"No profile serves namespace {setup.namespace}.", fix)
    for profile in setup.serving:
        own = profile["metadata"]["name"]
        fault = _fault(profile)
        fix = f"kubectl edit finetuneprofile {own}"
        if fault:
            yield Check.PROFILES.missing(f"Profile {own} is not valid: {fault}", fix)
        else:
            yield Check.PROFILES.ok(f"Profile {own} is valid.")
            for remark in image_remarks(check_profile_object(profile)):
                yield Check.PROFILES.unknown(f"Profile {own}: {remark}", fix)
    if setup.serving:
        yield _default(setup)


def _default(setup: Setup) -> Finding:
    """Under which profile jobs run that name none."""
    try:
        own = default_profile(setup.namespace, setup.profiles or ())["metadata"]["name"]
    except Refused as refused:
        if refused.reason is Reason.AMBIGUOUS_DEFAULT_PROFILE:
            fix = f"kubectl annotate finetuneprofile NAME {DEFAULT_PROFILE_ANNOTATION}-"
            return Check.PROFILES.missing(refused.message, fix)
        message = f"Jobs name their profile: several serve {setup.namespace}, and none is marked as default."
        return Check.PROFILES.ok(message)
    return Check.PROFILES.ok(f"Jobs that name no profile run under {own}.")


def _fault(profile: Object) -> str:
    try:
        check_profile_object(profile)
    except Refused as refused:
        return refused.message
    valid = stored_condition(profile, "Valid")
    return str(valid["message"]) if valid.get("status") == "False" else ""


def _accounts(setup: Setup) -> Findings:
    wanted = {}
    for profile in setup.serving:
        for account in (profile["spec"].get("serviceAccounts") or {}).values():
            wanted[account] = profile["metadata"]["name"]
    if setup.accounts is None:
        yield Check.ACCOUNTS.unknown(f"You may not read ServiceAccounts in {setup.namespace}.")
        return
    existing = {each["metadata"]["name"]: each for each in setup.accounts}
    for account, profile in sorted(wanted.items()):
        if account not in existing:
            fix = f"kubectl create serviceaccount {account} --namespace {setup.namespace}"
            yield Check.ACCOUNTS.missing(f"{account}, which profile {profile} names, does not exist.", fix)
            continue
        google = google_account(setup, account)
        if google is None:
            yield Check.ACCOUNTS.ok(f"{account} exists.")
        elif re.fullmatch(r"[a-z0-9-]+@[a-z0-9.-]+\.iam\.gserviceaccount\.com", google):
            message = f"{account} acts as {google}, which people of {setup.namespace} can change."
            yield Check.ACCOUNTS.unknown(message, own_identity(setup, account))
        else:
            message = f"{account} acts as {google!r}, no Google service account."
            yield Check.ACCOUNTS.missing(message, own_identity(setup, account))


def google_account(setup: Setup, account: str) -> str | None:
    """Returns the Google service account as which pods of the ServiceAccount act; None: they act as itself.

    It is the value of an annotation, any text by anyone who may edit ServiceAccounts of the namespace: no command that
    an administrator is to copy contains it.
    """
    own = next((each for each in setup.accounts or () if each["metadata"]["name"] == account), None)
    named = ((own or {}).get("metadata", {}).get("annotations") or {}).get(_GOOGLE_ACCOUNT)
    return None if named is None else str(named)


def own_identity(setup: Setup, account: str) -> str:
    """Returns what an administrator does about the Google service account of a ServiceAccount."""
    return (
        f"kubectl annotate serviceaccount {account} --namespace {setup.namespace} {_GOOGLE_ACCOUNT}-, so that roles of "
        "the Kubernetes account itself apply; if the Google account is yours, grant it the roles yourself instead"
    )


def _queues(setup: Setup) -> Findings:
    wanted = {
        queue: profile["metadata"]["name"]
        for profile in setup.serving
        for field in ("localQueue", "cpuLocalQueue")
        if (queue := (profile["spec"].get("queue") or {}).get(field))
    }
    if not wanted:
        return
    if not setup.served[LOCAL_QUEUES]:
        release = "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml"
        yield _served(setup, Check.QUEUES, LOCAL_QUEUES, f"kubectl apply --server-side -f {release}")
        return
    if setup.queues is None:
        yield Check.QUEUES.unknown(f"You may not read LocalQueues in {setup.namespace}.")
        return
    existing = {each["metadata"]["name"]: each for each in setup.queues}
    for queue, profile in sorted(wanted.items()):
        if queue not in existing:
            fix = f"kubectl apply -f queue.yaml, a LocalQueue {queue} in {setup.namespace} (docs/queues.md)"
            message = f"LocalQueue {queue}, which profile {profile} names, does not exist."
            yield Check.QUEUES.missing(message, fix)
            continue
        active = stored_condition(existing[queue], "Active")
        if active.get("status") == "False":
            fix = f"kubectl describe localqueue {queue} --namespace {setup.namespace}"
            yield Check.QUEUES.missing(f"LocalQueue {queue} is not active: {active.get('message', '')}", fix)
        else:
            yield Check.QUEUES.ok(f"LocalQueue {queue} exists.")


def _quotas(setup: Setup) -> Findings:
    if setup.quotas is None:
        yield Check.QUOTAS.unknown(f"You may not read ResourceQuotas in {setup.namespace}.")
        return
    slices = dict(each for profile in setup.serving for each in _slices(profile))
    ordered = sorted(slices.items(), key=lambda each: tuple(each[1].values()))
    for quota in filter(applies_to_all_pods, setup.quotas):
        own, status = quota["metadata"]["name"], quota.get("status") or {}
        hard, used = quota["spec"].get("hard") or {}, status.get("used") or {}
        edit = f"kubectl edit resourcequota {own} --namespace {setup.namespace}"
        limits = Quota.parse(quota)
        short = [lack for what, needed in ordered if limits and (lack := limits.shortage(what, needed))]
        jobs = _number(hard[_JOB_COUNT]) if _JOB_COUNT in hard else None
        if short and len(short) == len(slices):
            message = f"ResourceQuota {own} {short[0]}; no slice of the profiles needs less."
            yield Check.QUOTAS.missing(message, edit)
        elif jobs is not None and _JOB_COUNT not in used:
            # After the CRD is installed it may take the quota controller five minutes to find the kind.
            message = f"ResourceQuota {own} has not counted FineTuneJobs yet: until then none can be created."
            fix = f"kubectl get resourcequota {own} --namespace {setup.namespace} --watch"
            yield Check.QUOTAS.missing(message, fix)
        elif jobs is not None and _number(used[_JOB_COUNT]) >= jobs:
            fix = f"kubectl delete finetunejob NAME --namespace {setup.namespace}, of one that has ended; or {edit}"
            yield Check.QUOTAS.missing(
                f"ResourceQuota {own} allows {jobs} FineTuneJobs, and as many exist.", fix
            )
        elif short:
            # Jobs may be meant to take only those that fit.
            message = f"ResourceQuota {own} {short[-1]}; smaller slices have room."
            yield Check.QUOTAS.unknown(message, edit)
        else:
            yield Check.QUOTAS.ok(f"ResourceQuota {own} leaves room for a job.")


def _slices(profile: Object) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yields one slice of each kind of a valid profile, and as many as a job may have, with what they need."""
    try:
        flavors = check_profile_object(profile).flavors
    except Refused:
        return
    heads = int(lookup(profile["spec"], "defaults.resources.controller") == "Pathways")
    for flavor in flavors:
        for shape in offered_shapes(flavor):
            for slices in (1, flavor.max_slices):
                needed = needs(slices=slices, hosts=shape.hosts, chips=shape.chips_per_host, heads=heads)
                yield slice_label(shape.name, slices), needed


def _number(quantity: object) -> int:
    return int(quantities.number(str(quantity)))


def _rights(setup: Setup) -> Findings:
    for right, allowed in setup.rights.items():
        what = f"{right.verb} {right.resource}"
        if allowed:
            yield Check.RIGHTS.ok(f"You may {what}.")
            continue
        role, binding = "finetune-operator-edit", f"rolebinding finetune --namespace {setup.namespace}"
        if right.resource == "finetuneprofiles":
            role, binding = "finetune-operator-profile-view", "clusterrolebinding finetune-profiles"
        elif right.resource.startswith("pods"):
            role, binding = "view", f"rolebinding finetune-view --namespace {setup.namespace}"
        fix = f"kubectl create {binding} --clusterrole {role} --user YOU"
        yield Check.RIGHTS.missing(f"You may not {what} ({right.use}).", fix)


def _served(setup: Setup, check: Check, kind: ResourceKind, fix: str) -> Finding:
    version = f"{kind.plural}.{kind.group}/{kind.version}"
    if setup.served[kind]:
        return check.ok(f"The cluster serves {version}.")
    return check.missing(f"The cluster does not serve {version}.", fix)


CHECKS: Sequence[Callable[[Setup], Findings]] = (
    _kinds,
    _operator,
    _jobset,
    _profiles,
    _accounts,
    _queues,
    check_nodes,
    _quotas,
    _rights,
)
