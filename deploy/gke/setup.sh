#!/usr/bin/env bash
# Sets up fine-tuning on GKE: cluster, node pools, JobSet, buckets, identities, images, operator, a profile per team.
#
#   deploy/gke/setup.sh --dry-run    print the commands and files, and run nothing
#   deploy/gke/setup.sh              create what is missing; a second run changes nothing
#   deploy/gke/setup.sh first-job    apply the example job in the first team's namespace
#   deploy/gke/setup.sh withdraw team-a   withdraw the roles of a team of TEAMS, before it is left out of TEAMS
#   deploy/gke/setup.sh --remove     remove what it has created; buckets stay, unless DELETE_DATA=true
#   deploy/gke/setup.sh --change     go on with other variables than at the last run
#
# Variables of the environment (docs/install-gke.md describes them):
#   required  PROJECT, LOCATION (region), ZONE (of the TPUs, or several with commas), TEAMS
#   optional  CLUSTER, SLICES, CAPACITY, RESERVATION, ADMINS, SECURITY_GROUP, VERSION, BUILDER, BASE_IMAGE, CPU_MACHINE,
#             CPU_DISK_GB, CPU_NODES, TEAM_JOBS, KUEUE, PATHWAYS, LEDGER, FILES, DELETE_DATA, CLUSTER_FLAGS
#   What is not set is as at the last run, which FILES/settings.env keeps.
# Without expansion of file names: SLICES has asterisks.
set -euof pipefail
# With it cd prints the folder, too.
unset CDPATH

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
JOBSET_VERSION=v0.12.0
KUEUE_VERSION=v0.19.2
BUCKET_READER=finetuneBucketReader
# Label of clusters, buckets, node pools, namespaces and the repository that this script has created, and description of
# the nodes' account: only these are removed. The label of a bucket names the cluster and its location.
SETUP_LABEL=finetune_setup
NODES_ACCOUNT=finetune-nodes
NAMESPACE=finetune-system

# shellcheck source-path=SCRIPTDIR source=variables.sh
. "$ROOT/deploy/gke/variables.sh"
# shellcheck source-path=SCRIPTDIR source=objects.sh
. "$ROOT/deploy/gke/objects.sh"
# shellcheck source-path=SCRIPTDIR source=remove.sh
. "$ROOT/deploy/gke/remove.sh"
# shellcheck source-path=SCRIPTDIR source=withdraw.sh
. "$ROOT/deploy/gke/withdraw.sh"

# ---------------------------------------------------------------------------------------------------- output

# A line of the plan. Commands are quoted so that the output of --dry-run can be read by a shell.
line() { if [[ $DRY_RUN == true ]]; then printf '%s\n' "$*"; else printf '%s\n' "$*" >&2; fi; }
quoted() { local words; printf -v words '%q ' "$@"; printf '%s' "${words% }"; }
step() { line; line "# $*"; }
fail() {
  printf 'Error: %s\n' "$1" >&2
  [[ -z ${2:-} ]] || printf 'Fix:   %s\n' "$2" >&2
  exit 1
}

run() {
  line "$(quoted "$@")"
  [[ $DRY_RUN == true ]] || "$@"
}

# unless PROBE… -- COMMAND…: runs the command only if the probe fails.
unless() {
  local probe=()
  while [[ $1 != -- ]]; do probe+=("$1"); shift; done
  shift
  line "$(quoted "${probe[@]}") >/dev/null 2>&1 || $(quoted "$@")"
  [[ $DRY_RUN == true ]] || "${probe[@]}" >/dev/null 2>&1 || "$@"
}

# unless_found PROBE… -- COMMAND…: runs the command only if the probe prints nothing. A probe that fails ends the run: what
# it asks for may exist, and belong to somebody else.
unless_found() {
  local probe=() found
  while [[ $1 != -- ]]; do probe+=("$1"); shift; done
  shift
  line "[[ -n \$($(quoted "${probe[@]}")) ]] || $(quoted "$@")"
  [[ $DRY_RUN != true ]] || return 0
  found=$("${probe[@]}")
  [[ -n $found ]] || "$@"
}

