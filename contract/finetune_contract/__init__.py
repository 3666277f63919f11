"""The data that the operator and the trainer exchange.

The operator passes one :class:`StageRequest` to a stage in its environment. The trainer answers with files in
the run folder (:mod:`.layout`): a :class:`StageResult` per attempt, while it runs a :class:`StageProgress` record and
during training a :class:`Progress` record, and with an exit code (:class:`ExitCode`). Neither side imports the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finetune_contract.data_report import (
        Bucket,
        DataReport,
        DatasetDetails,
        Leak,
        Remark,
        RowsFound,
        SampleRow,
        UnreadValue,
    )
    from finetune_contract.exit_codes import ExitCode
    from finetune_contract.failure import Failure, FailureClass
    from finetune_contract.layout import CacheLayout, RunFolder
    from finetune_contract.method import (
        METHODS,
        PREFERENCE_TYPES,
        DpoMethod,
        LoraSpec,
        MethodSpec,
        OrpoMethod,
        PreferenceMethod,
        SftMethod,
    )
    from finetune_contract.progress import (
        DiscardedCheckpoint,
        EvaluationPoint,
        HostProgress,
        Progress,
        StageProgress,
        StepMetrics,
    )
    from finetune_contract.request import (
        OWN_TEMPLATE,
        BenchmarkSpec,
        CheckpointPolicy,
        ContractUnsupported,
        DatasetSpec,
        DataSpec,
        DestinationSpec,
        EvaluationDatasetSpec,
        EvaluationSpec,
        ExportSpec,
        GateSpec,
        HubDestinationSpec,
        HubRef,
        HyperparametersSpec,
        JobIdentity,
        MemoryCheckSpec,
        MeshSpec,
        ModelSource,
        ProfilingSpec,
        SliceCandidate,
        SliceShape,
        SmokeSpec,
        SplitSpec,
        StageRequest,
    )
    from finetune_contract.result import (
        Artifact,
        BenchmarkReport,
        CheckpointRecord,
        ConversionCacheUse,
        ConvertManifest,
        ConvertOutcome,
        DataCacheUse,
        DataManifest,
        DatasetReport,
        DatasetScores,
        Details,
        EvaluateOutcome,
        EvaluationResult,
        ExportOutcome,
        GateOutcome,
        MemoryOutcome,
        ModelIdentity,
        ModelSizes,
        Outcome,
        PreflightOutcome,
        Sample,
        SmokeOutcome,
        StageResult,
        TrainOutcome,
    )
    from finetune_contract.rows import EvaluatedRow, RowMeasures
    from finetune_contract.stages import Stage
    from finetune_contract.versions import (
        CONTRACT_VERSION,
        ContractVersion,
        Since,
        major_of,
        required_version,
    )

__all__ = [
    "CONTRACT_VERSION",
    "METHODS",
    "OWN_TEMPLATE",
    "PREFERENCE_TYPES",
    "Artifact",
    "BenchmarkReport",
    "BenchmarkSpec",
    "Bucket",
    "CacheLayout",
    "CheckpointPolicy",
    "CheckpointRecord",
    "ContractUnsupported",
    "ContractVersion",
    "ConversionCacheUse",
    "ConvertManifest",
    "ConvertOutcome",
    "DataCacheUse",
    "DataManifest",
    "DataReport",
    "DataSpec",
    "DatasetDetails",
    "DatasetReport",
    "DatasetScores",
    "DatasetSpec",
    "DestinationSpec",
    "Details",
    "DiscardedCheckpoint",
    "DpoMethod",
    "EvaluateOutcome",
    "EvaluatedRow",
    "EvaluationDatasetSpec",
    "EvaluationPoint",
    "EvaluationResult",
    "EvaluationSpec",
    "ExitCode",
    "ExportOutcome",
    "ExportSpec",
    "Failure",
    "FailureClass",
    "GateOutcome",
    "GateSpec",
    "HostProgress",
    "HubDestinationSpec",
    "HubRef",
    "HyperparametersSpec",
    "JobIdentity",
    "Leak",
    "LoraSpec",
    "MemoryCheckSpec",
    "MemoryOutcome",
    "MeshSpec",
    "MethodSpec",
    "ModelIdentity",
    "ModelSizes",
    "ModelSource",
    "OrpoMethod",
    "Outcome",
    "PreferenceMethod",
    "PreflightOutcome",
    "ProfilingSpec",
    "Progress",
    "Remark",
    "RowMeasures",
    "RowsFound",
    "RunFolder",
    "Sample",
    "SampleRow",
    "SftMethod",
    "Since",
    "SliceCandidate",
    "SliceShape",
    "SmokeOutcome",
    "SmokeSpec",
    "SplitSpec",
    "Stage",
    "StageProgress",
    "StageRequest",
    "StageResult",
    "StepMetrics",
    "TrainOutcome",
    "UnreadValue",
    "major_of",
    "required_version",
]

#: Modules with these names, searched in this order: a command that needs a stage's name imports no model.
_MODULES = (
    "stages",
    "exit_codes",
    "layout",
    "versions",
    "failure",
    "method",
    "progress",
    "rows",
    "request",
    "result",
    "data_report",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports the module of a name when the name is first used."""
        if name in __all__:
            for each in _MODULES:
                module = import_module(f"{__name__}.{each}")
                if name in vars(module):
                    globals()[name] = vars(module)[name]
                    return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
