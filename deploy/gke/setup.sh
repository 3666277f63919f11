#!/usr/bin/env bash
# Sets up fine-tuning on GKE: cluster, node pools, JobSet, buckets, identities, images, operator, a profile per team.
#
#   deploy/gke/setup.sh --dry-run    print the commands and files, and run nothing
#   deploy/gke/setup.sh              create what is missing; a second run changes nothing
#   deploy/gke/setup.sh first-job    apply the example job in the first team's namespace
#   deploy/gke/setup.sh withdraw team-a   withdraw the roles of a team of TEAMS on storage, and nothing else
#   deploy/gke/setup.sh --remove     remove what it has created; buckets stay, unless DELETE_DATA=true
#   deploy/gke/setup.sh --change     the same with other variables than at the last run
#
# Variables of the environment (docs/install-gke.md describes them):
#   required  PROJECT, LOCATION (region), ZONE (of the TPUs), TEAMS
#   optional  CLUSTER, SLICES, CAPACITY, RESERVATION, ADMINS, SECURITY_GROUP, VERSION, BUILDER, BASE_IMAGE, CPU_MACHINE,
#             CPU_DISK_GB, CPU_NODES, TEAM_JOBS, KUEUE, PATHWAYS, LEDGER, FILES, DELETE_DATA, CLUSTER_FLAGS
# Without expansion of file names: SLICES has asterisks.
set -euof pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
JOBSET_VERSION=v0.12.0
KUEUE_VERSION=v0.19.2
BUCKET_READER=finetuneBucketReader
# Label of clusters, buckets, node pools and namespaces that this script has created: only these are removed. That of
# a bucket is the cluster's name.
SETUP_LABEL=finetune_setup
NODES_ACCOUNT=finetune-nodes
NAMESPACE=finetune-system
# Variables that every run needs as they were at the last one. Not among them: BUILDER, which each machine has its own
# of, FILES, where they are kept, and DELETE_DATA.
SETTINGS=(PROJECT LOCATION ZONE TEAMS CLUSTER SLICES CAPACITY RESERVATION ADMINS SECURITY_GROUP VERSION BASE_IMAGE
  CPU_MACHINE CPU_DISK_GB CPU_NODES TEAM_JOBS KUEUE PATHWAYS LEDGER CLUSTER_FLAGS)

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

