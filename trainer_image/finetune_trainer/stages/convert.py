"""Convert: the user's model as a MaxText checkpoint in the cache, proven to come back unchanged."""

import time

from finetune_contract import CacheLayout, ConvertManifest, ConvertOutcome
from finetune_trainer import cache_entry, conversion, converted, engine, fingerprint, proof
from finetune_trainer.cache_entry import Miss
from finetune_trainer.checkpoint_layout import layout_for
from finetune_trainer.data.preference import preview_pairs
from finetune_trainer.data.prepare import preview
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages.context import Context
from finetune_trainer.weights import open_weights

#: Rows whose loss the proof compares, and their length at most.
_PROOF_ROWS, _PROOF_TOKENS = 4, 128


def run(context: Context) -> ConvertOutcome:
    """The conversion that the job uses: one from the cache that is whole, else this attempt's own."""
    request = context.request
    started = time.monotonic()
    model = context.model(weights=False)
    plan = context.plan(model)
    layout = layout_for(request.mesh)
    prints = fingerprint.of_model(model, plan, layout)
    # Another job may have converted the model since preflight looked.
    found = converted.find(request, prints, context.store)
    if not isinstance(found, Miss):
        return ConvertOutcome(manifest=found, reused=True)
    model = context.model(weights=True)
    engine.prepare(plan)
    weights = open_weights(model.path, plan, where=model.source)
    entry = CacheLayout(request.cache).convert_output(
        prints.value, request.job.uid, request.attempt, request.restart, context.run
    )
    made = conversion.convert(weights, plan, entry, store=context.store, layout=layout)
    # Listed before the proof reads it: what is proven is what is listed.
    files_digest = cache_entry.keep_list(context.store, entry)
    sentence = ""
    if request.export_proof:
        sentence = proof.prove(
            weights, made.items, plan, _rows(context, plan), scratch=context.scratch
        ).sentence
    manifest = ConvertManifest(
        fingerprint=prints.value,
        inputs=dict(prints.inputs),
        items=made.items,
        size_bytes=made.size_bytes,
        seconds=round(time.monotonic() - started, 3),
        export_proven=request.export_proof,
        proof=sentence,
        created=context.now(),
        files_digest=files_digest,
    )
    converted.keep(request, manifest, found, context.store)
    return ConvertOutcome(manifest=manifest)


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
