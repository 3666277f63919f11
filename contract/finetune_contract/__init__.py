"""The data that the operator and the trainer exchange.

The operator passes one :class:`StageRequest` to a stage in its environment. The trainer answers with files in
the run folder (:mod:`.layout`): a :class:`StageResult` per attempt, while it runs a :class:`StageProgress` record and
during training a :class:`Progress` record, and with an exit code (:class:`ExitCode`). Neither side imports the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finetune_contract.data_report import Bucket as Bucket
    from finetune_contract.data_report import DataReport as DataReport
    from finetune_contract.data_report import DatasetDetails as DatasetDetails
    from finetune_contract.data_report import Leak as Leak
    from finetune_contract.data_report import Remark as Remark
    from finetune_contract.data_report import RowsFound as RowsFound
    from finetune_contract.data_report import SampleRow as SampleRow
    from finetune_contract.data_report import UnreadValue as UnreadValue
    from finetune_contract.exit_codes import ExitCode as ExitCode
    from finetune_contract.failure import Failure as Failure
    from finetune_contract.failure import FailureClass as FailureClass
    from finetune_contract.layout import CacheLayout as CacheLayout
    from finetune_contract.layout import RunFolder as RunFolder
    from finetune_contract.method import METHODS as METHODS
    from finetune_contract.method import PREFERENCE_TYPES as PREFERENCE_TYPES
    from finetune_contract.method import DpoMethod as DpoMethod
    from finetune_contract.method import LoraSpec as LoraSpec
    from finetune_contract.method import MethodSpec as MethodSpec
    from finetune_contract.method import OrpoMethod as OrpoMethod
    from finetune_contract.method import PreferenceMethod as PreferenceMethod
    from finetune_contract.method import SftMethod as SftMethod
    from finetune_contract.progress import DiscardedCheckpoint as DiscardedCheckpoint
    from finetune_contract.progress import EvaluationPoint as EvaluationPoint
    from finetune_contract.progress import HostProgress as HostProgress
    from finetune_contract.progress import Progress as Progress
    from finetune_contract.progress import StageProgress as StageProgress
    from finetune_contract.progress import StepMetrics as StepMetrics
    from finetune_contract.request import OWN_TEMPLATE as OWN_TEMPLATE
    from finetune_contract.request import BenchmarkSpec as BenchmarkSpec
    from finetune_contract.request import CheckpointPolicy as CheckpointPolicy
    from finetune_contract.request import ContractUnsupported as ContractUnsupported
    from finetune_contract.request import DatasetSpec as DatasetSpec
    from finetune_contract.request import DataSpec as DataSpec
    from finetune_contract.request import DestinationSpec as DestinationSpec
    from finetune_contract.request import EvaluationDatasetSpec as EvaluationDatasetSpec
    from finetune_contract.request import EvaluationSpec as EvaluationSpec
    from finetune_contract.request import ExportSpec as ExportSpec
    from finetune_contract.request import GateSpec as GateSpec
    from finetune_contract.request import HubDestinationSpec as HubDestinationSpec
    from finetune_contract.request import HubRef as HubRef
    from finetune_contract.request import HyperparametersSpec as HyperparametersSpec
    from finetune_contract.request import JobIdentity as JobIdentity
    from finetune_contract.request import MemoryCheckSpec as MemoryCheckSpec
    from finetune_contract.request import MeshSpec as MeshSpec
    from finetune_contract.request import ModelSource as ModelSource
    from finetune_contract.request import ProfilingSpec as ProfilingSpec
    from finetune_contract.request import SliceCandidate as SliceCandidate
    from finetune_contract.request import SliceShape as SliceShape
    from finetune_contract.request import SmokeSpec as SmokeSpec
    from finetune_contract.request import SplitSpec as SplitSpec
    from finetune_contract.request import StageRequest as StageRequest
    from finetune_contract.result import Artifact as Artifact
    from finetune_contract.result import BenchmarkReport as BenchmarkReport
    from finetune_contract.result import CheckpointRecord as CheckpointRecord
    from finetune_contract.result import ConversionCacheUse as ConversionCacheUse
    from finetune_contract.result import ConvertManifest as ConvertManifest
    from finetune_contract.result import ConvertOutcome as ConvertOutcome
    from finetune_contract.result import DataCacheUse as DataCacheUse
    from finetune_contract.result import DataManifest as DataManifest
    from finetune_contract.result import DatasetReport as DatasetReport
    from finetune_contract.result import DatasetScores as DatasetScores
    from finetune_contract.result import Details as Details
    from finetune_contract.result import EvaluateOutcome as EvaluateOutcome
    from finetune_contract.result import EvaluationResult as EvaluationResult
    from finetune_contract.result import ExportOutcome as ExportOutcome
    from finetune_contract.result import GateOutcome as GateOutcome
    from finetune_contract.result import MemoryOutcome as MemoryOutcome
    from finetune_contract.result import ModelIdentity as ModelIdentity
    from finetune_contract.result import ModelSizes as ModelSizes
    from finetune_contract.result import Outcome as Outcome
    from finetune_contract.result import PreflightOutcome as PreflightOutcome
    from finetune_contract.result import Sample as Sample
    from finetune_contract.result import SmokeOutcome as SmokeOutcome
    from finetune_contract.result import StageResult as StageResult
    from finetune_contract.result import TrainOutcome as TrainOutcome
    from finetune_contract.rows import EvaluatedRow as EvaluatedRow
    from finetune_contract.rows import RowMeasures as RowMeasures
    from finetune_contract.stages import Stage as Stage
    from finetune_contract.versions import CONTRACT_VERSION as CONTRACT_VERSION
    from finetune_contract.versions import ContractVersion as ContractVersion

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
        # Other names are those of submodules, which the interpreter imports itself.
        if name[0].isupper():
            for each in _MODULES:
                module = import_module(f"{__name__}.{each}")
                if name in vars(module):
                    globals()[name] = vars(module)[name]
                    return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
