# shellcheck shell=bash
# setup.sh --remove: only what the script has created, and nothing that another cluster of the project or another release
# of the operator needs.

remove() {
  local i found bucket buckets ours others releases="" gone=false CHANGE=remove
  find_clusters
  [[ $gone == true ]] || other_releases
  confirm_removal
  number
  if [[ $gone == true ]]; then line "# There is no cluster $CLUSTER in $LOCATION."; else remove_from_cluster; fi
  if [[ $DELETE_DATA == true && -n $others ]]; then
    line "# Buckets stay: cluster $others of $PROJECT uses them. To delete one: gcloud storage rm --recursive gs://BUCKET"
  elif [[ $DELETE_DATA == true ]]; then
    step "Buckets that this script has created for $CLUSTER, with models, data, run folders and the ledger"
    ask buckets "${BUCKETS[*]}" gcloud storage buckets list --project "$PROJECT" \
      --filter "labels.$SETUP_LABEL=$OWNER" --format 'value(name)'
    for bucket in $buckets; do attempt gcloud storage rm --recursive "gs://$bucket"; done
  fi
  if [[ -n $others ]]; then
    line "# Roles on storage, images and the nodes' account stay: cluster $others of $PROJECT uses them."
    return
  fi
  step "Roles on storage and of people on the project, which would hold for the same names in any cluster of the project"
  for i in "${!TEAM[@]}"; do operator_bindings "${TEAM[i]}"; bindings "${TEAM[i]}" "${MEMBERS[i]}"; done
  cluster_viewers "$ADMINS"
  [[ $LEDGER == false ]] || ledger_roles
  if [[ -n $releases && $ours != true ]]; then
    line "# Images and the nodes' account stay: $releases may use them."
    return
  fi
  step "Images and the nodes' account, if this script has created them. The role $BUCKET_READER stays: the id of a deleted role cannot be used again for weeks"
  ask found finetune gcloud artifacts repositories list "${IN_LOCATION[@]}" --filter "labels.$SETUP_LABEL=true" \
    --format 'value(name.basename())'
  for i in $found; do attempt gcloud artifacts repositories delete "$i" "${IN_LOCATION[@]}" --quiet; done
  ask found "$NODES_EMAIL" gcloud iam service-accounts list --project "$PROJECT" \
    --filter "email=$NODES_EMAIL AND description=$SETUP_LABEL" --format 'value(email)'
  for i in $found; do
    attempt gcloud projects remove-iam-policy-binding "$PROJECT" --member "serviceAccount:$i" \
      --role roles/container.defaultNodeServiceAccount --condition None
    attempt gcloud iam service-accounts delete "$i" --project "$PROJECT" --quiet
  done
}

