"""What the operator and the trainer say to each other.

The operator puts one :class:`StageRequest` into a stage's environment; the trainer answers with files in
the run folder (:mod:`.layout`), a :class:`StageResult` per attempt and a :class:`Progress` record while it
trains, and with an exit code (:class:`ExitCode`). All of it is data; neither side imports the other.
"""

from finetune_contract.exit_codes import ExitCode
from finetune_contract.failure import Failure, FailureClass
from finetune_contract.layout import CacheLayout, RunFolder
from finetune_contract.progress import (
    DiscardedCheckpoint,
    EvaluationPoint,
    HostProgress,
    Metrics,
    Progress,
)
from finetune_contract.request import (
    CheckpointPolicy,
    DatasetSource,
    DataSpec,
    EvaluationDataset,
    EvaluationSpec,
    ExportSpec,
    Gate,
    HubRef,
    Hyperparameters,
    JobIdentity,
    LoraSpec,
    MeshSpec,
    MethodSpec,
    ModelSource,
    Stage,
    StageRequest,
)
from finetune_contract.result import (
    Artifact,
    CheckpointRecord,
    ConvertManifest,
    ConvertOutcome,
    DatasetReport,
    DatasetScores,
    EvaluateOutcome,
    EvaluationResult,
    ExportOutcome,
    GateResult,
    ModelIdentity,
    Outcome,
    PreflightOutcome,
    Sample,
    StageResult,
    TrainOutcome,
)

__all__ = [
    "Artifact",
    "CacheLayout",
    "CheckpointPolicy",
    "CheckpointRecord",
    "ConvertManifest",
    "ConvertOutcome",
    "DataSpec",
    "DatasetReport",
    "DatasetScores",
    "DatasetSource",
    "DiscardedCheckpoint",
    "EvaluateOutcome",
    "EvaluationDataset",
    "EvaluationPoint",
    "EvaluationResult",
    "EvaluationSpec",
    "ExitCode",
    "ExportOutcome",
    "ExportSpec",
    "Failure",
    "FailureClass",
    "Gate",
    "GateResult",
    "HostProgress",
    "HubRef",
    "Hyperparameters",
    "JobIdentity",
    "LoraSpec",
    "MeshSpec",
    "MethodSpec",
    "Metrics",
    "ModelIdentity",
    "ModelSource",
    "Outcome",
    "PreflightOutcome",
    "Progress",
    "RunFolder",
    "Sample",
    "Stage",
    "StageRequest",
    "StageResult",
    "TrainOutcome",
]
