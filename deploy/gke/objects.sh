# shellcheck shell=bash
# What setup.sh writes: the Kubernetes objects, the chart's values and the first job, each to stdout. Nothing here runs a
# command of the cloud.

queues() {
  local label
  for label in $(printf '%s\n' "${LABEL[@]}" | sort -u); do
    cat <<EOF
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: $label}
spec:
  nodeLabels: {cloud.google.com/gke-tpu-accelerator: $label}
---
EOF
  done
  cat <<EOF
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: tpu}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [google.com/tpu]
    flavors:
EOF
  local i chips
  for label in $(printf '%s\n' "${LABEL[@]}" | sort -u); do
    chips=0
    for i in "${!SLICE[@]}"; do
      [[ ${LABEL[i]} != "$label" ]] || chips=$((chips + HOSTS[i] * CHIPS[i] * COUNT[i]))
    done
    cat <<EOF
    - name: $label
      resources: [{name: google.com/tpu, nominalQuota: $chips}]
EOF
  done
  [[ $PATHWAYS == true ]] || return 0
  # Heads of Pathways request CPU and memory, which a ClusterQueue has to cover: four heads, as many as the pool has nodes.
  cat <<EOF
  - coveredResources: [cpu, memory]
    flavors:
    - name: finetune-head
      resources: [{name: cpu, nominalQuota: 240}, {name: memory, nominalQuota: 930Gi}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: finetune-head}
spec:
  nodeLabels: {cloud.google.com/gke-nodepool: finetune-head}
EOF
}

# Created only where the namespace does not exist: another one keeps its own level of Pod Security, and is not removed.
team_namespace() {
  cat <<EOF
apiVersion: v1
kind: Namespace
metadata:
  name: $1
  labels: {$SETUP_LABEL: "true", pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}
EOF
}

team_objects() {
  cat <<EOF
apiVersion: v1
kind: ServiceAccount
metadata: {name: ft-cpu, namespace: $1}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ft-train, namespace: $1}
---
EOF
  people_objects "$1" "$2"
  if [[ $KUEUE == true ]]; then
    cat <<EOF
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: $1, name: team-tpu}
spec: {clusterQueue: tpu}
---
EOF
  fi
  sed "s/namespace: team-a/namespace: $1/" "$ROOT/examples/cluster/networkpolicy.yaml"
}

# Jobs; pods with their logs, for finetune logs; and profiles. Also without people: only then a binding loses its last subject.
people_objects() {
  role_binding RoleBinding finetune "namespace: $1" finetune-operator-edit "$2"
  role_binding RoleBinding finetune-view "namespace: $1" view "$2"
  role_binding ClusterRoleBinding "finetune-profiles-$1" "" finetune-operator-profile-view "$2"
}

# Profiles; jobs of all namespaces, for the emergency stop; and what the runbooks read.
admin_objects() {
  role_binding ClusterRoleBinding finetune-admins "" finetune-operator-profile-admin "$ADMINS"
  role_binding ClusterRoleBinding finetune-admins-jobs "" finetune-operator-edit "$ADMINS"
  role_binding RoleBinding finetune-admins "namespace: $NAMESPACE" view "$ADMINS"
}

# role_binding KIND NAME NAMESPACE CLUSTERROLE MEMBERS
role_binding() {
  local member kind name
  cat <<EOF
apiVersion: rbac.authorization.k8s.io/v1
kind: $1
metadata: {name: $2${3:+, $3}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $4}
subjects:$([[ -n $5 ]] || echo ' []')
EOF
  for member in ${5//,/ }; do
    # GKE's names of people: the e-mail address, and of a workforce pool's users and groups the whole identifier.
    case $member in
      principal:*) kind=User name=$member ;;
      principalSet:*) kind=Group name=$member ;;
      group:*) kind=Group name=${member#*:} ;;
      *) kind=User name=${member#*:} ;;
    esac
    echo "- {apiGroup: rbac.authorization.k8s.io, kind: $kind, name: \"$name\"}"
  done
  echo ---
}

