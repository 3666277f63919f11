"""Rotary embeddings in config.json, in both formats.

transformers 4 writes ``rope_theta`` and ``rope_scaling``; transformers 5 writes ``rope_parameters``, with one object
per kind of attention for models that have two kinds. Precedence follows transformers 5's
``convert_rope_params_to_dict``.
"""

from dataclasses import dataclass

from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Llama3Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """transformers' rope type ``yarn``, without a separate scale of the rotary embedding."""

    factor: int
    original_context: int
    beta_fast: int
    beta_slow: int
    mscale: float
    """Scales attention by ``(0.1 mscale ln factor + 1) ** 2`` (DeepSeek's ``mscale_all_dim``)."""
    truncate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of one kind of attention."""

    theta: int
    linear: float = 1.0
    llama3: Llama3Scaling | None = None
    yarn: Yarn | None = None


def single(
    config: Fields, *, default_theta: float, kinds: tuple[str, ...] = ("default", "linear", "llama3")
) -> Rope:
    """Returns the rotary embedding that all layers of a model share. Rejects rope types other than ``kinds``."""
    table = config.table("rope_scaling") or config.table("rope_parameters")
    for kind in ("full_attention", "sliding_attention"):
        if table is not None and table.has(kind):
            table.refuse(
                kind, "one set of parameters for all layers", "Flatten rope_parameters in config.json."
            )
    return _read(config, table, theta_key="rope_theta", default_theta=default_theta, kinds=kinds)


def by_attention(config: Fields, *, default_global: float, default_local: float) -> tuple[Rope, Rope]:
    """Returns the rotary embeddings of global and of sliding-window attention, in this order (Gemma 3)."""
    parameters = config.table("rope_parameters")
    full = parameters.table("full_attention") if parameters else None
    sliding = parameters.table("sliding_attention") if parameters else None
    if parameters is not None and full is None and sliding is None:
        config.refuse(
            "rope_parameters",
            "an object with full_attention and sliding_attention",
            "Write one set of parameters for each kind of attention.",
        )
    globally = config.table("rope_scaling") or full
    kinds = ("default", "linear")
    return (
        _read(
            config,
            globally,
            theta_key="rope_theta",
            default_theta=default_global,
            kinds=kinds,
            table_theta=full,
        ),
        _read(
            config, sliding, theta_key="rope_local_base_freq", default_theta=default_local, kinds=("default",)
        ),
    )


def _read(
    config: Fields,
    table: Fields | None,
    *,
    theta_key: str,
    default_theta: float,
    kinds: tuple[str, ...],
    table_theta: Fields | None = None,
) -> Rope:
    source = next((t for t in (table, table_theta) if t is not None and t.has("rope_theta")), None)
    theta_fields, key = (source, "rope_theta") if source is not None else (config, theta_key)
    theta = theta_fields.number(key, default_theta)
    if theta != int(theta):
        theta_fields.refuse(key, "a whole number", "MaxText's rope_max_timescale accepts integers only.")
    for fields in (config, table):
        if fields is not None and fields.number("partial_rotary_factor", 1.0) != 1.0:
            fields.refuse("partial_rotary_factor", "1.0 or absent", "Use a model that rotates whole heads.")
    if table is None:
        return Rope(theta=int(theta))
    kind_key = "rope_type" if table.has("rope_type") else "type"
    kind = table.text(kind_key, "default")
    if kind not in kinds:
        table.refuse(
            kind_key,
            " or ".join(kinds),
            "A model that was only extended by such a scaling can be tuned within its original context: remove the "
            "scaling from config.json.",
        )
    context = config.integer("max_position_embeddings", 2048)
    match kind:
        case "linear":
            return Rope(theta=int(theta), linear=table.number("factor"))
        case "llama3":
            return Rope(theta=int(theta), llama3=_llama3(table, context))
        case "yarn":
            return Rope(theta=int(theta), yarn=_yarn(table, context))
        case _:
            return Rope(theta=int(theta))


def _llama3(table: Fields, context: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=table.number("factor"),
        low_freq_factor=table.number("low_freq_factor"),
        high_freq_factor=table.number("high_freq_factor"),
        original_context=table.integer("original_max_position_embeddings", context),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        table.refuse("high_freq_factor", "a number above low_freq_factor", "Correct config.json.")
    return scaling


def _yarn(table: Fields, context: int) -> Yarn:
    """Returns the yarn scaling. Rejects an ``mscale`` other than ``mscale_all_dim``.

    If the two differ, the rotary embedding has an additional scale that MaxText does not implement.
    """
    mscale = table.number("mscale_all_dim")
    if table.number("mscale") != mscale:
        table.refuse(
            "mscale", f"mscale_all_dim ({mscale:g})", "MaxText's rotary embedding has no other scale."
        )
    if table.has("attention_factor"):
        table.refuse("attention_factor", "nothing", "MaxText derives it from mscale_all_dim.")
    scaling = Yarn(
        factor=table.integer("factor"),
        original_context=table.integer("original_max_position_embeddings", context),
        beta_fast=table.integer("beta_fast", 32),
        beta_slow=table.integer("beta_slow", 1),
        mscale=mscale,
        truncate=table.flag("truncate", True),
    )
    if scaling.original_context >= context:
        table.refuse(
            "original_max_position_embeddings", f"a number below max_position_embeddings ({context})",
            "Correct config.json.",
        )  # fmt: skip
    return scaling
