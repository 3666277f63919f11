# shellcheck shell=bash
# The variables of setup.sh: their defaults and checks, what follows from them, and those of the last run.

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
  [[ ! ${ZONE:-} =~ -ai[0-9]+[a-z](,|$) ]] || fail \
    "ZONE is \"$ZONE\", an AI zone: this script creates all pools in ZONE, also those without TPUs, which do not belong there." \
    "export ZONE=$LOCATION-a, and create the pools of the AI zone yourself."
  check ZONE "$LOCATION-[a-z](,$LOCATION-[a-z])*" "a zone of $LOCATION that has the TPUs, or several with commas" "$LOCATION-a"
  read_zones
  check CLUSTER '[a-z]([a-z0-9-]{0,38}[a-z0-9])?' "the name of a cluster" finetune
  check CAPACITY 'OnDemand|Spot|Reservation|FlexStart' "OnDemand, Spot, Reservation or FlexStart" OnDemand
  if [[ $CAPACITY == Reservation || -n $RESERVATION ]]; then
    check RESERVATION '[a-z][a-z0-9-]{0,62}' "the name of a reservation of this project" spring
  fi
  [[ $CAPACITY != Reservation || ${#ZONES[@]} -eq 1 ]] || fail \
    "ZONE has ${#ZONES[@]} zones, and a reservation is in one." "export ZONE=the zone of $RESERVATION"
  check VERSION '[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}' "a tag of the images" 0.2.0
  check BUILDER 'docker|podman|buildah' "docker, podman or buildah" docker
  [[ -z $CLUSTER_FLAGS ]] || check CLUSTER_FLAGS '--[a-z0-9-]+(=[A-Za-z0-9_./:,@-]+)?( --[a-z0-9-]+(=[A-Za-z0-9_./:,@-]+)?)*' \
    "flags of gcloud container clusters create, with values after =" "'--enable-private-nodes --network=shared'"
  [[ ! " $CLUSTER_FLAGS" =~ \ --(enable-)?autoprovisioning[a-z-]* ]] || fail \
    "CLUSTER_FLAGS has${BASH_REMATCH[0]}: node auto-provisioning has not been tried with this script, whose profiles select its own pools." \
    "Leave it out: the pools of this script scale from zero by themselves. docs/install-gke.md#what-is-not-tried"
  [[ -z $BASE_IMAGE ]] || check BASE_IMAGE '[A-Za-z0-9][A-Za-z0-9_./:@-]*' "an image with Python 3.12" python:3.12-slim-bookworm
  check CPU_MACHINE 'n2-highmem-(4|8|16)' "n2-highmem-4, n2-highmem-8 or n2-highmem-16" n2-highmem-4
  check CPU_DISK_GB '[1-9][0-9]{2,4}' "a size in GB from 100 to 99999" 300
  local name
  for name in CPU_NODES TEAM_JOBS; do check $name '[1-9][0-9]{0,3}' "a number from 1 to 9999" 4; done
  for name in KUEUE PATHWAYS LEDGER DELETE_DATA; do check $name 'true|false' "true or false" false; done

  for name in SLICES TEAMS; do one_line $name; done
  read_slices
  read_teams
  if [[ $ADMINS,$TEAMS == *group:* || -n $SECURITY_GROUP ]]; then
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

# ZONE → array ZONES. The first one also has the pools without TPUs.
read_zones() {
  local zone seen=" "
  IFS=, read -r -a ZONES <<<"$ZONE"
  for zone in "${ZONES[@]}"; do
    [[ $seen != *" $zone "* ]] || fail "ZONE has $zone twice." "Write each zone once."
    seen+="$zone "
  done
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
  local people="((user|group):[a-z0-9._%+-]+@[a-z0-9.-]+|serviceAccount:[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com"
  people+="|principal${workforce}subject/[A-Za-z0-9._+@-]+|principalSet${workforce}group/[A-Za-z0-9._+@-]+)"
  [[ $TEAMS,$ADMINS != *workloadIdentityPools* ]] || fail \
    "TEAMS or ADMINS names an identity of a workload identity pool, which roles in a GKE cluster are not known to take." \
    "Name the service account that it impersonates: serviceAccount:NAME@PROJECT.iam.gserviceaccount.com."
  # IAM would store the address in lower case: roles in the cluster and removals compare letters.
  [[ ! $TEAMS,$ADMINS =~ (user|group|serviceAccount):([^,\ ]*[[:upper:]][^,\ ]*) ]] || fail \
    "TEAMS or ADMINS has \"${BASH_REMATCH[0]}\": expected an address in lower case." "Write ${BASH_REMATCH[1]}:${BASH_REMATCH[2],,}."
  for entry in $TEAMS; do
    name=${entry%%=*}
    [[ $entry =~ ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(=$people(,$people)*)?$ ]] || fail \
      "TEAMS has \"$entry\": expected namespaces, each with its people: NAMESPACE=user:EMAIL,group:EMAIL,serviceAccount:EMAIL or identifiers of a workforce pool's users and groups." \
      'export TEAMS="team-a=group:team-a@example.com team-b=user:anna@example.com"'
    [[ ! $name =~ ^(kube-.*|gke-.*|gmp-.*|default|$NAMESPACE|jobset-system|kueue-system)$ ]] || fail \
      "TEAMS has $name, a namespace of the platform." "Give each team a namespace of its own, such as team-a."
    [[ ! $name =~ ^([0-9].*|y|n|yes|no|on|off|true|false|null)$ ]] || fail \
      "TEAMS has $name, which YAML may read as something else than a name." "Name the namespace as a word, such as team-$name."
    [[ $seen != *" $name "* ]] || fail "TEAMS has $name twice." "Write it once, with all its people."
    seen+="$name "
    TEAM+=("$name")
    if [[ $entry == *=* ]]; then MEMBERS+=("${entry#*=}"); else MEMBERS+=(""); fi
  done
  # After the last team was withdrawn there is none, and the rest can still be removed.
  [[ ${#TEAM[@]} -gt 0 || ($remove == true && -v LAST[TEAMS]) ]] || fail "TEAMS is not set: expected the namespaces of teams." \
    'export TEAMS="team-a=user:anna@example.com" for the next team, or --remove after the last one.'
  [[ -z $ADMINS || $ADMINS =~ ^$people(,$people)*$ ]] || fail \
    "ADMINS is \"$ADMINS\": expected people as in TEAMS, separated by commas." \
    "export ADMINS=group:platform@example.com"
}

derive() {
  local gib
  NODES_EMAIL=$NODES_ACCOUNT@$PROJECT.iam.gserviceaccount.com
  REPOSITORY=$LOCATION-docker.pkg.dev/$PROJECT/finetune
  CONTEXT=gke_${PROJECT}_${LOCATION}_$CLUSTER
  OWNER=${LOCATION}_$CLUSTER
  BUCKETS=("$PROJECT-finetune-artifacts" "$PROJECT-finetune-cache" "$PROJECT-models" "$PROJECT-data")
  IN_LOCATION=(--location "$LOCATION" --project "$PROJECT")
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
    FlexStart)
      # Nodes of a limited lifetime, which GKE replaces and never repairs. Pods select them by their label, also in a queue.
      CAPACITY_FLAGS=(--flex-start --location-policy ANY --reservation-affinity none --no-enable-autorepair)
      FLAVOR="capacity: FlexStart, queuedProvisioning: false" ;;
  esac
}

# Variables that are kept from run to run. Not among them: BUILDER, which each machine has its own of, FILES, where they
# are kept, and DELETE_DATA.
SETTINGS=(PROJECT LOCATION ZONE TEAMS CLUSTER SLICES CAPACITY RESERVATION ADMINS SECURITY_GROUP VERSION BASE_IMAGE
  CPU_MACHINE CPU_DISK_GB CPU_NODES TEAM_JOBS KUEUE PATHWAYS LEDGER CLUSTER_FLAGS)

# Of two runs with the same FILES the later one would compare its variables with those that the other is about to replace.
lock_files() {
  FILES=${FILES:-gke-${CLUSTER:-finetune}}
  [[ $DRY_RUN != true ]] || return 0
  mkdir -p "$FILES"
  mkdir "$FILES/lock" 2>/dev/null || fail "Another run with the folder $FILES has not ended: $FILES/lock exists." \
    "Wait for its end; if no run is going on: rmdir $(quoted "$FILES/lock")"
  # A run that is refused leaves no empty folder, either.
  trap 'rmdir "$FILES/lock" && { rmdir "$FILES" 2>/dev/null || true; }' EXIT
}

# → LAST: the variables of the last run, by name. The file is only read, never run.
read_last_settings() {
  local text
  LAST_FILE=$FILES/settings.env
  declare -gA LAST=()
  [[ -e $LAST_FILE ]] || return 0
  while IFS= read -r text || [[ -n $text ]]; do
    [[ $text != "#"* ]] || continue
    [[ $text =~ ^([A-Z_]+)=\'([^\'[:cntrl:]]*)\'$ && " ${SETTINGS[*]} " == *" ${BASH_REMATCH[1]} "* ]] || fail \
      "$LAST_FILE has the line $(quoted "$text"): expected NAME='VALUE' with a variable of this script." \
      "Restore the file from version control, or delete it: then this is the first run."
    LAST[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
  done < "$LAST_FILE"
}

# What the environment does not set is as at the last run; but VERSION is that of the checkout.
take_last_settings() {
  local name
  for name in "${!LAST[@]}"; do
    [[ $name == VERSION || -v $name ]] || printf -v "$name" '%s' "${LAST[$name]}"
  done
}

# A run with other variables changes what runs: it needs --change.
compare_settings() {
  local name differences=""
  if [[ ${#LAST[@]} -eq 0 ]]; then
    line "# There is no $LAST_FILE: this is the first run."
    return
  fi
  for name in "${SETTINGS[@]}"; do
    # What is removed or withdrawn does not depend on the images.
    [[ $name != VERSION || ($remove == false && -z $team) ]] || continue
    if [[ ! -v LAST[$name] ]]; then
      differences+=$'\n'"  $name: was not kept, is \"${!name}\""
    elif [[ ${LAST[$name]} != "${!name}" ]]; then
      differences+=$'\n'"  $name: was \"${LAST[$name]}\", is \"${!name}\""
    fi
  done
  [[ -n $differences ]] || return 0
  [[ $CONFIRMED == true || $DRY_RUN == true ]] || fail "Variables differ from those of the last run, in $LAST_FILE:$differences" \
    "Confirm the change with --change, or unset them: a variable that is not set is as at the last run."
  line "# Variables differ from those of the last run, in $LAST_FILE:${differences//$'\n'/$'\n'#}"
  [[ $CONFIRMED == true ]] || line "# Without --change, a run that is not --dry-run stops here."
}

# Before the first command, not after the last: a run that fails has changed a part, which a run with the variables of
# the one before would change back.
keep_settings() {
  local name
  {
    echo "# Variables of the last run of setup.sh, whether it has ended well or not."
    for name in "${SETTINGS[@]}"; do printf "%s='%s'\n" "$name" "${!name}"; done
  } | write "$LAST_FILE"
}
