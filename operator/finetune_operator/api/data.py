"""Training and validation data: ``spec.datasets``."""

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
    """Layout of the rows of a dataset."""

    AUTO = "Auto"
    """The first shape whose columns all exist in row 1 and are not empty: these formats, and shapes of published
    datasets such as ShareGPT and Alpaca."""
    MESSAGES = "Messages"
    """A list of role and content."""
    PROMPT_COMPLETION = "PromptCompletion"
    """A prompt and the completion to learn."""
    QUESTION_ANSWER = "QuestionAnswer"
    """A question and the answer to learn."""
    TEXT = "Text"
    """A text without chat template, learned whole."""
    PREFERENCE = "Preference"
    """A chosen and a rejected answer to a prompt."""


class MessageRole(StrEnum):
    """Role of a message in a conversation."""

    SYSTEM = "system"
    """Instructions for the conversation."""
    USER = "user"
    """Input of the user."""
    ASSISTANT = "assistant"
    """Answer of the model."""
    TOOL = "tool"
    """Result of a tool call."""


Column = ShortText | None
TemplateValue = Annotated[str, Field(max_length=256)]


class Columns(ApiModel):
    """Maps each column name of the API to the dataset's own name. A column that is not listed keeps the API's name."""

    messages: Column = None
    """List of messages with role and content, for Messages. Default: messages or conversations."""
    prompt: Column = None
    """Input of the model, for PromptCompletion and Preference. A text becomes a user's message where the tokenizer
    has a chat template, otherwise directly precedes the completion; a list of messages is used as it is. Default:
    prompt."""
    completion: Column = None
    """Completion to learn, for PromptCompletion. Default: completion."""
    question: Column = None
    """Question, for format QuestionAnswer. Default: question."""
    answer: Column = None
    """Answer to learn, for QuestionAnswer. Default: answer."""
    text: Column = None
    """Whole text of the row, for Text. Default: text."""
    chosen: Column = None
    """Preferred answer of the pair, for Preference. Default: chosen."""
    rejected: Column = None
    """Other answer of the pair, for Preference. Default: rejected."""
    system: Column = None
    """Text of a system message before the conversation or prompt. Default: system or system_prompt."""
    input: Column = None
    """Text that follows the prompt or question after a blank line. Default: input or context."""
    history: Column = None
    """Earlier turns before the prompt or question, as pairs of texts or as messages. Default: history."""
    tools: Column = None
    """JSON schemas of the functions that the assistant may call, as a list or as JSON text. Default: tools or
    functions."""
    reasoning: Column = None
    """Text of the reasoning before the answer, for chat templates that render it. Default: reasoning_content."""
    label: Column = None
    """Judgment of the answer: rows with true or 1 are trained, rows with false or 0 are dropped and counted. Default:
    none; a column named label is refused until it is mapped or ignored."""
    ignore: Annotated[tuple[ShortText, ...], Field(min_length=1, max_length=32)] | None = None
    """Columns that are left out on purpose although they usually have a meaning, for example images. Keys of messages
    and types of content parts have messages[]. in front. Default: none."""


class Dedupe(StrEnum):
    """Which rows of the training sources are used once."""

    OFF = "Off"
    """Every row is used, however often it occurs."""
    EXACT = "Exact"
    """Of rows with the same tokens and the same trained part the first one is used, across all training sources."""


class HubDatasetRef(ApiModel):
    """A dataset repository on the Hugging Face Hub."""

    repo: HubRepo
    """Name of the repository, for example HuggingFaceH4/ultrachat_200k."""
    revision: Revision | None = None
    """Branch, tag or commit; resolved once to a commit, which status.resolved reports. Default: main."""
    config: ShortText | None = None
    """Configuration (subset) of the dataset. Default: its only one, or default."""
    split: ShortText | None = None
    """Split of the dataset to read. Default: train."""