# attempt COMMAND…: what it removes may be gone already. Other errors are listed by check_removals.
attempt() {
  local output
  line "$(quoted "$@") || true"
  [[ $DRY_RUN != true ]] || return 0
  # Shown while it runs: the deletion of a cluster takes minutes. A stderr that is a socket, or that another user has
  # opened, cannot be opened by name.
  output=$("$@" 2>&1 | tee >(cat >&2)) || {
    if ! is_gone "$output" "$@"; then
      FAILED+=("$(quoted "$@")")
    elif [[ $* == *remove-iam-policy-binding* ]]; then
      NOT_FOUND+=("$(quoted "$@")")
    fi
  }
}

# is_gone OUTPUT COMMAND…: whether the command did not find what it is about.
is_gone() {
  local output=${1,,} kinds='(clusters|nodepools)'
  case "${*:2}" in
    # Objects are removed with --ignore-not-found: a context that "does not exist" says nothing of them.
    kubectl\ * | helm\ *) [[ $output == *"doesn't have a resource type"* ]] ;;
    # A cluster whose network is not found is there, and billed: only its own name counts.
    gcloud\ container\ *) [[ $output =~ not\ found:\ [^\ ]*/$kinds/$6([^a-z0-9-]|$) ]] ;;
    *) [[ $output == *"not found"* || $output == *not_found* || $output == *"does not exist"* ]] ;;
  esac
}

