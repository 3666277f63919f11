"""What to train on: ``spec.datasets``."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import (
    ApiModel,
    ConfigMapKeyRef,
    DnsLabel,
    Flag,
    HubRepo,
    NonNegative,
    Positive,
    PositiveNumber,
    ProperFraction,
    Revision,
    ShortText,
    Token,
)
from finetune_operator.api.rules import ValidationRule, at_most_one, exactly_one
from finetune_operator.api.uris import DatasetUri


class DatasetFormat(StrEnum):
    """How the rows of a dataset are shaped."""

    AUTO = "Auto"
    MESSAGES = "Messages"
    PROMPT_COMPLETION = "PromptCompletion"
    QUESTION_ANSWER = "QuestionAnswer"
    TEXT = "Text"
    PREFERENCE = "Preference"


class MessageRole(StrEnum):
    """The roles that a conversation knows."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


Column = ShortText | None
TemplateValue = Annotated[str, Field(max_length=256)]


class Columns(ApiModel):
    """Our name of a column on the left, the dataset's own on the right. A column that is not named keeps its name."""

    messages: Column = None
    """The list of role and content, for Messages."""
    prompt: Column = None
    """What is given, for PromptCompletion and Preference. Text is a user's message where the tokenizer has a chat
    template, and stands right before the completion where it has none; a list of messages is taken as it is."""
    completion: Column = None
    """What is to be learnt, for PromptCompletion."""
    question: Column = None
    """The question, for QuestionAnswer."""
    answer: Column = None
    """The answer, for QuestionAnswer."""
    text: Column = None
    """The whole text, for Text."""
    chosen: Column = None
    """The better answer, for Preference."""
    rejected: Column = None
    """The worse answer, for Preference."""


class HubDatasetRef(ApiModel):
    """A dataset repository on the Hugging Face Hub."""

    repo: HubRepo
    """Repository, for example HuggingFaceH4/ultrachat_200k."""
    revision: Revision | None = None
    """Branch, tag or commit; resolved once to a commit, see status.resolved.datasets. Default: main."""
    config: ShortText | None = None
    """Configuration (subset) of the dataset. Default: its only one, or default."""
    split: ShortText | None = None
    """Split. Default: train."""


class DatasetSource(ApiModel):
    """Rows from one place; exactly one of huggingFace and uri."""

    rules: ClassVar = (exactly_one("huggingFace", "uri"),)

    hugging_face: HubDatasetRef | None = None
    """A repository on the Hugging Face Hub."""
    uri: DatasetUri | None = None
    """A file or a glob: .jsonl, .jsonl.gz, .json, .parquet, .arrayrecord or .txt (every line a text)."""
    format: DatasetFormat | None = None
    """How the rows are shaped. Default: Auto, seen from the columns of the first row."""
    columns: Columns | None = None
    """Where the dataset's columns have other names than ours."""
    role_map: Annotated[Mapping[Token, MessageRole], Field(max_length=16)] | None = None
    """The dataset's role on the left, ours on the right, for example bot: assistant."""
    max_examples: Positive | None = None
    """Take only the first rows. Default: all."""


class TrainDataset(DatasetSource):
    """One source of training rows."""

    name: DnsLabel | None = None
    """Name in reports and metrics. Default: train-0, train-1, …"""
    weight: PositiveNumber | None = None
    """Share of this source in the sequences of the mixture, relative to the others: all training sources have a weight,
    or none. An epoch still has as many sequences as there are; a source gives its share of them, going through its own
    again and again, or on in the next epoch. Default: every row once."""


class ValidationDataset(DatasetSource):
    """One source of validation rows."""

    name: DnsLabel | None = None
    """Name in reports and metrics. Default: validation-0, validation-1, …"""


class SplitFromTrain(ApiModel):
    """Rows held back from training for validation."""

    fraction: ProperFraction
    """Share of the training rows, above 0 and below 1, for example 0.02."""
    seed: NonNegative | None = None
    """Seed of the choice. Default: hyperparameters.seed."""


class ChatTemplate(ApiModel):
    """A Jinja chat template, at most one of inline and configMapRef, and its arguments."""

    rules: ClassVar = (at_most_one("inline", "configMapRef"),)

    inline: Annotated[str, Field(min_length=1, max_length=32 * 1024)] | None = None
    """The template itself."""
    config_map_ref: ConfigMapKeyRef | None = None
    """A key of a ConfigMap that holds the template. It is read once, when the job is admitted."""
    arguments: Annotated[Mapping[Token, TemplateValue], Field(max_length=16)] | None = None
    """Variables that the template reads beside messages and tools, for example enable_thinking: "false". Values are
    JSON where they are true, false or a number, else text. Rows, evaluation prompts and benchmarks are rendered with
    them; a name that the template does not read is refused by preflight."""


class Datasets(ApiModel):
    """What to train and validate on, and how rows become sequences."""

    rules: ClassVar = (
        ValidationRule(
            cel="!(has(self.validation) && has(self.splitFromTrain))",
            message="splitFromTrain is for jobs without validation: remove one of the two",
            holds=lambda self: self.validation is None or self.split_from_train is None,
        ),
        ValidationRule(
            cel="self.train.all(source, has(source.weight)) || !self.train.exists(source, has(source.weight))",
            message="give every training source a weight, or none",
            holds=lambda self: len({source.weight is None for source in self.train}) == 1,
        ),
    )

    train: Annotated[tuple[TrainDataset, ...], Field(min_length=1, max_length=32)]
    """Sources of training rows."""
    validation: Annotated[tuple[ValidationDataset, ...], Field(min_length=1, max_length=8)] | None = None
    """Sources of validation rows. Default: none."""
    split_from_train: SplitFromTrain | None = None
    """Hold rows back from training for validation, where validation is absent: the same share of every source, chosen
    by seed and content, so that equal rows stay on one side."""
    shuffle: Flag | None = None
    """Shuffle the rows anew in every epoch, by hyperparameters.seed. Default: true."""
    max_seq_length: Positive | None = None
    """Longest sequence in tokens; longer texts become several sequences, other longer rows are cut, and the report
    counts both. Rows of a batch may be wider, as the TPU's attention kernel wants them; packing uses the room.
    Preflight refuses a value above the model's own limit: max_position_embeddings of its config.json, which counts
    rope scalings in, or a Mistral's sliding window. Default: 1024, or the model's limit where that is lower;
    status.resolved has the value."""
    packing: Flag | None = None
    """Put several short rows into one sequence, masked from each other. Default: true for SFT; pairs of answers are
    never packed."""
    chat_template: ChatTemplate | None = None
    """How a conversation becomes text, in training, in evaluation and in the exported tokenizer. Default: the
    tokenizer's own."""
