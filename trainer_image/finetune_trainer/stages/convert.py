"""Convert: the user's model as a MaxText checkpoint in the cache, proven to come back unchanged."""

import time

from finetune_contract import CacheLayout, ConvertManifest, ConvertOutcome
from finetune_trainer import conversion, engine, fingerprint, proof
from finetune_trainer.checkpoint_layout import layout_for
from finetune_trainer.data.preference import preview_pairs
from finetune_trainer.data.prepare import preview
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages.context import Context
from finetune_trainer.weights import open_weights

#: Rows whose loss the proof compares, and their length at most.
_PROOF_ROWS, _PROOF_TOKENS = 4, 128


def run(context: Context) -> ConvertOutcome:
    """The manifest that stands in the cache in the end: ours, or that of the job that was first."""
    request = context.request
    started = time.monotonic()
    model = context.model(weights=True)
    plan = context.plan(model)
    engine.prepare(plan)
    weights = open_weights(model.path, plan, where=model.source)
    layout = layout_for(request.mesh)
    prints = fingerprint.of_model(model, plan, layout)
    cache = CacheLayout(request.cache)
    converted = conversion.convert(
        weights,
        plan,
        cache.convert_output(prints.value, request.job.uid, request.attempt, request.restart),
        store=context.store,
        layout=layout,
    )
    sentence = ""
    if request.export_proof:
        sentence = proof.prove(
            weights, converted.items, plan, _rows(context, plan), scratch=context.scratch
        ).sentence
    manifest = ConvertManifest(
        fingerprint=prints.value,
        inputs=dict(prints.inputs),
        items=converted.items,
        size_bytes=converted.size_bytes,
        seconds=round(time.monotonic() - started, 3),
        export_proven=request.export_proof,
        proof=sentence,
        created=context.now(),
    )
    return ConvertOutcome(manifest=_publish(context, cache.convert_manifest(prints.value), manifest))


def _publish(context: Context, address: str, manifest: ConvertManifest) -> ConvertManifest:
    if context.request.use_cache == "Off":
        return manifest
    if context.request.use_cache == "Refresh":
        context.store.write(address, manifest.to_json())
        return manifest
    if context.store.create(address, manifest.to_json()):
        return manifest
    return ConvertManifest.model_validate_json(context.store.read(address))


def _rows(context: Context, plan: ModelPlan) -> list[list[int]]:
    """A few examples of the user's own data."""
    sources, pairs = context.request.data.train, context.request.method.max_prompt_length is not None
    examples = (
        preview_pairs(sources[0], context.store, context.scratch, rows=_PROOF_ROWS)
        if pairs
        else preview(sources[0], context.store, context.scratch, rows=_PROOF_ROWS)
    )
    length = min(_PROOF_TOKENS, plan.context_length)
    return [context.renderer.tokens(example).ids[:length].tolist() for example in examples]
