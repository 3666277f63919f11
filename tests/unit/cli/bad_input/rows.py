"""A row for each command of ``finetune``: how it is called in tests of bad input, and what it needs.

A command without a row fails ``test_every_command_has_a_row``.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[4]
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
LOCAL = str(ROOT / "devcluster" / "manifests" / "profile-local.yaml")

#: Jobs of the namespace ``team-a``.
DONE, OTHER, RUNNING, FAILED = "bot-done", "bot-other", "bot-running", "bot-failed"
#: Replaced by the folder that holds the run folders, and the files that commands write.
FOLDER = "{folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """One way to call a command. It prints to stdout."""

    words: tuple[str, ...]
    code: int = 0
    """Exit code if nothing is wrong."""
    cluster: bool = True
    """It needs a cluster."""
    job: str = ""
    """The job that it needs. Empty: none."""
    store: bool = False
    """It reads a run folder, or a ledger."""
    whole_cluster: bool = False
    """Rights in a namespace are not enough."""
    reports: bool = False
    """Rights and resources that are missing are what it prints."""

    @property
    def command(self) -> str:
        return self.words[0]

    def arguments(self, folder: Path, kubeconfig: Path | None = None) -> list[str]:
        """Returns the arguments of the program."""
        words = [word.replace(FOLDER, str(folder)) for word in self.words]
        return [*words, "--kubeconfig", str(kubeconfig)] if kubeconfig and self.cluster else words

    def __str__(self) -> str:
        return " ".join(Path(word).name if "/" in word else word for word in self.words)


ROWS = [
    CommandRow(words=("init", "--from", DONE), job=DONE),
    CommandRow(words=("init", "--model", "a/b", "--dataset", "gs://a/b.jsonl"), cluster=False),
    CommandRow(words=("plan", "-f", QUICKSTART, "--profile", LOCAL), cluster=False),
    CommandRow(
        words=("plan", "-f", QUICKSTART, "--profile", LOCAL, "--ledger", f"file://{FOLDER}/ledger"),
        cluster=False, store=True,
    ),
    CommandRow(words=("plan", "-f", QUICKSTART), whole_cluster=True),
    CommandRow(words=("validate", "-f", QUICKSTART), cluster=False),
    CommandRow(words=("profiles",), whole_cluster=True),
    # The stand-in has neither JobSet nor an operator.
    CommandRow(words=("doctor",), code=1, reports=True),
    CommandRow(words=("costs",)),
    CommandRow(words=("costs", "--ledger", f"file://{FOLDER}/ledger"), cluster=False, store=True),
    CommandRow(words=("explain", "MemoryExceeded"), cluster=False),
    CommandRow(words=("compare", DONE, OTHER), job=DONE, store=True),
    CommandRow(words=("compare", f"file://{FOLDER}/{DONE}", f"file://{FOLDER}/{OTHER}"), cluster=False, store=True),
    CommandRow(words=("report", DONE, "-o", "-"), job=DONE, store=True),
    CommandRow(words=("report", "--run", f"file://{FOLDER}/{DONE}", "-o", "-"), cluster=False, store=True),
    CommandRow(words=("list",)),
    CommandRow(words=("list", "-A", "-o", "json"), whole_cluster=True),
    CommandRow(words=("status", DONE), job=DONE),
    CommandRow(words=("status", DONE, "-o", "yaml"), job=DONE),
    CommandRow(words=("watch", DONE), job=DONE),
    CommandRow(words=("wait", DONE, OTHER), job=DONE),
    CommandRow(words=("logs", DONE), job=DONE, store=True),
    CommandRow(words=("suspend", RUNNING), job=RUNNING),
    CommandRow(words=("suspend", "--all", "-A"), whole_cluster=True),
    CommandRow(words=("resume", RUNNING), job=RUNNING),
    CommandRow(words=("retry", FAILED), job=FAILED),
    CommandRow(words=("cancel", RUNNING), job=RUNNING),
    CommandRow(words=("download", DONE, "--to", f"{FOLDER}/to"), job=DONE, store=True),
    CommandRow(
        words=("download", "--run", f"file://{FOLDER}/{DONE}", "--to", f"{FOLDER}/to"),
        cluster=False, store=True,
    ),
    CommandRow(words=("tensorboard", DONE), job=DONE, store=True),
    # No Python has transformers: the recorded answers are shown.
    CommandRow(words=("try", DONE, "hello"), job=DONE, store=True, code=1),
]  # fmt: skip