class DatasetSource(ApiModel):
    """Rows from one source; exactly one of huggingFace and uri."""

    rules: ClassVar = (exactly_one("huggingFace", "uri"),)

    hugging_face: HubDatasetRef | None = None
    """A dataset repository on the Hugging Face Hub."""
    uri: DatasetUri | None = None
    """A file or a glob of files: .jsonl, .ndjson, .json, .csv, .tsv or .txt, each also compressed (.gz, .zst, .zstd),
    .parquet or .arrayrecord. Suffixes may have any case."""
    format: DatasetFormat | None = None
    """Layout of the rows. Default: Auto."""
    columns: Columns | None = None
    """Names of the dataset's columns. Default: the names that the format expects."""
    separator: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Text between two rows of a .txt file, or the character between two fields of a .csv or .tsv file. Default: line
    breaks, commas and tabs."""
    role_map: Annotated[Mapping[Token, MessageRole], Field(max_length=16)] | None = None
    """Maps the dataset's roles to the API's, for example bot: assistant. Default: roles keep their names."""
    max_examples: Positive | None = None
    """Number of rows to read, from the first. Default: all."""


class TrainDataset(DatasetSource):
    """A source of training rows."""

    name: DnsLabel | None = None
    """Name of the source in reports and metrics. Default: train-0, train-1, …"""
    weight: PositiveNumber | None = None
    """Share of this source in the sequences of the mixture, relative to the other weights: all training sources have a
    weight, or none. The length of an epoch does not change; a source contributes its share of it, repeating its
    sequences or continuing with them in the next epoch. Default: every row once."""


class ValidationDataset(DatasetSource):
    """A source of validation rows."""

    name: DnsLabel | None = None
    """Name of the source in reports and metrics. Default: validation-0, validation-1, …"""


class SplitFromTrain(ApiModel):
    """Rows held back from training for validation."""

    fraction: ProperFraction
    """Share of the training rows to hold back, above 0 and below 1, for example 0.02; of each source at most
    evaluation.maxExamples rows."""
    seed: NonNegative | None = None
    """Seed of the selection of rows. Default: hyperparameters.seed."""


class ChatTemplate(ApiModel):
    """A chat template, from at most one of inline and configMapRef, and its arguments."""

    rules: ClassVar = (at_most_one("inline", "configMapRef"),)

    inline: Annotated[str, Field(min_length=1, max_length=32 * 1024)] | None = None
    """Text of the template, at most 32 KiB: Jinja, in which the line {% include 'tokenizer' %} stands for the
    tokenizer's own template, or one of MaxText's templates in JSON, which becomes Jinja."""
    config_map_ref: ConfigMapKeyRef | None = None
    """Key of a ConfigMap that holds the template, at most 32 KiB, as inline. Read once, when the job is admitted."""
    arguments: Annotated[Mapping[Token, TemplateValue], Field(max_length=16)] | None = None
    """Variables that the template reads beside messages and tools, for example enable_thinking: "false". The values
    true, false and numbers are parsed as JSON, others are text. They apply to rows, evaluation prompts and benchmarks;
    preflight refuses a name that the template does not read. Default: none."""


class Datasets(ApiModel):
    """Training and validation data, and how rows become sequences."""

    rules: ClassVar = (
        ValidationRule(
            cel="!(has(self.validation) && has(self.splitFromTrain))",
            message="splitFromTrain is for jobs without validation: remove one of the two",
            holds=lambda self: self.validation is None or self.split_from_train is None,
        ),
        ValidationRule(
            cel="self.train.all(source, has(source.weight)) || !self.train.exists(source, has(source.weight))",
            message="give every training source a weight, or none",
            holds=lambda self: len({source.weight is None for source in self.train}) <= 1,
        ),
    )

    train: Annotated[tuple[TrainDataset, ...], Field(min_length=1, max_length=32)]
    """Sources of training rows, at least one."""
    validation: Annotated[tuple[ValidationDataset, ...], Field(min_length=1, max_length=8)] | None = None
    """Sources of validation rows. Default: none, so no loss on validation rows unless splitFromTrain is set."""
    split_from_train: SplitFromTrain | None = None
    """Holds training rows back for validation where validation is absent: the same share of every source, selected by
    seed and content, so that equal rows stay on one side. Default: none."""
    dedupe: Dedupe | None = None
    """Which rows of the training sources are used once. Applies before splitFromTrain; the report counts the rows that
    are left out. Default: Off."""
    shuffle: Flag | None = None
    """Shuffles the rows anew in every epoch, by hyperparameters.seed. Default: true."""
    max_seq_length: Positive | None = None
    """Longest sequence in tokens. Longer texts become several sequences, other longer rows are truncated, and the
    report counts both. Rows of a batch may be padded further for the TPU's attention kernel; packing uses that room.
    Preflight refuses a value above the model's limit: max_position_embeddings of its config.json, rope scaling
    included, or a Mistral's sliding window. Default: 1024, or the model's limit where that is lower; status.resolved
    reports the value."""
    packing: Flag | None = None
    """Packs several short rows into one sequence, masked from each other. Default: true for SFT; preference pairs are
    never packed."""
    chat_template: ChatTemplate | None = None
    """Template that turns conversations into text in training, evaluation and the exported tokenizer. Default: the
    tokenizer's own."""
