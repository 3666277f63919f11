"""Layout of run folders and of the cache: URIs of their files, computed without I/O."""

import re
from dataclasses import dataclass

#: A path segment inside the cache: never empty, ``.`` or ``..``.
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one job's run: ``<artifacts>/<namespace>/<job>-<uid8>``."""

    uri: str

    @classmethod
    def of(cls, artifacts: str, namespace: str, job: str, uid: str) -> "RunFolder":
        """Returns a job's folder below the profile's ``storage.artifacts``.

        The uid in its name makes a recreated job start afresh.
        """
        return cls(f"{artifacts.rstrip('/')}/{namespace}/{job}-{uid[:8]}")

    @property
    def preflight_report(self) -> str:
        return f"{self.uri}/preflight/report.json"

    @property
    def data_report(self) -> str:
        return f"{self.uri}/preflight/data.json"

    @property
    def data_page(self) -> str:
        """The data report as an HTML page."""
        return f"{self.uri}/preflight/data.html"

    @property
    def preflight_samples(self) -> str:
        return f"{self.uri}/preflight/samples.jsonl"

    @property
    def progress(self) -> str:
        return f"{self.uri}/train/progress.json"

    @property
    def hosts(self) -> str:
        """Folder of the :class:`~.progress.HostProgress` records of a training with several processes."""
        return f"{self.uri}/train/hosts"

    def host(self, host: int) -> str:
        return f"{self.hosts}/{host}.json"

    @property
    def metrics(self) -> str:
        return f"{self.uri}/train/metrics.jsonl"

    @property
    def train(self) -> str:
        """MaxText's ``<base_output_directory>/<run_name>``, which contains checkpoints/ and tensorboard/."""
        return f"{self.uri}/train"

    @property
    def profile(self) -> str:
        """Folder of recorded profiles, for ``tensorboard --logdir``."""
        return f"{self.uri}/train/profile"

    @property
    def tensorboard(self) -> str:
        """Folder of training metrics, for ``tensorboard --logdir``."""
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
        """Seal of a step's checkpoint: size and CRC32C of every file at the time it was saved."""
        return f"{self.seals}/{step}.json"

    @property
    def evaluation_results(self) -> str:
        return f"{self.uri}/evaluate/results.json"

    @property
    def evaluation_samples(self) -> str:
        return f"{self.uri}/evaluate/samples.jsonl"

    @property
    def evaluation_rows(self) -> str:
        """Measurements of each evaluation row, as :class:`~.rows.EvaluatedRow` records."""
        return f"{self.uri}/evaluate/rows.jsonl"

    @property
    def status(self) -> str:
        """The operator's record of the job and its status at its end, which outlives the FineTuneJob."""
        return f"{self.uri}/status.json"

    def exported(self, name: str) -> str:
        """Folder of an export: ``model`` in Hugging Face format, ``adapter`` in PEFT's, ``orbax`` in MaxText's."""
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
        """The operator's record that it has acted on ``spec.retry.generation``."""
        return f"{self.attempts}/retry-{generation}.json"

    def taken_over(self, uid: str) -> str:
        """The operator's record that the job with that uid continues in this folder, which another job started."""
        return f"{self.attempts}/taken-over-{uid[:8]}.json"

    def attempt(self, stage: str, number: int, restart: int = 0) -> str:
        """Folder of one attempt: ``train-2``, or ``train-2.1`` after the first restart of that JobSet.

        ``stage`` is the short name (prep, conv, train, eval, export) and ``number`` the JobSet's number.
        """
        return f"{self.attempts}/{stage}-{number}{f'.{restart}' if restart else ''}"

    def request(self, stage: str, number: int, restart: int = 0) -> str:
        """The attempt's request, the first file that the trainer writes: it shows that the attempt has started."""
        return f"{self.attempt(stage, number, restart)}/request.json"

    def jobset(self, stage: str, number: int) -> str:
        """The attempt's JobSet as the operator created it."""
        return f"{self.attempt(stage, number)}/jobset.json"

    def engine(self, stage: str, number: int, restart: int = 0) -> str:
        """Every setting that MaxText ran with at Train, by name, without credentials."""
        return f"{self.attempt(stage, number, restart)}/engine.json"

    def stage_progress(self, stage: str, number: int, restart: int = 0) -> str:
        """What the attempt is doing, as a :class:`~.progress.StageProgress` record."""
        return f"{self.attempt(stage, number, restart)}/progress.json"

    def result(self, stage: str, number: int, restart: int = 0) -> str:
        return f"{self.attempt(stage, number, restart)}/result.json"

    def failure(self, stage: str, number: int, restart: int = 0) -> str:
        """The attempt's failure record, written by the first process to fail, on any host, if none exists yet.

        The operator's own classification replaces it.
        """
        return f"{self.attempt(stage, number, restart)}/failure.json"

    def log_tail(self, stage: str, number: int, restart: int = 0) -> str:
        return f"{self.attempt(stage, number, restart)}/log-tail.txt"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The cache that jobs share.

    It holds converted models (``<cache>/convert/<fingerprint>``), prepared data (``<cache>/data/…``) and compiled steps
    (``<cache>/compile/…``). An *entry* is a folder directly below that of its fingerprint, written by one run of one
    attempt. The manifest beside the entries names the valid one, and never anything outside its own folder.
    """

    uri: str

    def convert(self, fingerprint: str) -> str:
        return f"{self.uri.rstrip('/')}/convert/{fingerprint}"

    def convert_manifest(self, fingerprint: str) -> str:
        """Manifest of a converted model, written after all files of the entry that it names.

        It is replaced only if it is unusable.
        """
        return f"{self.convert(fingerprint)}/manifest.json"

    def convert_output(
        self, fingerprint: str, uid: str, number: int, restart: int = 0, run: str | None = None
    ) -> str:
        """The attempt's own entry, so that two conversions of the same model never mix their files.

        ``run`` distinguishes runs of the same attempt: a JobSet that Kueue has suspended starts its attempt again.
        """
        return f"{self.convert(fingerprint)}/{_own(uid, number, restart, run)}"

    def convert_entry(self, fingerprint: str, uri: str) -> str | None:
        """Returns the entry of this fingerprint that contains ``uri``; None if ``uri`` is outside all its entries."""
        return _entry(self.convert(fingerprint), fingerprint, uri)

    def convert_latest(self, source: str) -> str:
        """Manifest of the newest conversion of a model; ``source`` is a digest of the model's address."""
        return f"{self.uri.rstrip('/')}/convert/latest/{source}.json"

    def compiled(self, fingerprint: str) -> str:
        """The compiler's report on one train step, which every preflight of that shape may reuse."""
        return f"{self.uri.rstrip('/')}/compile/{fingerprint}.json"

    def data(self, fingerprint: str) -> str:
        return f"{self.uri.rstrip('/')}/data/{fingerprint}"

    def data_manifest(self, fingerprint: str) -> str:
        """Manifest of prepared data, as :meth:`convert_manifest`."""
        return f"{self.data(fingerprint)}/manifest.json"

    def data_output(
        self, fingerprint: str, uid: str, number: int, restart: int = 0, run: str | None = None
    ) -> str:
        """The attempt's own entry of prepared data, as :meth:`convert_output`."""
        return f"{self.data(fingerprint)}/{_own(uid, number, restart, run)}"

    def data_entry(self, fingerprint: str, uri: str) -> str | None:
        """Returns the entry of prepared data that contains ``uri``, as :meth:`convert_entry`."""
        return _entry(self.data(fingerprint), fingerprint, uri)

    def data_latest(self, source: str) -> str:
        """Manifest of the newest preparation of a data source; ``source`` is a digest of the source's address."""
        return f"{self.uri.rstrip('/')}/data/latest/{source}.json"


def file_list(entry: str) -> str:
    """The list of an entry's files, beside its folder: name, size, CRC32C and, in a bucket, generation of each.

    It is a separate document, since a large model has thousands of files; the manifest holds its sha256.
    """
    return f"{entry}.files.json"


def of_attempt(entry: str, uid: str) -> bool:
    """Whether an attempt of the job with that uid has written the entry."""
    return entry.rpartition("/")[2].startswith(f"{uid[:8]}-")


def _own(uid: str, number: int, restart: int, run: str | None) -> str:
    return f"{uid[:8]}-{number}{f'.{restart}' if restart else ''}{f'-{run}' if run else ''}"


def _entry(folder: str, fingerprint: str, uri: str) -> str | None:
    if not _SEGMENT.fullmatch(fingerprint) or not uri.startswith(f"{folder}/"):
        return None
    first, *below = uri.removeprefix(f"{folder}/").split("/")
    return f"{folder}/{first}" if below and all(map(_SEGMENT.fullmatch, (first, *below))) else None
