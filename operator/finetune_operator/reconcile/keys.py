"""Keys of the objects that the operator reconciles."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class ProfileKey:
    name: str

    def __str__(self) -> str:
        return f"finetuneprofile/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class PlanKey:
    """Key of a stored plan, whose job may no longer exist."""

    namespace: str
    """Namespace of the job."""
    name: str
    """Name of the job."""
    uid: str
    """UID of the job."""

    def __str__(self) -> str:
        return f"plan of {self.namespace}/{self.name} ({self.uid})"


type Key = JobKey | ProfileKey | PlanKey
"""Key of an object that the operator reconciles."""
