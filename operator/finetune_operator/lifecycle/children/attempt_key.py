"""The key of an attempt, by which JobSets, pods and files of the run folder are matched."""

from dataclasses import dataclass

from finetune_contract import Stage
from finetune_operator.objects import Object
from finetune_operator.rendering import attempt_of


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One attempt of one stage: the JobSet's number, and the restart inside that JobSet."""

    stage: Stage
    number: int
    restart: int = 0

    @classmethod
    def of(cls, child: Object) -> "AttemptKey | None":
        """Returns the key that the labels of a JobSet or pod contain; None if they contain none."""
        found = attempt_of(child)
        return cls(*found) if found else None

    @classmethod
    def of_jobset(cls, stage: Stage, name: str | None, restart: int | None) -> "AttemptKey | None":
        """Returns the key of an attempt that the status shows with the name of its JobSet; None if that has no
        number."""
        number = (name or "").rpartition("-")[2]
        return cls(stage, int(number), restart or 0) if number.isdecimal() else None

    @property
    def jobset(self) -> tuple[Stage, int]:
        """Stage and number, which all restarts of a JobSet share."""
        return self.stage, self.number

    @property
    def place(self) -> tuple[str, int, int]:
        """Which folder of the run holds its files (``RunFolder.attempt``)."""
        return self.stage.short, self.number, self.restart