# Values of the chart.
chart_values() {
  local ledger=""
  [[ $LEDGER == false ]] || ledger="ledger: {uri: gs://$PROJECT-finetune-ledger}"
  cat <<EOF
# Written anew by every run of setup.sh. Values of your own: values-own.yaml beside it, which the script passes, too.
image:
  repository: $REPOSITORY/finetune-operator
  digest: $OPERATOR_DIGEST
namespaces: [$(IFS=,; echo "${TEAM[*]}")]
metrics:
  podMonitoring: {enabled: true}
networkPolicy: {enabled: true}
nodeSelector: {iam.gke.io/gke-metadata-server-enabled: "true"}${ledger:+
$ledger}
EOF
}

# After the CRDs: a quota on a kind that does not exist yet refuses all jobs for minutes after the kind exists.
team_quota() {
  cat <<EOF
apiVersion: v1
kind: ResourceQuota
metadata: {name: finetune, namespace: $1}
spec:
  hard: {count/finetunejobs.tpu-finetune.dev: "$TEAM_JOBS", requests.google.com/tpu: "$ALL_CHIPS"}
EOF
}

# flavor INDEX of SLICE
flavor() {
  echo "  - {name: ${SLICE[$1]//\//-}, $FLAVOR, accelerator: ${LABEL[$1]}, topologies: [${TOPOLOGY[$1]}], chipsPerHost: ${CHIPS[$1]}}"
}

profile() {
  local i
  cat <<EOF
# What jobs of $1 may use. examples/profiles/gke-v6e.yaml explains the fields, docs/profiles.md all of them.
apiVersion: tpu-finetune.dev/v1alpha1
kind: FineTuneProfile
metadata: {name: gke-$1}
spec:
  namespaces: [$1]
  images:
    trainer: $REPOSITORY/finetune-trainer@$TRAINER_DIGEST
  storage:
    artifacts: gs://$PROJECT-finetune-artifacts
    cache: gs://$PROJECT-finetune-cache
EOF
  [[ $PATHWAYS == false ]] || echo "    pathwaysScratch: gs://$PROJECT-finetune-scratch"
  [[ $KUEUE == false ]] || echo "  queue: {localQueue: team-tpu}"
  cat <<EOF
  serviceAccounts: {tpu: ft-train, cpu: ft-cpu}
  # Add chipHourPrice, the price of your region: without it there are no costs.
  flavors:
EOF
  for i in "${!SLICE[@]}"; do flavor "$i"; done
  cat <<EOF
  cpuPool:
    nodeSelector: {cloud.google.com/gke-nodepool: finetune-cpu}
    maxMemory: $CPU_MEMORY
    maxEphemeralStorage: $CPU_STORAGE
EOF
  [[ $PATHWAYS == false ]] || echo "  pathways: {headNodeSelector: {cloud.google.com/gke-nodepool: finetune-head}}"
  cat <<EOF
  models:
    allow: ["Qwen/Qwen3-*", "gs://$PROJECT-models/$1/*"]
  constraints:
EOF
  [[ $PATHWAYS == true ]] || echo "    locked: [resources.controller]"
  cat <<EOF
    uris:
      read: ["gs://$PROJECT-models/$1/*", "gs://$PROJECT-data/$1/*", "hf://datasets/HuggingFaceH4/*"]
EOF
}

first_job() {
  # A batch has at least one row for each device, which are as many as the chips.
  local chips=$((${TOPOLOGY[0]//x/*}))
  sed -e "s/namespace: team-a/namespace: $1/" -e "s/name: gke-v6e/name: gke-$1/" -e "s/tpu: v6e-4/tpu: ${SLICE[0]%%/*}/" \
    -e "s/globalBatchSize: 32/globalBatchSize: $((chips > 32 ? chips : 32))/" "$ROOT/examples/huggingface.yaml"
}
