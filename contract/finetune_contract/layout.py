"""Where things lie in a run folder and in the cache. Pure string arithmetic on URIs."""

import re
from dataclasses import dataclass

#: A segment of a path inside the cache: never empty, ``.`` or ``..``.
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one job's run: ``<artifacts>/<namespace>/<job>-<uid8>``."""

    uri: str

    @classmethod
    def of(cls, artifacts: str, namespace: str, job: str, uid: str) -> "RunFolder":
        """Below the profile's ``storage.artifacts``; the uid makes a recreated job start fresh."""
        return cls(f"{artifacts.rstrip('/')}/{namespace}/{job}-{uid[:8]}")

    @property
    def preflight_report(self) -> str:
        return f"{self.uri}/preflight/report.json"

    @property
    def data_report(self) -> str:
        return f"{self.uri}/preflight/data.json"

    @property
    def data_page(self) -> str:
        """The same for people."""
        return f"{self.uri}/preflight/data.html"

    @property
    def preflight_samples(self) -> str:
        return f"{self.uri}/preflight/samples.jsonl"

    @property
    def progress(self) -> str:
        return f"{self.uri}/train/progress.json"

    @property
    def hosts(self) -> str:
        """Folder of what each of several processes of training says of itself."""
        return f"{self.uri}/train/hosts"

    def host(self, host: int) -> str:
        return f"{self.hosts}/{host}.json"

    @property
    def metrics(self) -> str:
        return f"{self.uri}/train/metrics.jsonl"

    @property
    def train(self) -> str:
        """MaxText's ``<base_output_directory>/<run_name>``: checkpoints/ and tensorboard/ lie below it."""
        return f"{self.uri}/train"

    @property
    def profile(self) -> str:
        """What ``tensorboard --logdir`` takes."""
        return f"{self.uri}/train/profile"

    @property
    def tensorboard(self) -> str:
        """What ``tensorboard --logdir`` reads."""
        return f"{self.uri}/train/tensorboard"

    @property
    def checkpoints(self) -> str:
        return f"{self.uri}/train/checkpoints"

    def checkpoint(self, step: int) -> str:
        return f"{self.checkpoints}/{step}"

    @property
    def seals(self) -> str:
        return f"{self.uri}/train/seals"

    def seal(self, step: int) -> str:
        """What the checkpoint of that step held when it was saved: size and CRC32C of every file."""
        return f"{self.seals}/{step}.json"

    @property
    def evaluation_results(self) -> str:
        return f"{self.uri}/evaluate/results.json"

    @property
    def evaluation_samples(self) -> str:
        return f"{self.uri}/evaluate/samples.jsonl"

    def exported(self, name: str) -> str:
        """``model``: in Hugging Face format; ``adapter``: PEFT's; ``orbax``: MaxText's."""
        return f"{self.uri}/export/{name}"

    @property
    def model(self) -> str:
        """The exported model in Hugging Face format."""
        return self.exported("model")

    @property
    def export_manifest(self) -> str:
        return f"{self.uri}/export/manifest.json"

    @property
    def attempts(self) -> str:
        return f"{self.uri}/attempts"

    def retry(self, generation: int) -> str:
        """The operator's note that it has acted on ``spec.retry.generation``."""
        return f"{self.attempts}/retry-{generation}.json"

    def taken_over(self, uid: str) -> str:
        """The operator's note that the job of that uid goes on in this folder, which another one has begun."""
        return f"{self.attempts}/taken-over-{uid[:8]}.json"

    def attempt(self, stage: str, number: int, restart: int = 0) -> str:
        """Folder of one attempt: ``train-2``, and ``train-2.1`` after the first restart inside that JobSet.

        ``stage`` is the short name (prep, conv, train, eval, export), ``number`` the JobSet's.
        """
        return f"{self.attempts}/{stage}-{number}{f'.{restart}' if restart else ''}"

    def request(self, stage: str, number: int, restart: int = 0) -> str:
        """Written by the trainer first of all: the attempt has started."""
        return f"{self.attempt(stage, number, restart)}/request.json"

    def result(self, stage: str, number: int, restart: int = 0) -> str:
        return f"{self.attempt(stage, number, restart)}/result.json"

    def failure(self, stage: str, number: int, restart: int = 0) -> str:
        """Written by the process that failed first, on whatever host, and only where there is none yet; the operator's
        own judgement replaces it."""
        return f"{self.attempt(stage, number, restart)}/failure.json"

    def log_tail(self, stage: str, number: int, restart: int = 0) -> str:
        return f"{self.attempt(stage, number, restart)}/log-tail.txt"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What jobs share: converted models (``<cache>/convert/<fingerprint>``), prepared data (``<cache>/data/…``) and
    compiled steps (``<cache>/compile/…``).

    An *entry* is a folder directly below its fingerprint's, written by one run of one attempt. The manifest beside the
    entries names the one that counts, and never anything outside of its own folder.
    """

    uri: str

    def convert(self, fingerprint: str) -> str:
        return f"{self.uri.rstrip('/')}/convert/{fingerprint}"

    def convert_manifest(self, fingerprint: str) -> str:
        """Written after all files of the entry that it names. It is replaced only where it is not usable."""
        return f"{self.convert(fingerprint)}/manifest.json"

    def convert_output(
        self, fingerprint: str, uid: str, number: int, restart: int = 0, run: str | None = None
    ) -> str:
        """This attempt's own entry, so that no two conversions of the same model ever mix their files. ``run``: tells
        runs of the same attempt apart (a JobSet that Kueue has stopped starts its attempt again)."""
        return f"{self.convert(fingerprint)}/{_own(uid, number, restart, run)}"

    def convert_entry(self, fingerprint: str, uri: str) -> str | None:
        """The entry of this fingerprint that ``uri`` lies in; None where it lies anywhere else."""
        return _entry(self.convert(fingerprint), fingerprint, uri)

    def convert_latest(self, source: str) -> str:
        """The manifest of the newest conversion of a model, by a digest of its address."""
        return f"{self.uri.rstrip('/')}/convert/latest/{source}.json"

    def compiled(self, fingerprint: str) -> str:
        """What the compiler said of one train step: every preflight of that shape may read it."""
        return f"{self.uri.rstrip('/')}/compile/{fingerprint}.json"

    def data(self, fingerprint: str) -> str:
        return f"{self.uri.rstrip('/')}/data/{fingerprint}"

    def data_manifest(self, fingerprint: str) -> str:
        """As for converted models."""
        return f"{self.data(fingerprint)}/manifest.json"

    def data_output(
        self, fingerprint: str, uid: str, number: int, restart: int = 0, run: str | None = None
    ) -> str:
        """As for converted models."""
        return f"{self.data(fingerprint)}/{_own(uid, number, restart, run)}"

    def data_entry(self, fingerprint: str, uri: str) -> str | None:
        """As for converted models."""
        return _entry(self.data(fingerprint), fingerprint, uri)

    def data_latest(self, source: str) -> str:
        """The manifest of the newest preparation of a source, by a digest of its address."""
        return f"{self.uri.rstrip('/')}/data/latest/{source}.json"


def file_list(entry: str) -> str:
    """The list of an entry's files, beside its folder: name, size, CRC32C and, in a bucket, generation of every one.
    It is a document of its own, since a large model has thousands of files; the manifest holds its sha256."""
    return f"{entry}.files.json"


def of_attempt(entry: str, uid: str) -> bool:
    """Whether an attempt of that job has written the entry."""
    return entry.rpartition("/")[2].startswith(f"{uid[:8]}-")


def _own(uid: str, number: int, restart: int, run: str | None) -> str:
    return f"{uid[:8]}-{number}{f'.{restart}' if restart else ''}{f'-{run}' if run else ''}"


def _entry(folder: str, fingerprint: str, uri: str) -> str | None:
    if not _SEGMENT.fullmatch(fingerprint) or not uri.startswith(f"{folder}/"):
        return None
    first, *below = uri.removeprefix(f"{folder}/").split("/")
    return f"{folder}/{first}" if below and all(map(_SEGMENT.fullmatch, (first, *below))) else None
