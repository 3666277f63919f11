# shellcheck shell=bash
# What people and teams lose who are no longer named. Only the variables of the last run tell who they were, so roles are
# withdrawn before those variables are replaced: a run that ends in between is repeated as it was and withdraws them again.

# withdraw NAMESPACE: of the team alone; its people are those of TEAMS. The operator keeps its roles.
withdraw() {
  local i found="" STAYING=$ADMINS CHANGE=remove
  for i in "${!TEAM[@]}"; do
    if [[ ${TEAM[i]} == "$1" ]]; then found=$i; else STAYING+=,${MEMBERS[i]}; fi
  done
  [[ -n $found ]] || fail "There is no team \"$1\" in TEAMS: expected one of ${TEAM[*]}." \
    "export TEAMS with all teams and their people."
  number
  step "Roles of $1 on storage, and of its people in the cluster"
  bindings "$1" "${MEMBERS[found]}"
  check_removals
  kube delete rolebinding finetune finetune-view --namespace "$1" --ignore-not-found
  kube delete clusterrolebinding "finetune-profiles-$1" --ignore-not-found
  forget "$1"
}

# forget NAMESPACE: a later run grants nothing to the team again, unless TEAMS is given with it.
forget() {
  local name entry teams=""
  [[ ${#LAST[@]} -gt 0 ]] || return 0
  for name in "${!LAST[@]}"; do printf -v "$name" '%s' "${LAST[$name]}"; done
  for entry in $TEAMS; do [[ ${entry%%=*} == "$1" ]] || teams+=${teams:+ }$entry; done
  TEAMS=$teams
  keep_settings
}

# Of the people that the last run named. Their roles in the cluster go with the steps teams and operator, which replace
# the subjects of all bindings. A team that is left out would keep all it has: it is withdrawn by name, since it may have
# moved to another release.
withdraw_from_leavers() {
  local i name of_admins anyone="" STAYING="$ADMINS" CHANGE=remove left=()
  for i in "${MEMBERS[@]}"; do STAYING+=,$i; done
  for name in ${LAST[TEAMS]-}; do
    name=${name%%=*}
    [[ " ${TEAM[*]} " == *" $name "* ]] || need "TEAMS names team $name no longer, which would keep its roles." \
      "Unset TEAMS, and run deploy/gke/setup.sh withdraw $name: it also leaves the team out of the variables of the last run."
  done
  for i in "${!TEAM[@]}"; do
    left[i]=$(leavers "$(people "${TEAM[i]}" "${LAST[TEAMS]-}")" "${MEMBERS[i]}")
    needs_step teams "${left[i]}"
    anyone+=${left[i]}
  done
  of_admins=$(leavers "${LAST[ADMINS]-}" "$ADMINS")
  needs_step operator "$of_admins"
  [[ -n $anyone$of_admins ]] || return 0
  step "Roles of people who are no longer named"
  for i in "${!TEAM[@]}"; do people_bindings "${TEAM[i]}" "${left[i]}"; done
  cluster_viewers "$of_admins"
  check_removals
}

# people NAMESPACE TEAMS: of the team, separated by commas.
people() {
  local entry
  for entry in $2; do [[ $entry != "$1="* ]] || printf '%s' "${entry#*=}"; done
}

# leavers BEFORE NOW: who is not named now, separated by commas.
leavers() {
  local each found=""
  for each in ${1//,/ }; do [[ ",$2," == *",$each,"* ]] || found+=${found:+,}$each; done
  printf '%s' "$found"
}

# needs_step STEP PEOPLE: only the step takes their roles in the cluster.
needs_step() {
  [[ -z $2 || " ${steps[*]} " == *" $1 "* ]] || need \
    "$2 would keep roles in the cluster: expected the step $1 in this run, which has ${steps[*]}." \
    "deploy/gke/setup.sh --change ${steps[*]} $1"
}

# need MESSAGE FIX: with --dry-run it is only said.
need() { if [[ $DRY_RUN == true ]]; then line "# A run that is not --dry-run stops here: $1 $2"; else fail "$1" "$2"; fi; }