# attempt COMMAND…: what it removes may be gone already.
attempt() {
  line "$(quoted "$@") || true"
  [[ $DRY_RUN == true ]] || "$@" || true
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

# ------------------------------------------------------------------------------------------------- variables

# check NAME PATTERN EXPECTED EXAMPLE
check() {
  local value=${!1:-}
  [[ -n $value ]] || fail "$1 is not set: expected $3." "export $1=$4"
  [[ $value =~ ^($2)$ ]] || fail "$1 is \"$value\": expected $3." "export $1=$4"
}

check_variables() {
  CLUSTER=${CLUSTER:-finetune} SLICES=${SLICES:-v6e-4} CAPACITY=${CAPACITY:-OnDemand} RESERVATION=${RESERVATION:-}
  ADMINS=${ADMINS:-} SECURITY_GROUP=${SECURITY_GROUP:-} BUILDER=${BUILDER:-docker} BASE_IMAGE=${BASE_IMAGE:-}
  CPU_MACHINE=${CPU_MACHINE:-n2-highmem-4} CPU_DISK_GB=${CPU_DISK_GB:-300} CPU_NODES=${CPU_NODES:-4}
  TEAM_JOBS=${TEAM_JOBS:-20} KUEUE=${KUEUE:-false} PATHWAYS=${PATHWAYS:-false} LEDGER=${LEDGER:-false}
  DELETE_DATA=${DELETE_DATA:-false} TEAMS=${TEAMS:-}
  RELEASE=$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' "$ROOT/charts/finetune-operator/Chart.yaml")
  VERSION=${VERSION:-$RELEASE} CLUSTER_FLAGS=${CLUSTER_FLAGS:-}

  check PROJECT '[a-z][a-z0-9-]{4,28}[a-z0-9]' "the id of a Google Cloud project" my-project
  check LOCATION '[a-z]+-[a-z]+[0-9]+' "a region" europe-west4
  check ZONE "$LOCATION-[a-z]" "a zone of $LOCATION that has the TPUs" "$LOCATION-a"
  check CLUSTER '[a-z]([a-z0-9-]{0,38}[a-z0-9])?' "the name of a cluster" finetune
  check CAPACITY 'OnDemand|Spot|Reservation' "OnDemand, Spot or Reservation" OnDemand
  if [[ $CAPACITY == Reservation ]]; then
    check RESERVATION '[a-z][a-z0-9-]{0,62}' "the name of a reservation of this project" spring
  fi
  check VERSION '[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}' "a tag of the images" 0.2.0
  check BUILDER 'docker|podman|buildah' "docker, podman or buildah" docker
  [[ -z $CLUSTER_FLAGS ]] || check CLUSTER_FLAGS '--[a-z0-9-]+(=[A-Za-z0-9_./:,@-]+)?( --[a-z0-9-]+(=[A-Za-z0-9_./:,@-]+)?)*' \
    "flags of gcloud container clusters create, with values after =" "'--enable-private-nodes --network=shared'"
  [[ -z $BASE_IMAGE ]] || check BASE_IMAGE '[A-Za-z0-9][A-Za-z0-9_./:@-]*' "an image with Python 3.12" python:3.12-slim-bookworm
  check CPU_MACHINE 'n2-highmem-(4|8|16)' "n2-highmem-4, n2-highmem-8 or n2-highmem-16" n2-highmem-4
  check CPU_DISK_GB '[1-9][0-9]{2,4}' "a size in GB from 100 to 99999" 300
  local name
  for name in CPU_NODES TEAM_JOBS; do check $name '[1-9][0-9]{0,3}' "a number from 1 to 9999" 4; done
  for name in KUEUE PATHWAYS LEDGER DELETE_DATA; do check $name 'true|false' "true or false" false; done
  FILES=${FILES:-gke-$CLUSTER}

  for name in SLICES TEAMS; do one_line $name; done
  read_slices
  read_teams
  if [[ $ADMINS,$TEAMS == *group:* ]]; then
    check SECURITY_GROUP 'gke-security-groups@[a-z0-9.-]+' \
      "the group gke-security-groups@DOMAIN that holds the groups of TEAMS and ADMINS" gke-security-groups@example.com
  fi
  derive
}

# one_line NAME: its words, separated by single spaces.
one_line() {
  local words
  read -r -d '' -a words <<<"${!1}" || true
  printf -v "$1" '%s' "${words[*]}"
}

# SLICES → arrays SLICE (name), POOL_MACHINE, TOPOLOGY, HOSTS, CHIPS (per host), COUNT, LABEL; and MINIMUM, of GKE.
read_slices() {
  SLICE=() POOL_MACHINE=() TOPOLOGY=() HOSTS=() CHIPS=() COUNT=() LABEL=() MINIMUM=1.30 ALL_CHIPS=0
  local entry name row family label machine topology hosts chips placement seen=" "
  for entry in $SLICES; do
    row=$(slice "${entry%\**}")
    [[ -n $row && $entry =~ ^[^*]+(\*[1-9][0-9]?)?$ ]] || fail \
      "SLICES has \"$entry\": expected names of slices, each with *N for N of them." \
      "export SLICES=\"v6e-4*4 v6e-16\"; docs/tpu-slices.md#names lists the names."
    read -r name family label machine topology hosts chips placement <<<"$row"
    [[ $seen != *" $name "* ]] || fail "SLICES has $name twice." "Write it once, with the number: $name*2."
    seen+="$name "
    [[ $placement == false ]] || fail \
      "SLICES has $name, whose node pool needs a workload policy, which this script does not create." \
      "Create that pool as Google's page on TPU7x says, and leave $name out of SLICES."
    case $family in v6e) minimum 1.31.2-gke.1115000 ;; tpu7*) minimum 1.34.0-gke.2201000 ;; esac
    SLICE+=("$name") LABEL+=("$label") POOL_MACHINE+=("$machine") TOPOLOGY+=("$topology") HOSTS+=("$hosts") CHIPS+=("$chips")
    if [[ $entry == *\** ]]; then COUNT+=("${entry##*\*}"); else COUNT+=(1); fi
    ALL_CHIPS=$((ALL_CHIPS + hosts * chips * COUNT[-1]))
  done
  [[ ${#SLICE[@]} -gt 0 ]] || fail "SLICES is empty: expected names of slices." "export SLICES=v6e-4"
}
# slice NAME: its row of the catalogue, which begins with the name there. NAME is a name of a job's resources.tpu: family or
# gcloud's prefix, with gcloud's number or a topology (v5e-16, v5litepod-16, v5e-4x4). Where machines of four and of eight
# chips share a name it means those of four; NAME/1host those of eight.
slice() {
  awk -F, -v name="$1" '
    FNR == NR {prefix[$1] = $2; next}
    {
      number = substr($1, length(prefix[$2]) + 1)
      of_number = ($1 == name || $2 number == name) && ($10 == "true" || $1 ~ "/")
      of_topology = ($2 "-" $5 == name || prefix[$2] "-" $5 == name) && $3 !~ /device/ && $1 !~ "/"
      if (of_number || of_topology) print $1, $2, $3, $4, $5, $6, $7, $9
    }' "$ROOT/contract/finetune_contract/tpu_families.csv" "$ROOT/contract/finetune_contract/tpu_slices.csv"
}
minimum() { at_least "$MINIMUM" "$1" || MINIMUM=$1; }
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

# TEAMS → arrays TEAM (namespace) and MEMBERS (of each, separated by commas).
read_teams() {
  TEAM=() MEMBERS=()
  local entry name seen=" " workforce='://iam\.googleapis\.com/locations/global/workforcePools/[a-z0-9-]+/'
  local people="((user|group):[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+|serviceAccount:[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com"
  people+="|principal${workforce}subject/[A-Za-z0-9._+@-]+|principalSet${workforce}group/[A-Za-z0-9._+@-]+)"
  [[ $TEAMS,$ADMINS != *workloadIdentityPools* ]] || fail \
    "TEAMS or ADMINS names an identity of a workload identity pool, which roles in a GKE cluster are not known to take." \
    "Name the service account that it impersonates: serviceAccount:NAME@PROJECT.iam.gserviceaccount.com."
  for entry in $TEAMS; do
    name=${entry%%=*}
    [[ $entry =~ ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(=$people(,$people)*)?$ ]] || fail \
      "TEAMS has \"$entry\": expected namespaces, each with its people: NAMESPACE=user:EMAIL,group:EMAIL,serviceAccount:EMAIL or identifiers of a workforce pool's users and groups." \
      'export TEAMS="team-a=group:team-a@example.com team-b=user:anna@example.com"'
    [[ ! $name =~ ^(kube-.*|gke-.*|gmp-.*|default|$NAMESPACE|jobset-system|kueue-system)$ ]] || fail \
      "TEAMS has $name, a namespace of the platform." "Give each team a namespace of its own, such as team-a."
    [[ $seen != *" $name "* ]] || fail "TEAMS has $name twice." "Write it once, with all its people."
    seen+="$name "
    TEAM+=("$name")
    if [[ $entry == *=* ]]; then MEMBERS+=("${entry#*=}"); else MEMBERS+=(""); fi
  done
  [[ ${#TEAM[@]} -gt 0 ]] || fail "TEAMS is not set: expected the namespaces of teams." \
    'export TEAMS="team-a=user:anna@example.com"'
  [[ -z $ADMINS || $ADMINS =~ ^$people(,$people)*$ ]] || fail \
    "ADMINS is \"$ADMINS\": expected people as in TEAMS, separated by commas." \
    "export ADMINS=group:platform@example.com"
}

derive() {
  local gib
  NODES_EMAIL=$NODES_ACCOUNT@$PROJECT.iam.gserviceaccount.com
  REPOSITORY=$LOCATION-docker.pkg.dev/$PROJECT/finetune
  CONTEXT=gke_${PROJECT}_${LOCATION}_$CLUSTER
  BUCKETS=("$PROJECT-finetune-artifacts" "$PROJECT-finetune-cache" "$PROJECT-models" "$PROJECT-data")
  IN_CLUSTER=(--cluster "$CLUSTER" --location "$LOCATION" --project "$PROJECT")
  # What a node leaves for a pod: docs/install-gke.md has the arithmetic.
  case $CPU_MACHINE in *-4) CPU_MEMORY=27Gi ;; *-8) CPU_MEMORY=57Gi ;; *) CPU_MEMORY=117Gi ;; esac
  gib=$((CPU_DISK_GB * 1000000 / 1073742))
  CPU_STORAGE=$(awk -v gib=$((gib)) 'BEGIN {low = 0.55 * gib - 6; high = 0.9 * gib - 100; print int(low > high ? low : high)}')Gi
  case $CAPACITY in
    OnDemand) CAPACITY_FLAGS=() FLAVOR="capacity: OnDemand" ;;
    Spot) CAPACITY_FLAGS=(--spot) FLAVOR="capacity: Spot" ;;
    Reservation)
      CAPACITY_FLAGS=(--reservation-affinity specific --reservation "$RESERVATION")
      FLAVOR="capacity: Reservation, reservation: $RESERVATION" ;;
  esac
}

