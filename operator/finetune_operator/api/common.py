"""Base class and scalar types, with their bounds, of all API models.

Every string, list and map has a bound, because the API server estimates the cost of CEL rules from them.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from finetune_operator.api.numbers import SAFE_INTEGER_MAX
from finetune_operator.api.rules import ValidationRule

GROUP: Final = "tpu-finetune.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "tpu-finetune.dev/v1alpha1"

INT32_MAX = 2**31 - 1


#: Context of a validation that checks types, patterns and bounds, but no rules.
WITHOUT_RULES: Final = {"rules": False}


@cache
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.default for name, field in model.model_fields.items() if not field.is_required()}


def _require(rules: tuple[ValidationRule, ...], value: Any) -> None:
    """Raises an error of the type ``rule``, which pydantic collects, unless each rule holds."""
    for rule in rules:
        if rule.holds is not None and not rule.holds(value):
            raise PydanticCustomError("rule", "{message}", {"message": rule.message})


class ApiModel(BaseModel):
    """Base of every object of the API: closed, immutable, camelCase in documents.

    The docstring below a field is its description in the CRD, and the docstring below an enum's member describes that
    value. A field that the user left out is None, never a default, so that a profile's default can win over the
    built-in one.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )
    rules: ClassVar[tuple[ValidationRule, ...]] = ()

    @model_validator(mode="after")
    def _obeys_its_rules(self, info: ValidationInfo) -> Self:
        if info.context is not WITHOUT_RULES:
            _require(self.rules, self)
        return self

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:  # type: ignore[override]
        """Returns a model without validating ``values``, which are by field name.

        Pydantic's own method resolves aliases and defaults of all fields in each call, which takes far longer;
        a status has a hundred models.
        """
        model = cls.__new__(cls)
        object.__setattr__(model, "__dict__", _defaults(cls) | values)
        object.__setattr__(
            model, "__pydantic_fields_set__", set(values) if _fields_set is None else _fields_set
        )
        object.__setattr__(model, "__pydantic_extra__", None)
        object.__setattr__(model, "__pydantic_private__", None)
        return model

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns a copy with the fields of ``update``, which are not validated.

        Raises TypeError for a name that is not a field, which pydantic would accept and then drop.
        """
        if unknown := (update or {}).keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return super().model_copy(update=update, deep=deep)

    def to_document(self) -> dict[str, Any]:
        """Returns plain JSON types under the names that users write; fields that are not set are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


# --- numbers

Flag = StrictBool
NonNegative = Annotated[int, Strict(), Field(ge=0, le=INT32_MAX)]
Positive = Annotated[int, Strict(), Field(ge=1, le=INT32_MAX)]
Whole = Annotated[int, Strict(), Field(ge=-1, le=SAFE_INTEGER_MAX)]
"""A 64-bit number of a status: sizes, tokens, generations."""


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """A validator of rules on a scalar or a list."""

    rules: tuple[ValidationRule, ...]

    def __call__(self, value: Any, info: ValidationInfo) -> Any:
        if info.context is not WITHOUT_RULES:
            _require(self.rules, value)
        return value


def checked(*rules: ValidationRule) -> AfterValidator:
    """Returns the annotation of a scalar or a list that follows the rules."""
    return AfterValidator(RuleCheck(rules))


Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A decimal of a spec; :mod:`.numbers` describes how it stays exact."""
PositiveNumber = Annotated[Number, Field(gt=0)]
NonNegativeNumber = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
ProperFraction = Annotated[Number, Field(gt=0, lt=1)]
Decimal = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$", max_length=24)]
"""A decimal of a status as a string, which shows it as it was rounded."""

# --- strings

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)]
"""The name of a Kubernetes object."""
KeyName = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
"""A key of a Secret or ConfigMap."""
Token = Annotated[str, Field(min_length=1, max_length=63)]
ShortText = Annotated[str, Field(min_length=1, max_length=256)]
Message = Annotated[str, Field(max_length=1024)]
LongText = Annotated[str, Field(max_length=4096)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Digest = Annotated[str, Field(max_length=128)]
Address = Annotated[str, Field(max_length=1024)]
"""An address of any kind: the name of a repository or a URI."""
Uri = Annotated[str, Field(pattern=r"^(gs://[a-z0-9]|file:///).+", max_length=1024)]
"""A place in object storage as a status reports it: ``gs://bucket/path``, or ``file:///path`` on a local cluster."""
HubRepo = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?$", min_length=1, max_length=160
    ),
]
Revision = Annotated[str, Field(pattern=r"^[-._/A-Za-z0-9]+$", min_length=1, max_length=128)]
ImageRef = Annotated[str, Field(pattern=r"^[^\s]+$", min_length=1, max_length=512)]
Quantity = Annotated[
    str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$", max_length=32)
]
TpuName = Annotated[str, Field(pattern=r"^[a-z0-9]+-[0-9]+(x[0-9]+(x[0-9]+)?)?$", max_length=24)]
"""``v6e-16``, family and size as Google names them; or family and topology, ``v6e-4x4``, ``v5p-2x2x4``."""
Topology = Annotated[str, Field(pattern=r"^[0-9]+x[0-9]+(x[0-9]+)?$", max_length=16)]
ReasonText = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$", min_length=1, max_length=63)]
"""A reason in CamelCase, for programs."""
EngineKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", min_length=1, max_length=128)]
Timestamp = AwareDatetime

# --- lists


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """A validator of a list whose items have distinct values of an attribute."""

    key: str

    def __call__(self, items: Sequence[BaseModel]) -> Sequence[BaseModel]:
        if message := self.repetition(items):
            raise ValueError(message)
        return items

    def repetition(self, items: Sequence[BaseModel]) -> str | None:
        """Returns the message for the first value that occurs twice; None if all are distinct."""
        seen: set[Hashable] = set()
        for item in items:
            if (value := getattr(item, self.key)) in seen:
                return f"{self.key} {str(value)!r} occurs twice: give each entry its own {self.key}"
            seen.add(value)
        return None


def list_map(key: str) -> AfterValidator:
    """Returns the annotation of a list whose items have distinct values of ``key``; server-side apply merges it by
    item."""
    return AfterValidator(DistinctKeys(key))


def distinct() -> AfterValidator:
    """Returns the annotation of an ordered list of scalars without repetition."""
    return checked(
        ValidationRule(
            cel="self.all(x, self.exists_one(y, x == y))",
            message="an entry occurs twice: remove the repetition",
            holds=lambda items: len(set(items)) == len(items),
        )
    )


# --- references


class SecretKeyRef(ApiModel):
    """A key of a Secret in the job's namespace. The operator passes the reference to pods and never reads the
    Secret."""

    name: DnsName
    """Name of the Secret in the job's namespace."""
    key: KeyName | None = None
    """Key within the Secret's data. Default: token."""


class ConfigMapKeyRef(ApiModel):
    """A key of a ConfigMap in the job's namespace."""

    name: DnsName
    """Name of the ConfigMap in the job's namespace."""
    key: KeyName
    """Key within the ConfigMap's data."""


class HubModelRef(ApiModel):
    """A model repository on the Hugging Face Hub."""

    repo: HubRepo
    """Name of the repository, for example google/gemma-2-2b-it."""
    revision: Revision | None = None
    """Branch, tag or commit; resolved once to a commit, which status.resolved reports. Default: main."""
