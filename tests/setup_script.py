"""The set-up script of docs/install-gke.md: its plan, and its runs with stand-ins for the programs that it calls."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deploy" / "gke" / "setup.sh"
#: With the files that it is made of.
SOURCES = sorted(SCRIPT.parent.glob("*.sh"))
TABLE = ROOT / "deploy" / "gke" / "commands.csv"
PROGRAMS = ("gcloud", "kubectl", "helm", "docker")
#: That of kubectl, which only has to be there.
PLUGIN = "gke-gcloud-auth-plugin"
VARIABLES = {
    "PROJECT": "my-project",
    "LOCATION": "europe-west4",
    "ZONE": "europe-west4-a",
    "TEAMS": "team-a=group:team-a@example.com,user:anna@example.com",
    "SECURITY_GROUP": "gke-security-groups@example.com",
}
#: All that the script can be asked for.
EVERYTHING = {
    "SLICES": "v6e-4*4 v6e-16*2 v6e-8/1host",
    "CAPACITY": "Reservation",
    "RESERVATION": "spring",
    "TEAMS": "team-a=group:team-a@example.com team-b=user:b@example.com",
    "ADMINS": "user:root@example.com",
    "BASE_IMAGE": "python:3.12-slim-bookworm",
    "KUEUE": "true",
    "PATHWAYS": "true",
    "LEDGER": "true",
}
#: What the stand-ins answer in a cluster with another release of the operator.
OTHER_RELEASE = {
    "RELEASES": "finetune-operator-0.2.0 finetune-system/finetune-operator\n"
    "finetune-operator-0.1.0 finetune-b/finetune-b\njobset-0.12.0 jobset-system/jobset\n",
    "NAMESPACES": "team-a moved",
    "POOLS": "finetune-cpu",
}
#: Records the call. Probes fail, or succeed where EXIST is set; what contains FAIL fails with ERROR;
#: TERM_AT ends the script.
_STAND_IN = r"""#!/bin/sh
NO_CLUSTER="ResponseError: code=404, message=Not found: projects/my-project/locations/europe-west4/clusters/finetune."
printf '%s\n' "$(basename "$0") $*" >> "$COMMANDS"
case "$*" in *"${FAIL-no such words}"*) echo "${ERROR-}" >&2; exit 1;; esac
case "$*" in *"${TERM_AT-no such words}"*) kill -TERM $PPID;; esac
case "$*" in
*projectNumber*) echo "${NUMBER-123456}";;
*image_summary.digest*) echo "${DIGEST_FORMAT-sha256:$(printf '%064d' "${DIGEST-7}")}";;
*currentMasterVersion*)
  echo "${FOUND-1.34.1-gke.1,my-project.svc.id.goog,ADVANCED_DATAPATH,},$GROUPS_OF,${AUTOPILOT-},${PROVISIONING-}";;
*workloadMetadataConfig*) echo "${MODES-default-pool,GKE_METADATA}";;
*autoscaling.maxNodeCount*) echo "${MOST-},${AT-}";;
*"clusters list"*) echo "${WARNING-}" >&2; echo "${OTHERS-}";;
*"clusters describe"*resourceLabels*)
  [ -z "${GONE-}" ] || { echo "$NO_CLUSTER" >&2; exit 1; }; echo "${OURS-}";;
*"node-pools list"*"name,status"*) for name in ${POOLS-}; do echo "$name,${STATUS-RUNNING}"; done;;
*"node-pools list"*config.labels*) echo "${POOLS-}";;
*"repositories list"*) echo "${REPOSITORIES-finetune}";;
*"service-accounts list"*) echo "${ACCOUNTS-finetune-nodes@my-project.iam.gserviceaccount.com}";;
*"buckets list"*labels.*) echo "${LABELLED-}";;
*"buckets list"*) [ -z "${EXIST-}" ] || echo "$*" | sed 's/.*name=\([^ ]*\).*/\1/';;
*"get deployment finetune-operator"* | *"get finetuneprofile"*) echo "$*" | grep -o "${INSTALLED-no such}" || :;;
*"get deployments"*) printf "${RELEASES-}";;
*"get namespaces"*) echo "${NAMESPACES-}";;
*" get "*) [ -z "${EXIST-}" ] || echo found;;
*describe*) [ -n "${EXIST-}" ];;
esac
"""


def plan(*arguments: str, **variables: str) -> str:
    """What ``--dry-run`` prints. A variable that is empty is not set."""
    done = run("--dry-run", *arguments, environment={"PATH": os.environ["PATH"], **VARIABLES, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def everything() -> str:
    return plan(**EVERYTHING) + plan("first-job", **EVERYTHING)


@cache
def removal() -> str:
    return plan("--remove", DELETE_DATA="true", **EVERYTHING)


def run(
    *arguments: str, environment: Mapping[str, str], stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Runs the script, whatever its exit code. An empty variable is not set; a space stands for one set to nothing."""
    given = {name: value.strip() for name, value in environment.items() if value}
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env=given,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
        timeout=60,
    )


class World:
    """A machine on which every program of the script only records its calls."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.stderr: int = subprocess.PIPE
        self._folder = folder
        self._calls = folder / "calls"
        for name in (*PROGRAMS, PLUGIN):
            (folder / name).write_text(_STAND_IN)
            (folder / name).chmod(0o755)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs the script; ``calls`` are then its calls alone."""
        self._calls.write_text("")
        group = variables.pop("GROUPS_OF", VARIABLES["SECURITY_GROUP"])
        paths = {"PATH": f"{self._folder}:/usr/bin:/bin", "COMMANDS": str(self._calls), "GROUPS_OF": group}
        given = {**paths, "FILES": str(self.files), **VARIABLES, **variables}
        return run(*arguments, environment=given, stderr=self.stderr)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command in the lines of a shell script, without the files that it writes."""
    script = re.sub(r"<<-?'?EOF'?\n.*?\nEOF(\n|$)", "\n", text.replace("\\\n", " "), flags=re.DOTALL)
    script = re.sub(r"^# unless this succeeds: |^\$ ", "", script, flags=re.MULTILINE)
    script = re.sub(r"(^|\s)#.*$", "", script, flags=re.MULTILINE)
    # What is in $( ) or <( ) is a command, too.
    lexer = shlex.shlex(
        re.sub(r"[$<]\(|(?<!\\)\)(?=\s|$)|>/dev/null|2>&1", " ; ", script, flags=re.MULTILINE),
        posix=True,
        punctuation_chars=";&|\n",
    )
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|\n"):
            while words and words[0] in ("while", "do", "done"):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def files(text: str) -> dict[str, str]:
    """The files that a plan writes, by their names without folders."""
    return {
        Path(name).name: content
        for name, content in re.findall(r"^cat > (\S+) <<'EOF'\n(.*?)\nEOF$", text, re.DOTALL | re.MULTILINE)
    }


def grants(text: str, verb: str = "add") -> list[tuple[str, str, str]]:
    """Member, place and role of each binding on storage."""
    return re.findall(
        rf"gcloud storage (?:buckets|managed-folders) {verb}-iam-policy-binding gs://(\S+) --member (\S+) --role (\S+)",
        text,
    )