# -------------------------------------------------------------------------------------------------- settings

# A variable that is forgotten would be a change that nobody asked for. The file is only read, never run.
compare_settings() {
  local file=$FILES/settings.env text name differences=""
  if [[ ! -e $file ]]; then
    line "# There is no $file: this is the first run."
    return
  fi
  while IFS= read -r text || [[ -n $text ]]; do
    [[ $text != "#"* ]] || continue
    [[ $text =~ ^([A-Z_]+)=\'([^\'[:cntrl:]]*)\'$ && " ${SETTINGS[*]} " == *" ${BASH_REMATCH[1]} "* ]] || fail \
      "$file has the line $(quoted "$text"): expected NAME='VALUE' with a variable of this script." \
      "Restore the file from version control, or delete it: then this is the first run."
    name=${BASH_REMATCH[1]}
    [[ ${BASH_REMATCH[2]} == "${!name}" ]] || differences+=$'\n'"  $name: was \"${BASH_REMATCH[2]}\", is \"${!name}\""
  done < "$file"
  [[ -n $differences ]] || return 0
  [[ $CONFIRMED == true || $DRY_RUN == true ]] || fail "Variables differ from those of the last run, in $file:$differences" \
    "Take those of the last run (set -a; . $(quoted "$file"); set +a), or confirm the change: add --change."
  line "# Variables differ from those of the last run, in $file:${differences//$'\n'/$'\n'#}"
  [[ $CONFIRMED == true ]] || line "# Without --change, a run that is not --dry-run stops here."
}

# Before the first command, not after the last: a run that fails has changed a part, which a run with the variables of
# the one before would change back.
keep_settings() {
  local name
  {
    echo "# Variables of the last run of setup.sh, whether it has ended well or not."
    for name in "${SETTINGS[@]}"; do printf "%s='%s'\n" "$name" "${!name}"; done
  } | write "$FILES/settings.env"
}

# ----------------------------------------------------------------------------------------------------- steps

do_apis() {
  step "APIs"
  run gcloud services enable container.googleapis.com compute.googleapis.com storage.googleapis.com \
    artifactregistry.googleapis.com iam.googleapis.com iamcredentials.googleapis.com --project "$PROJECT"
}

do_images() {
  step "Images: built where the tag $VERSION does not exist yet"
  [[ $VERSION == "$RELEASE" ]] || line "# This checkout is release $RELEASE: what is built as $VERSION is its code."
  unless gcloud artifacts repositories describe finetune --location "$LOCATION" --project "$PROJECT" -- \
    gcloud artifacts repositories create finetune --repository-format docker --location "$LOCATION" --project "$PROJECT"
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
  run "$BUILDER" build --platform linux/amd64 -t "$target" -f "$ROOT/$2" "${base[@]}" "$ROOT"
  run "$BUILDER" push "$target"
}

digests() {
  local image format='value(image_summary.digest)'
  for image in operator trainer; do
    ask "${image^^}_DIGEST" "sha256:DIGEST_OF_THE_${image^^}" \
      gcloud artifacts docker images describe "$REPOSITORY/finetune-$image:$VERSION" --format "$format"
  done
}

do_cluster() {
  local groups=() own=()
  step "Cluster"
  read -r -a own <<<"$CLUSTER_FLAGS"
  [[ -z $SECURITY_GROUP ]] || groups=(--security-group "$SECURITY_GROUP")
  unless gcloud iam service-accounts describe "$NODES_EMAIL" --project "$PROJECT" -- \
    gcloud iam service-accounts create "$NODES_ACCOUNT" --display-name "Nodes of $CLUSTER" --project "$PROJECT"
  run gcloud projects add-iam-policy-binding "$PROJECT" --member "serviceAccount:$NODES_EMAIL" \
    --role roles/container.defaultNodeServiceAccount --condition None
  run gcloud artifacts repositories add-iam-policy-binding finetune --location "$LOCATION" --project "$PROJECT" \
    --member "serviceAccount:$NODES_EMAIL" --role roles/artifactregistry.reader
  unless gcloud container clusters describe "$CLUSTER" --location "$LOCATION" --project "$PROJECT" -- \
    gcloud container clusters create "$CLUSTER" --location "$LOCATION" --project "$PROJECT" \
    --release-channel regular --enable-dataplane-v2 --workload-pool "$PROJECT.svc.id.goog" "${groups[@]}" "${own[@]}" \
    --service-account "$NODES_EMAIL" --machine-type e2-standard-4 --num-nodes 1 --labels finetune_setup=true
  check_cluster
  run gcloud container clusters get-credentials "$CLUSTER" --location "$LOCATION" --project "$PROJECT"
}

# An existing cluster may lack what only its administrator should change, because it recreates nodes.
check_cluster() {
  local found version pool datapath policy group modes of="$CLUSTER --location $LOCATION --project $PROJECT"
  ask found "$MINIMUM,$PROJECT.svc.id.goog,ADVANCED_DATAPATH,,$SECURITY_GROUP" \
    gcloud container clusters describe "$CLUSTER" --location "$LOCATION" --project "$PROJECT" --format \
    'csv[no-heading](currentMasterVersion,workloadIdentityConfig.workloadPool,networkConfig.datapathProvider,networkPolicy.enabled,authenticatorGroupsConfig.securityGroup)'
  IFS=, read -r version pool datapath policy group <<<"$found"
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
  local i n name
  POOL_NAMES=()
  step "Node pools: one for stages without TPU, one for all one-host slices of a kind, one for each larger slice"
  elastic finetune-cpu "$CPU_NODES" --machine-type "$CPU_MACHINE" --disk-size "$CPU_DISK_GB"
  [[ $PATHWAYS == false ]] || elastic finetune-head 4 --machine-type n2-standard-64
  for i in "${!SLICE[@]}"; do
    name=${SLICE[i]//\//-}
    if [[ ${HOSTS[i]} == 1 ]]; then
      elastic "$name" "${COUNT[i]}" --machine-type "${POOL_MACHINE[i]}" "${CAPACITY_FLAGS[@]}"
    else
      for n in $(seq "${COUNT[i]}"); do
        pool "$name-$n" --machine-type "${POOL_MACHINE[i]}" --tpu-topology "${TOPOLOGY[i]}" \
          --num-nodes "${HOSTS[i]}" "${CAPACITY_FLAGS[@]}"
      done
    fi
  done
  other_pools
}

# Pools of an earlier run that SLICES no longer names: a fixed one is billed until it is deleted.
other_pools() {
  local found name
  ask found "" gcloud container node-pools list "${IN_CLUSTER[@]}" --filter "config.labels.$SETUP_LABEL=true" \
    --format 'value(name)'
  for name in $found; do
    [[ " ${POOL_NAMES[*]} " == *" $name "* ]] ||
      line "# Pool $name is not in SLICES and stays: gcloud container node-pools delete $name ${IN_CLUSTER[*]}"
  done
}

# elastic NAME MOST FLAG…: a pool without nodes until pods need them. In one zone, because GKE counts nodes per zone.
elastic() {
  local name=$1 most=$2
  shift 2
  pool "$name" "$@" --num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes "$most"
}

# pool NAME FLAG…
pool() {
  local name=$1
  shift
  POOL_NAMES+=("$name")
  unless gcloud container node-pools describe "$name" "${IN_CLUSTER[@]}" -- \
    gcloud container node-pools create "$name" "${IN_CLUSTER[@]}" --node-locations "$ZONE" "$@" \
    --service-account "$NODES_EMAIL" --workload-metadata GKE_METADATA --node-labels "$SETUP_LABEL=true"
}

kube() { run kubectl --context "$CONTEXT" "$@"; }

do_controllers() {
  step "JobSet$([[ $KUEUE == false ]] || echo ' and Kueue')"
  controller jobset jobset-controller-manager jobset-system "$JOBSET_VERSION"
  kube rollout status deployment/jobset-controller-manager --namespace jobset-system --timeout 5m
  [[ $KUEUE == true ]] || return 0
  controller kueue kueue-controller-manager kueue-system "$KUEUE_VERSION"
  kube rollout status deployment/kueue-controller-manager --namespace kueue-system --timeout 5m
  queues | write "$FILES/queues.yaml"
  kube apply -f "$FILES/queues.yaml"
}

# controller PROJECT DEPLOYMENT NAMESPACE VERSION: one that exists may serve others, and keeps its version.
controller() {
  unless kubectl --context "$CONTEXT" get deployment "$2" --namespace "$3" -- \
    kubectl --context "$CONTEXT" apply --server-side -f "https://github.com/kubernetes-sigs/$1/releases/download/$4/manifests.yaml"
}

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
bucket() {
  local found
  ask found "" gcloud storage buckets list --project "$PROJECT" --filter "name=$1" --format 'value(name)'
  [[ -z $found ]] || return 0
  run gcloud storage buckets create "gs://$1" --project "$PROJECT" --location "$LOCATION" \
    --uniform-bucket-level-access --public-access-prevention
  run gcloud storage buckets update "gs://$1" --update-labels "$SETUP_LABEL=$CLUSTER"
}

number() {
  [[ -n $PROJECT_NUMBER ]] ||
    ask PROJECT_NUMBER PROJECT_NUMBER gcloud projects describe "$PROJECT" --format 'value(projectNumber)'
}
# account NAMESPACE NAME: a Kubernetes account, as IAM names it under Workload Identity Federation.
account() {
  printf 'principal://iam.googleapis.com/projects/%s/locations/global/workloadIdentityPools/%s.svc.id.goog/subject/ns/%s/sa/%s' \
    "$PROJECT_NUMBER" "$PROJECT" "$1" "$2"
}
# CHANGE is add or remove, TRY is run or attempt; main sets both.
bind_bucket() {
  "$TRY" gcloud storage buckets "$CHANGE-iam-policy-binding" "gs://$1" --member "$2" --role "$3"
}
bind_folder() {
  "$TRY" gcloud storage managed-folders "$CHANGE-iam-policy-binding" "gs://$1/" --member "$2" --role "roles/storage.$3"
}

do_teams() {
  local i folder bucket
  number
  for i in "${!TEAM[@]}"; do
    step "Team ${TEAM[i]}: namespace, accounts, people, network, managed folders and their roles"
    team_namespace "${TEAM[i]}" | write "$FILES/namespace-${TEAM[i]}.yaml"
    unless kubectl --context "$CONTEXT" get namespace "${TEAM[i]}" -- \
      kubectl --context "$CONTEXT" apply -f "$FILES/namespace-${TEAM[i]}.yaml"
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
  local bucket name member cpu train
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
  for member in ${2//,/ }; do
    bind_folder "$PROJECT-finetune-artifacts/$1" "$member" objectViewer
    bind_folder "$PROJECT-models/$1" "$member" objectUser
    bind_folder "$PROJECT-data/$1" "$member" objectUser
    [[ " $STAYING " == *" $member "* ]] ||
      "$TRY" gcloud projects "$CHANGE-iam-policy-binding" "$PROJECT" --member "$member" \
        --role roles/container.clusterViewer --condition None
  done
}

# withdraw NAMESPACE: of the team alone; its people are those of TEAMS. Who is in another team still sees the cluster.
withdraw() {
  local i found="" TRY=attempt CHANGE=remove
  for i in "${!TEAM[@]}"; do
    if [[ ${TEAM[i]} == "$1" ]]; then found=$i; else STAYING+=" ${MEMBERS[i]//,/ }"; fi
  done
  if [[ -n $found ]]; then
    number
    step "Roles of $1 on storage"
    bindings "$1" "${MEMBERS[found]}"
    return
  fi
  fail "There is no team \"$1\" in TEAMS: expected one of ${TEAM[*]}." "export TEAMS with all teams and their people."
}

# Applied only where the namespace does not exist: another one keeps its own level of Pod Security, and is not removed.
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
  if [[ -n $2 ]]; then
    # Jobs; and pods with their logs, for finetune logs.
    role_binding RoleBinding finetune "namespace: $1" finetune-operator-edit "$2"
    role_binding RoleBinding finetune-view "namespace: $1" view "$2"
    role_binding ClusterRoleBinding "finetune-profiles-$1" "" finetune-operator-profile-view "$2"
  fi
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

# role_binding KIND NAME NAMESPACE CLUSTERROLE MEMBERS
role_binding() {
  local member kind name
  cat <<EOF
apiVersion: rbac.authorization.k8s.io/v1
kind: $1
metadata: {name: $2${3:+, $3}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $4}
subjects:
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

do_operator() {
  local ledger="" own=()
  step "Operator"
  [[ -n $OPERATOR_DIGEST ]] || digests
  [[ $LEDGER == false ]] || ledger="ledger: {uri: gs://$PROJECT-finetune-ledger}"
  write "$FILES/values.yaml" <<EOF
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
  [[ ! -e $FILES/values-own.yaml ]] || own=(--values "$FILES/values-own.yaml")
  run helm upgrade --install finetune-operator "$ROOT/charts/finetune-operator" --kube-context "$CONTEXT" \
    --namespace $NAMESPACE --create-namespace --values "$FILES/values.yaml" "${own[@]}" --wait --timeout 10m
  if [[ -n $ADMINS ]]; then
    # Profiles; jobs of all namespaces, for the emergency stop; and what the runbooks read.
    {
      role_binding ClusterRoleBinding finetune-admins "" finetune-operator-profile-admin "$ADMINS"
      role_binding ClusterRoleBinding finetune-admins-jobs "" finetune-operator-edit "$ADMINS"
      role_binding RoleBinding finetune-admins "namespace: $NAMESPACE" view "$ADMINS"
    } | write "$FILES/admins.yaml"
    kube apply -f "$FILES/admins.yaml"
  fi
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
    kube apply -f "$FILES/profile-$team.yaml"
    kube wait --for condition=Valid "finetuneprofile/gke-$team" --timeout 60s
  done
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
  for i in "${!SLICE[@]}"; do
    cat <<EOF
  - {name: ${SLICE[i]//\//-}, $FLAVOR, accelerator: ${LABEL[i]}, topologies: [${TOPOLOGY[i]}], chipsPerHost: ${CHIPS[i]}}
EOF
  done
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

do_first_job() {
  local team=${TEAM[0]} slice=${SLICE[0]%%/*}
  step "The first job, in the namespace $team"
  sed -e "s/namespace: team-a/namespace: $team/" -e "s/name: gke-v6e/name: gke-$team/" -e "s/tpu: v6e-4/tpu: $slice/" \
    "$ROOT/examples/huggingface.yaml" | write "$FILES/first-job.yaml"
  kube apply -f "$FILES/first-job.yaml"
  line "# finetune watch --context $CONTEXT -n $team qwen3-chat"
}

remove() {
  local i bucket buckets ours others releases="" gone=false TRY=attempt CHANGE=remove
  local of=(--location "$LOCATION" --project "$PROJECT")
  ask ours true gcloud container clusters describe "$CLUSTER" "${of[@]}" \
    --format "value(resourceLabels.$SETUP_LABEL)" || gone=true
  ask others "" gcloud container clusters list --project "$PROJECT" \
    --filter "resourceLabels.$SETUP_LABEL=true AND name!=$CLUSTER" --format 'value(name)'
  others=${others//$'\n'/, }
  [[ $gone == true ]] || other_releases
  confirm_removal
  number
  if [[ $gone == true ]]; then line "# There is no cluster $CLUSTER in $LOCATION."; else remove_from_cluster; fi
  if [[ $DELETE_DATA == true ]]; then
    step "Buckets that this script has created for $CLUSTER, with models, data, run folders and the ledger"
    ask buckets "${BUCKETS[*]}" gcloud storage buckets list --project "$PROJECT" \
      --filter "labels.$SETUP_LABEL=$CLUSTER" --format 'value(name)'
    for bucket in $buckets; do attempt gcloud storage rm --recursive "gs://$bucket"; done
  fi
  if [[ -n $others ]]; then
    line "# Roles on storage, images and the nodes' account stay: cluster $others of $PROJECT uses them."
    return
  fi
  step "Roles on storage, which would hold for the same names in any cluster of the project"
  for i in "${!TEAM[@]}"; do operator_bindings "${TEAM[i]}"; bindings "${TEAM[i]}" "${MEMBERS[i]}"; done
  [[ $LEDGER == false ]] || ledger_roles
  if [[ -n $releases && $ours != true ]]; then
    line "# Images and the nodes' account stay: $releases may use them."
    return
  fi
  step "Images and the nodes' account. The role $BUCKET_READER stays: the id of a deleted role cannot be used again for weeks"
  attempt gcloud artifacts repositories delete finetune "${of[@]}" --quiet
  attempt gcloud projects remove-iam-policy-binding "$PROJECT" --member "serviceAccount:$NODES_EMAIL" \
    --role roles/container.defaultNodeServiceAccount --condition None
  attempt gcloud iam service-accounts delete "$NODES_EMAIL" --project "$PROJECT" --quiet
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
      attempt kubectl --context "$CONTEXT" delete finetuneprofiles "gke-$i"
    done
  fi
  attempt helm uninstall finetune-operator --kube-context "$CONTEXT" --namespace $NAMESPACE --wait
  [[ -n $releases ]] ||
    attempt kubectl --context "$CONTEXT" delete crd finetunejobs.tpu-finetune.dev finetuneprofiles.tpu-finetune.dev
  step "The cluster, if this script has created it; otherwise its node pools and namespaces that it has created"
  if [[ $ours == true ]]; then
    attempt gcloud container clusters delete "$CLUSTER" "${of[@]}" --quiet
    [[ $DRY_RUN == true ]] || return 0
  fi
  remove_namespaces
  for i in "${!TEAM[@]}"; do attempt kubectl --context "$CONTEXT" delete clusterrolebinding "finetune-profiles-${TEAM[i]}"; done
  attempt kubectl --context "$CONTEXT" delete clusterrolebinding finetune-admins finetune-admins-jobs
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
    attempt kubectl --context "$CONTEXT" delete namespace $NAMESPACE
    return
  fi
  ask found "${TEAM[*]}" kubectl --context "$CONTEXT" get namespaces --selector "$SETUP_LABEL=true" \
    --output 'jsonpath={.items[*].metadata.name}'
  for name in $found; do
    [[ " ${TEAM[*]} " != *" $name "* ]] || attempt kubectl --context "$CONTEXT" delete namespace "$name"
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
    [[ $chart != finetune-operator-* || $release == "$NAMESPACE/finetune-operator" ]] || releases+=${releases:+, }$release
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
  [[ $DELETE_DATA != true ]] || what+="; the buckets that it has created, with all models, data, run folders and the ledger"
  [[ -n $others ]] || what+="; roles on storage"
  [[ -n $others || (-n $releases && $ours != true) ]] || what+=", images and the nodes' account"
  printf 'This ends %s in cluster %s and removes, in %s: %s.\n' "$jobs" "$CLUSTER" "$PROJECT" "$what" >&2
  read -r -p "Type the cluster's name to go ahead: " name || true
  [[ $name == "$CLUSTER" ]] || fail "Nothing was removed: \"$name\" is not the cluster's name." "Type it, or give --yes."
}

# ------------------------------------------------------------------------------------------------------ main

main() {
  # None of them comes from the environment.
  DRY_RUN=false YES=false CONFIRMED=false TRY=run CHANGE=add PROJECT_NUMBER="" OPERATOR_DIGEST="" TRAINER_DIGEST="" STAYING=""
  [[ ${BASH_VERSINFO[0]} -ge 5 ]] || fail "This is bash $BASH_VERSION: expected bash 5 or later." "Use Cloud Shell, or brew install bash."
  local remove=false team="" steps=() each
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
  check_variables
  if [[ $DRY_RUN != true ]]; then
    for each in gcloud kubectl helm; do
      command -v "$each" >/dev/null || fail "$each is not on PATH." "Install it, or use Cloud Shell, which has gcloud, kubectl and helm."
    done
  fi
  compare_settings
  if [[ $remove == true ]]; then remove; return; fi
  if [[ -n $team ]]; then withdraw "$team"; return; fi
  [[ ${#steps[@]} -gt 0 ]] || steps=(apis images cluster pools controllers buckets teams operator profiles)
  keep_settings
  for each in "${steps[@]}"; do "do_${each//-/_}"; done
  line
  line "# Next: finetune doctor --context $CONTEXT -n ${TEAM[0]}; then deploy/gke/setup.sh first-job"
}

main "$@"