check_removals() {
  [[ ${#NOT_FOUND[@]} -eq 0 ]] || line "# Roles that were not found. Look in the policy of the bucket, folder or project whether it spells the member in another way:
$(printf '#   %s\n' "${NOT_FOUND[@]}")"
  [[ ${#FAILED[@]} -eq 0 ]] || fail "What these commands remove may be left, since they failed:
$(printf '  %s\n' "${FAILED[@]}")" "Repeat the run: it removes what is left."
}

# ask VARIABLE STAND-IN COMMAND…: the command's output; with --dry-run the stand-in.
ask() {
  local -n answer=$1
  local stand_in=$2
  shift 2
  line "$(quoted "$@")   # $stand_in"
  # shellcheck disable=SC2034  # a reference to the caller's variable
  if [[ $DRY_RUN == true ]]; then answer=$stand_in; else answer=$("$@"); fi
}

# ask_aloud VARIABLE STAND-IN COMMAND…: as ask; what the command prints to stderr is shown, and in ERRORS.
ask_aloud() {
  local status=0 file
  file=$(mktemp)
  ask "$@" 2>"$file" || status=$?
  ERRORS=$(<"$file")
  rm "$file"
  [[ -z $ERRORS ]] || printf '%s\n' "$ERRORS" >&2
  return $status
}

# write FILE: from stdin, replacing it. keep FILE: only if it does not exist.
write() {
  local text
  text=$(cat)
  line "cat > $(quoted "$1") <<'EOF'
$text
EOF"
  if [[ $DRY_RUN != true ]]; then
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "$text" > "$1.new"
    mv "$1.new" "$1"
  fi
}
keep() { if [[ -e $1 ]]; then line "# $1 is kept"; cat >/dev/null; else write "$1"; fi; }

# ----------------------------------------------------------------------------------------------------- steps

do_apis() {
  step "APIs"
  run gcloud services enable container.googleapis.com compute.googleapis.com storage.googleapis.com \
    artifactregistry.googleapis.com iam.googleapis.com iamcredentials.googleapis.com --project "$PROJECT"
}

do_images() {
  step "Images: built where the tag $VERSION does not exist yet"
  [[ $VERSION == "$RELEASE" ]] || line "# This checkout is release $RELEASE: what is built as $VERSION is its code."
  unless gcloud artifacts repositories describe finetune "${IN_LOCATION[@]}" -- \
    gcloud artifacts repositories create finetune --repository-format docker "${IN_LOCATION[@]}" \
    --labels "$SETUP_LABEL=true"
  run gcloud auth configure-docker "$LOCATION-docker.pkg.dev" --quiet
  image finetune-operator Dockerfile
  image finetune-trainer trainer_image/Dockerfile
  digests
}

# image NAME DOCKERFILE
image() {
  local target=$REPOSITORY/$1:$VERSION base=()
  [[ -z $BASE_IMAGE ]] || base=(--build-arg "BASE=$BASE_IMAGE")
  if [[ $DRY_RUN != true ]] && gcloud artifacts docker images describe "$target" >/dev/null 2>&1; then
    line "# $target exists"
    return
  fi
  line "# unless this succeeds: $(quoted gcloud artifacts docker images describe "$target")"
  [[ $DRY_RUN == true ]] || command -v "$BUILDER" >/dev/null || fail \
    "$BUILDER is not on PATH, and $target is to be built with it." "Install it, or export BUILDER=podman or BUILDER=buildah."
  run "$BUILDER" build --platform linux/amd64 -t "$target" -f "$ROOT/$2" "${base[@]}" "$ROOT"
  run "$BUILDER" push "$target"
}

digests() {
  local image digest format='value(image_summary.digest)'
  for image in operator trainer; do
    ask "${image^^}_DIGEST" "sha256:DIGEST_OF_THE_${image^^}" \
      gcloud artifacts docker images describe "$REPOSITORY/finetune-$image:$VERSION" --format "$format"
    digest=${image^^}_DIGEST
    [[ $DRY_RUN == true || ${!digest} =~ ^sha256:[0-9a-f]{64}$ ]] || fail \
      "The digest of $REPOSITORY/finetune-$image:$VERSION is \"${!digest}\": expected sha256: and 64 hexadecimal digits." \
      "gcloud artifacts docker images describe $REPOSITORY/finetune-$image:$VERSION"
  done
}

do_cluster() {
  local groups=() own=()
  step "Cluster"
  read -r -a own <<<"$CLUSTER_FLAGS"
  [[ -z $SECURITY_GROUP ]] || groups=(--security-group "$SECURITY_GROUP")
  unless gcloud iam service-accounts describe "$NODES_EMAIL" --project "$PROJECT" -- \
    gcloud iam service-accounts create "$NODES_ACCOUNT" --display-name "Nodes of $CLUSTER" \
    --description "$SETUP_LABEL" --project "$PROJECT"
  run gcloud projects add-iam-policy-binding "$PROJECT" --member "serviceAccount:$NODES_EMAIL" \
    --role roles/container.defaultNodeServiceAccount --condition None
  run gcloud artifacts repositories add-iam-policy-binding finetune "${IN_LOCATION[@]}" \
    --member "serviceAccount:$NODES_EMAIL" --role roles/artifactregistry.reader
  unless gcloud container clusters describe "$CLUSTER" "${IN_LOCATION[@]}" -- \
    gcloud container clusters create "$CLUSTER" "${IN_LOCATION[@]}" \
    --release-channel regular --enable-dataplane-v2 --workload-pool "$PROJECT.svc.id.goog" "${groups[@]}" "${own[@]}" \
    --service-account "$NODES_EMAIL" --machine-type e2-standard-4 --num-nodes 1 --labels finetune_setup=true
  check_cluster
  credentials
}

# A cluster without the endpoint by address is reached by its DNS name.
credentials() {
  local endpoint=()
  [[ " $CLUSTER_FLAGS " != *" --enable-dns-access "* ]] || endpoint=(--dns-endpoint)
  run gcloud container clusters get-credentials "$CLUSTER" "${IN_LOCATION[@]}" "${endpoint[@]}"
}

# A first run would replace values, quotas and profiles of an installation whose folder FILES is elsewhere. --dry-run and
# --change go ahead.
check_first_run() {
  local name found installed=""
  [[ ${#LAST[@]} -eq 0 && $CONFIRMED != true && $DRY_RUN != true ]] || return 0
  [[ " ${steps[*]} " =~ \ (controllers|teams|operator|profiles)\  ]] || return 0
  step "Whether an earlier run has set up the cluster"
  gcloud container clusters describe "$CLUSTER" "${IN_LOCATION[@]}" >/dev/null 2>&1 || return 0
  credentials
  ask installed "" kubectl --context "$CONTEXT" get deployment finetune-operator --namespace $NAMESPACE \
    --ignore-not-found --output name
  # Where the kind does not exist, either, this fails.
  for name in "${TEAM[@]}"; do
    ask found "" kubectl --context "$CONTEXT" get finetuneprofile "gke-$name" --output name 2>/dev/null || found=""
    installed+=${found:+ $found}
  done
  [[ -z $installed ]] || fail "Cluster $CLUSTER is set up already (${installed# }), and $LAST_FILE is not here: this run would replace values and profiles." \
    "Get the folder FILES from version control and start the script where it is, or replace them with --change."
}

# An existing cluster may lack what only its administrator should change, because it recreates nodes.
check_cluster() {
  local found version pool datapath policy group autopilot provisioning modes of="$CLUSTER --location $LOCATION --project $PROJECT"
  ask found "$MINIMUM,$PROJECT.svc.id.goog,ADVANCED_DATAPATH,,$SECURITY_GROUP,," \
    gcloud container clusters describe "$CLUSTER" "${IN_LOCATION[@]}" --format \
    'csv[no-heading](currentMasterVersion,workloadIdentityConfig.workloadPool,networkConfig.datapathProvider,networkPolicy.enabled,authenticatorGroupsConfig.securityGroup,autopilot.enabled,autoscaling.enableNodeAutoprovisioning)'
  IFS=, read -r version pool datapath policy group autopilot provisioning <<<"$found"
  [[ ${autopilot,,} != true ]] || fail \
    "Cluster $CLUSTER is an Autopilot cluster, which this script does not support: it creates node pools, and profiles select them." \
    "Name another CLUSTER: one that does not exist is created. docs/install-gke.md#what-is-not-tried"
  [[ ${provisioning,,} != true ]] ||
    line "# Cluster $CLUSTER has node auto-provisioning, which has not been tried: pods of jobs may wait for, and run on, pools that GKE creates. docs/install-gke.md#what-is-not-tried"
  at_least "$version" "$MINIMUM" || fail \
    "Cluster $CLUSTER has GKE $version: $SLICES need $MINIMUM or later." "gcloud container clusters upgrade $of --master"
  [[ $pool == "$PROJECT.svc.id.goog" ]] || fail \
    "Cluster $CLUSTER has no Workload Identity, so its pods have the identity of their nodes." \
    "gcloud container clusters update $of --workload-pool=$PROJECT.svc.id.goog"
  [[ $datapath == ADVANCED_DATAPATH || ${policy,,} == true ]] || fail \
    "Cluster $CLUSTER does not enforce NetworkPolicies." \
    "gcloud container clusters update $of --update-addons=NetworkPolicy=ENABLED && gcloud container clusters update $of --enable-network-policy"
  [[ $group == "$SECURITY_GROUP" || -z $SECURITY_GROUP ]] || fail \
    "Cluster $CLUSTER knows no groups of $SECURITY_GROUP, so roles of groups have no effect." \
    "gcloud container clusters update $of --security-group=$SECURITY_GROUP"
  ask modes "default-pool,GKE_METADATA" gcloud container node-pools list "${IN_CLUSTER[@]}" \
    --format 'csv[no-heading](name,config.workloadMetadataConfig.mode)'
  while IFS=, read -r pool policy; do
    [[ -z $pool || $policy == GKE_METADATA ]] || fail \
      "Node pool $pool has no GKE_METADATA, so its pods have the identity of their nodes." \
      "gcloud container node-pools update $pool ${IN_CLUSTER[*]} --workload-metadata=GKE_METADATA"
  done <<<"$modes"
}

do_pools() {
  local i n name zone of=""
  POOL_NAMES=()
  step "Node pools: one for stages without TPU; in each zone one for all one-host slices of a kind, one for each larger slice"
  elastic finetune-cpu "$CPU_NODES" "${ZONES[0]}" --machine-type "$CPU_MACHINE" --disk-size "$CPU_DISK_GB"
  [[ $PATHWAYS == false ]] || elastic finetune-head 4 "${ZONES[0]}" --machine-type n2-standard-64
  for zone in "${ZONES[@]}"; do
    # The pools of the first zone have no zone in their name, so that a zone can be added.
    [[ $zone == "${ZONES[0]}" ]] || of=-${zone##*-}
    for i in "${!SLICE[@]}"; do
      name=${SLICE[i]//\//-}$of
      if [[ ${HOSTS[i]} == 1 ]]; then
        elastic "$name" "${COUNT[i]}" "$zone" --machine-type "${POOL_MACHINE[i]}" "${CAPACITY_FLAGS[@]}"
      else
        # GKE gives such a pool all of its nodes or none.
        for n in $(seq "${COUNT[i]}"); do
          elastic "$name-$n" "${HOSTS[i]}" "$zone" --machine-type "${POOL_MACHINE[i]}" --tpu-topology "${TOPOLOGY[i]}" "${CAPACITY_FLAGS[@]}"
        done
      fi
    done
  done
  earlier_pools
}

# Pools of an earlier run: one whose creation has failed stays in status ERROR and never has nodes, and one that neither
# SLICES nor ZONE names any longer goes on to give nodes.
earlier_pools() {
  local found name status
  ask found "" gcloud container node-pools list "${IN_CLUSTER[@]}" --filter "config.labels.$SETUP_LABEL=true" \
    --format 'csv[no-heading](name,status)'
  for name in $found; do
    status=${name##*,} name=${name%,*}
    [[ $status != ERROR ]] || fail "Node pool $name has the status ERROR: its creation has failed." \
      "gcloud container node-pools delete $name ${IN_CLUSTER[*]}; then repeat the run."
    [[ " ${POOL_NAMES[*]} " == *" $name "* ]] ||
      line "# Pool $name is not in SLICES and ZONE and stays: gcloud container node-pools delete $name ${IN_CLUSTER[*]}"
  done
}

# elastic NAME MOST ZONE FLAG…: a pool without nodes until pods need them. In one zone, because GKE counts nodes per zone.
elastic() {
  local name=$1 most=$2 zone=$3 found at again
  again="While no job uses it: gcloud container node-pools delete $name ${IN_CLUSTER[*]}; then repeat the run."
  shift 3
  POOL_NAMES+=("$name")
  unless gcloud container node-pools describe "$name" "${IN_CLUSTER[@]}" -- \
    gcloud container node-pools create "$name" "${IN_CLUSTER[@]}" --node-locations "$zone" "$@" \
    --num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes "$most" \
    --service-account "$NODES_EMAIL" --workload-metadata GKE_METADATA --node-labels "$SETUP_LABEL=true"
  ask found "$most,$zone" gcloud container node-pools describe "$name" "${IN_CLUSTER[@]}" \
    --format 'csv[no-heading](autoscaling.maxNodeCount,locations[0])'
  IFS=, read -r found at <<<"$found"
  if [[ -n $at && $at != "$zone" ]]; then
    line "# Pool $name is in $at, and stays there instead of $zone. $again"
  elif [[ -z $found ]]; then
    line "# Pool $name has a fixed size: its nodes are billed while nothing runs. $again"
  elif [[ $found != "$most" ]]; then
    line "# Pool $name keeps its most of $found nodes. For $most: gcloud container node-pools update $name ${IN_CLUSTER[*]} --enable-autoscaling --min-nodes 0 --max-nodes $most"
  fi
}

kube() { run kubectl --context "$CONTEXT" "$@"; }

do_controllers() {
  step "JobSet$([[ $KUEUE == false ]] || echo ' and Kueue')"
  controller jobset "$JOBSET_VERSION"
  [[ $KUEUE == true ]] || return 0
  controller kueue "$KUEUE_VERSION"
  queues | write "$FILES/queues.yaml"
  kube apply -f "$FILES/queues.yaml"
}

# controller PROJECT VERSION: one that exists may serve others, and keeps its version. Manifests and charts name and place
# their objects differently and give them the same label. The webhooks are the last that is applied.
controller() {
  local of=(--selector "app.kubernetes.io/name=$1")
  unless_found kubectl --context "$CONTEXT" get validatingwebhookconfigurations "${of[@]}" --output name -- \
    kubectl --context "$CONTEXT" apply --server-side -f "https://github.com/kubernetes-sigs/$1/releases/download/$2/manifests.yaml"
  kube wait deployments --for condition=Available --all-namespaces "${of[@]}" --timeout 5m
}

do_buckets() {
  local bucket
  step "Buckets"
  for bucket in "${BUCKETS[@]}"; do bucket "$bucket"; done
  [[ $PATHWAYS == false ]] || bucket "$PROJECT-finetune-scratch"
  unless gcloud iam roles describe "$BUCKET_READER" --project "$PROJECT" -- \
    gcloud iam roles create "$BUCKET_READER" --project "$PROJECT" --title "Read a bucket's metadata" \
    --permissions storage.buckets.get
  [[ $LEDGER == true ]] || return 0
  number
  bucket "$PROJECT-finetune-ledger"
  ledger_roles
}

# The operator creates records, and can neither change nor delete one.
ledger_roles() {
  local role
  for role in objectCreator objectViewer; do
    bind_bucket "$PROJECT-finetune-ledger" "$(account $NAMESPACE finetune-operator)" "roles/storage.$role"
  done
}

# Names of buckets are global: one of another project, which others may read, would get this project's models. It is
# not among the project's own, and cannot be created.
# The create command takes no labels. A run that is killed before the second command leaves a bucket that nothing tells
# from one of somebody else: it stays without the label, and --remove leaves it.
bucket() {
  local found
  ask found "" gcloud storage buckets list --project "$PROJECT" --filter "name=$1" --format 'value(name)'
  [[ -z $found ]] || return 0
  run gcloud storage buckets create "gs://$1" --project "$PROJECT" --location "$LOCATION" \
    --uniform-bucket-level-access --public-access-prevention
  run gcloud storage buckets update "gs://$1" --update-labels "$SETUP_LABEL=$OWNER"
}

number() {
  [[ -n $PROJECT_NUMBER ]] ||
    ask PROJECT_NUMBER PROJECT_NUMBER gcloud projects describe "$PROJECT" --format 'value(projectNumber)'
  # It is part of the name of every account that gets a role.
  [[ $DRY_RUN == true || $PROJECT_NUMBER =~ ^[0-9]+$ ]] || fail \
    "The number of project $PROJECT is \"$PROJECT_NUMBER\": expected digits." "gcloud projects describe $PROJECT"
}
# account NAMESPACE NAME: a Kubernetes account, as IAM names it under Workload Identity Federation.
account() {
  printf 'principal://iam.googleapis.com/projects/%s/locations/global/workloadIdentityPools/%s.svc.id.goog/subject/ns/%s/sa/%s' \
    "$PROJECT_NUMBER" "$PROJECT" "$1" "$2"
}
# bind COMMAND…: it adds a role, or removes one, as CHANGE says.
bind() { if [[ $CHANGE == add ]]; then run "$@"; else attempt "$@"; fi; }
bind_bucket() {
  bind gcloud storage buckets "$CHANGE-iam-policy-binding" "gs://$1" --member "$2" --role "$3"
}
bind_folder() {
  bind gcloud storage managed-folders "$CHANGE-iam-policy-binding" "gs://$1/" --member "$2" --role "roles/storage.$3"
}

do_teams() {
  local i folder bucket
  number
  for i in "${!TEAM[@]}"; do
    step "Team ${TEAM[i]}: namespace, accounts, people, network, managed folders and their roles"
    team_namespace "${TEAM[i]}" | write "$FILES/namespace-${TEAM[i]}.yaml"
    unless_found kubectl --context "$CONTEXT" get namespace "${TEAM[i]}" --ignore-not-found --output name -- \
      kubectl --context "$CONTEXT" create -f "$FILES/namespace-${TEAM[i]}.yaml"
    team_objects "${TEAM[i]}" "${MEMBERS[i]}" | write "$FILES/${TEAM[i]}.yaml"
    kube apply -f "$FILES/${TEAM[i]}.yaml"
    for bucket in "${BUCKETS[@]}" $([[ $PATHWAYS == false ]] || echo "$PROJECT-finetune-scratch"); do
      folder=gs://$bucket/${TEAM[i]}/
      unless gcloud storage managed-folders describe "$folder" -- gcloud storage managed-folders create "$folder"
    done
    operator_bindings "${TEAM[i]}"
    bindings "${TEAM[i]}" "${MEMBERS[i]}"
  done
}

# The operator's roles on a team's folders. docs/install-gke.md has the table.
operator_bindings() {
  local operator
  operator=$(account $NAMESPACE finetune-operator)
  bind_folder "$PROJECT-finetune-artifacts/$1" "$operator" objectUser
  bind_folder "$PROJECT-finetune-cache/$1" "$operator" objectViewer
}

# bindings NAMESPACE MEMBERS: the roles of a team's accounts and people on storage.
bindings() {
  local bucket name cpu train
  cpu=$(account "$1" ft-cpu) train=$(account "$1" ft-train)
  bind_folder "$PROJECT-finetune-artifacts/$1" "$cpu" objectUser
  bind_folder "$PROJECT-finetune-artifacts/$1" "$train" objectUser
  bind_folder "$PROJECT-finetune-cache/$1" "$cpu" objectUser
  bind_folder "$PROJECT-finetune-cache/$1" "$train" objectViewer
  [[ $PATHWAYS == false ]] || bind_folder "$PROJECT-finetune-scratch/$1" "$train" objectUser
  for name in "$cpu" "$train"; do
    for bucket in models data; do bind_folder "$PROJECT-$bucket/$1" "$name" objectViewer; done
    for bucket in "${BUCKETS[@]}"; do bind_bucket "$bucket" "$name" "projects/$PROJECT/roles/$BUCKET_READER"; done
  done
  people_bindings "$1" "$2"
}

# people_bindings NAMESPACE MEMBERS
people_bindings() {
  local member
  for member in ${2//,/ }; do
    bind_folder "$PROJECT-finetune-artifacts/$1" "$member" objectViewer
    bind_folder "$PROJECT-models/$1" "$member" objectUser
    bind_folder "$PROJECT-data/$1" "$member" objectUser
  done
  cluster_viewers "$2"
}

# cluster_viewers MEMBERS: who has it for another team, or as administrator, is in STAYING and keeps it.
cluster_viewers() {
  local member
  for member in ${1//,/ }; do
    [[ " ${STAYING//,/ } " == *" $member "* ]] ||
      bind gcloud projects "$CHANGE-iam-policy-binding" "$PROJECT" --member "$member" \
        --role roles/container.clusterViewer --condition None
  done
}

do_operator() {
  local own=()
  step "Operator"
  [[ -n $OPERATOR_DIGEST ]] || digests
  chart_values | write "$FILES/values.yaml"
  [[ ! -e $FILES/values-own.yaml ]] || own=(--values "$FILES/values-own.yaml")
  run helm upgrade --install finetune-operator "$ROOT/charts/finetune-operator" --kube-context "$CONTEXT" \
    --namespace $NAMESPACE --create-namespace --values "$FILES/values.yaml" "${own[@]}" --wait --timeout 10m
  admin_objects | write "$FILES/admins.yaml"
  kube apply -f "$FILES/admins.yaml"
  cluster_viewers "$ADMINS"
}

do_profiles() {
  local team
  [[ -n $TRAINER_DIGEST ]] || digests
  for team in "${TEAM[@]}"; do
    team_quota "$team" | write "$FILES/quota-$team.yaml"
    kube apply -f "$FILES/quota-$team.yaml"
    step "Profile of $team: yours to edit; a later run applies the file and does not replace it"
    profile "$team" | keep "$FILES/profile-$team.yaml"
    [[ $DRY_RUN == true ]] || grep -q "$TRAINER_DIGEST" "$FILES/profile-$team.yaml" ||
      line "# $FILES/profile-$team.yaml names another trainer image than $VERSION, which is $REPOSITORY/finetune-trainer@$TRAINER_DIGEST"
    missing_flavors "$FILES/profile-$team.yaml"
    kube apply -f "$FILES/profile-$team.yaml"
    kube wait --for condition=Valid "finetuneprofile/gke-$team" --timeout 60s
  done
}

# missing_flavors FILE: a profile that is kept does not follow SLICES.
missing_flavors() {
  local i
  [[ $DRY_RUN != true || -e $1 ]] || return 0
  for i in "${!SLICE[@]}"; do
    grep -Eq "name: *[\"']?${SLICE[i]//\//-}[\"']?([ ,}]|\$)" "$1" || line "# $1 has no flavor for ${SLICE[i]} of SLICES:$(flavor "$i")"
  done
}

do_first_job() {
  local team=${TEAM[0]}
  step "The first job, in the namespace $team"
  first_job "$team" | write "$FILES/first-job.yaml"
  kube apply -f "$FILES/first-job.yaml"
  line "# finetune watch --context $CONTEXT -n $team qwen3-chat"
}

# ------------------------------------------------------------------------------------------------------ main

main() {
  # None of them comes from the environment.
  DRY_RUN=false YES=false CONFIRMED=false CHANGE=add PROJECT_NUMBER="" OPERATOR_DIGEST="" TRAINER_DIGEST="" STAYING="" FAILED=() NOT_FOUND=()
  [[ ${BASH_VERSINFO[0]} -ge 5 ]] || fail "This is bash $BASH_VERSION: expected bash 5 or later." "Use Cloud Shell, or brew install bash."
  local remove=false team="" steps=() each plugin=gke-gcloud-auth-plugin
  while [[ $# -gt 0 ]]; do
    each=$1
    shift
    case $each in
      withdraw)
        [[ $# -gt 0 && $1 != --* ]] || fail "withdraw needs the namespace of a team." "deploy/gke/setup.sh withdraw team-a"
        team=$1
        shift ;;
      --dry-run) DRY_RUN=true ;;
      --remove) remove=true ;;
      --yes) YES=true ;;
      --change) CONFIRMED=true ;;
      -h | --help) sed -n '2,/^# Without/{/^# Without/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
      apis | images | cluster | pools | controllers | buckets | teams | operator | profiles | first-job) steps+=("$each") ;;
      *) fail "There is no argument \"$each\"." "deploy/gke/setup.sh --help" ;;
    esac
  done
  lock_files
  read_last_settings
  take_last_settings
  check_variables
  if [[ $DRY_RUN != true ]]; then
    for each in gcloud kubectl helm; do
      command -v "$each" >/dev/null || fail "$each is not on PATH." "Install it, or use Cloud Shell, which has gcloud, kubectl and helm."
    done
    # gcloud takes the plugin from its own folder, too.
    [[ -x $(dirname "$(readlink -f "$(command -v gcloud)")")/$plugin ]] || command -v $plugin >/dev/null || fail \
      "$plugin is not on PATH, and kubectl reaches no GKE cluster without it." \
      "gcloud components install $plugin; where a package manager has installed gcloud, its package of that name."
  fi
  compare_settings
  if [[ $remove == true || -n $team ]]; then
    [[ ${#LAST[@]} -gt 0 || $CONFIRMED == true || $DRY_RUN == true ]] || fail \
      "There is no $LAST_FILE, so what was set up is not known, and nothing was removed." \
      "Run it where the folder FILES of the installation is, or add --change."
  fi
  if [[ $remove == true ]]; then remove; check_removals; return; fi
  if [[ -n $team ]]; then withdraw "$team"; return; fi
  [[ ${#steps[@]} -gt 0 ]] || steps=(apis images cluster pools controllers buckets teams operator profiles)
  check_first_run
  withdraw_from_leavers
  keep_settings
  for each in "${steps[@]}"; do "do_${each//-/_}"; done
  line
  line "# Next: finetune doctor --context $CONTEXT -n ${TEAM[0]}; then deploy/gke/setup.sh first-job"
}

main "$@"