# Sets gone, ours and others. In a list, a cluster of a location that does not respond is missing: this one is asked for
# by its name, and an incomplete list of the others ends the run. An existing cluster that was set up has no label, but
# its node pools do, and run as the nodes' account.
find_clusters() {
  local describe=(gcloud container clusters describe "$CLUSTER" "${IN_LOCATION[@]}" --format "value(resourceLabels.$SETUP_LABEL)")
  local pools="nodePools.config.labels.$SETUP_LABEL=true OR nodePools.config.serviceAccount=$NODES_EMAIL"
  local again="Nothing was removed. Repeat the run when gcloud answers."
  ask_aloud ours true "${describe[@]}" || gone=true
  [[ $gone == false ]] || is_gone "$ERRORS" "${describe[@]}" || fail "Cluster $CLUSTER could not be asked for." "$again"
  ask_aloud others "" gcloud container clusters list --project "$PROJECT" \
    --filter "(resourceLabels.$SETUP_LABEL=true OR $pools) AND NOT (name=$CLUSTER AND location=$LOCATION)" \
    --format 'value(name)' ||
    fail "The clusters of $PROJECT could not be listed." "$again"
  [[ $ERRORS != *"did not respond"* ]] || fail "The list of the clusters of $PROJECT is not complete." "$again"
  others=${others//$'\n'/, }
}

# Where another release serves other namespaces, what it needs stays: CRDs, its jobs and namespaces, and node pools.
remove_from_cluster() {
  local i pools
  if [[ -z $releases ]]; then
    step "Jobs, operator and CRDs"
    attempt kubectl --context "$CONTEXT" delete finetunejobs --all --all-namespaces --timeout 10m
  else
    step "Jobs and profiles of ${TEAM[*]}, and the operator. CRDs and all other jobs stay, for $releases"
    for i in "${TEAM[@]}"; do
      attempt kubectl --context "$CONTEXT" delete finetunejobs --all --namespace "$i" --timeout 10m
      attempt kubectl --context "$CONTEXT" delete finetuneprofiles "gke-$i" --ignore-not-found
    done
  fi
  attempt helm uninstall finetune-operator --kube-context "$CONTEXT" --namespace $NAMESPACE --wait --ignore-not-found
  [[ -n $releases ]] ||
    attempt kubectl --context "$CONTEXT" delete crd finetunejobs.tpu-finetune.dev finetuneprofiles.tpu-finetune.dev --ignore-not-found
  step "The cluster, if this script has created it; otherwise its node pools and namespaces that it has created"
  if [[ $ours == true ]]; then
    attempt gcloud container clusters delete "$CLUSTER" "${IN_LOCATION[@]}" --quiet
    [[ $DRY_RUN == true ]] || return 0
  fi
  remove_namespaces
  for i in "${!TEAM[@]}"; do attempt kubectl --context "$CONTEXT" delete clusterrolebinding "finetune-profiles-${TEAM[i]}" --ignore-not-found; done
  attempt kubectl --context "$CONTEXT" delete clusterrolebinding finetune-admins finetune-admins-jobs --ignore-not-found
  ask pools finetune-cpu gcloud container node-pools list "${IN_CLUSTER[@]}" \
    --filter "config.labels.$SETUP_LABEL=true" --format 'value(name)'
  for i in $pools; do
    if [[ -z $releases ]]; then
      attempt gcloud container node-pools delete "$i" "${IN_CLUSTER[@]}" --quiet
    else
      line "# Pool $i stays, since jobs of $releases may use it: gcloud container node-pools delete $i ${IN_CLUSTER[*]}"
    fi
  done
}

# All that this script has created; beside another release only those of TEAMS, since a team may have moved to it.
remove_namespaces() {
  local found name
  if [[ -z $releases ]]; then
    attempt kubectl --context "$CONTEXT" delete namespace --selector "$SETUP_LABEL=true"
    attempt kubectl --context "$CONTEXT" delete namespace $NAMESPACE --ignore-not-found
    return
  fi
  ask found "${TEAM[*]}" kubectl --context "$CONTEXT" get namespaces --selector "$SETUP_LABEL=true" \
    --output 'jsonpath={.items[*].metadata.name}'
  for name in $found; do
    [[ " ${TEAM[*]} " != *" $name "* ]] || attempt kubectl --context "$CONTEXT" delete namespace "$name" --ignore-not-found
  done
}

# Sets releases to the cluster's other releases of the operator, which the labels of their Deployments tell, whatever tool
# has installed them.
other_releases() {
  local found chart release
  ask found "" kubectl --context "$CONTEXT" get deployments --all-namespaces \
    --selector app.kubernetes.io/component=operator --output \
    'jsonpath={range .items[*]}{.metadata.labels.helm\.sh/chart} {.metadata.namespace}/{.metadata.labels.app\.kubernetes\.io/instance}{"\n"}{end}' ||
    [[ $ours == true ]] || fail "Cluster $CLUSTER could not be asked for other releases of the operator, so nothing was removed." \
      "gcloud container clusters get-credentials $CLUSTER --location $LOCATION --project $PROJECT"
  while read -r chart release; do
    # A team may create such Deployments in its own namespace.
    [[ $chart != finetune-operator-* || $release == "$NAMESPACE/finetune-operator" || " ${TEAM[*]} " == *" ${release%%/*} "* ]] ||
      releases+=${releases:+, }$release
  done <<<"$found"
}

confirm_removal() {
  local what="the namespaces and node pools that this script has created in cluster $CLUSTER" jobs="ALL jobs" name
  [[ $DRY_RUN != true && $YES != true ]] || return 0
  if [[ $ours == true ]]; then
    what="cluster $CLUSTER with everything in it${releases:+, also what belongs to $releases}"
  elif [[ -n $releases ]]; then
    what="the operator and those namespaces of TEAMS that this script has created" jobs="the jobs of ${TEAM[*]}"
  elif [[ $gone == true ]]; then
    what="nothing of the cluster, which does not exist" jobs="no jobs"
  fi
  [[ $DELETE_DATA != true || -n $others ]] || what+="; the buckets that it has created, with all models, data, run folders and the ledger"
  [[ -n $others ]] || what+="; roles on storage, and roles/container.clusterViewer of all people of TEAMS and ADMINS"
  [[ -n $others || (-n $releases && $ours != true) ]] ||
    what+="; the image repository finetune and the nodes' account, if this script has created them"
  printf 'This ends %s in cluster %s and removes, in %s: %s.\n' "$jobs" "$CLUSTER" "$PROJECT" "$what" >&2
  read -r -p "Type the cluster's name to go ahead: " name || true
  [[ $name == "$CLUSTER" ]] || fail "Nothing was removed: \"$name\" is not the cluster's name." "Type it, or give --yes."
}
