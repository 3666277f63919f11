"""Convert: writes the user's model as a MaxText checkpoint to the cache, and proves that it converts back unchanged."""

import itertools
import time

from finetune_contract import CacheLayout, ConvertManifest, ConvertOutcome, PreferenceMethod
from finetune_trainer.checkpoints.layout import layout_for
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import cache as conversion_cache
from finetune_trainer.conversion import fingerprint, streaming
from finetune_trainer.data.pairs import PairSchema
from finetune_trainer.data.prepare import read_all
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.engine import maxtext
from finetune_trainer.families import ModelPlan
from finetune_trainer.process import malloc
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import cache_entry
from finetune_trainer.storage.cache_entry import CacheMiss
from finetune_trainer.verification import conversion_check


def run(context: StageContext) -> ConvertOutcome:
    """The conversion that the job uses: a complete one from the cache, else this attempt's own."""
    request = context.request
    started = time.monotonic()
    malloc.return_freed_arrays()
    context.progress.begin("looking for the converted model in the cache")
    model = context.model(weights=False)
    plan = context.plan(model)
    layout = layout_for(request.mesh)
    prints = fingerprint.of_model(model, plan, layout)
    # Another job may have converted the model since preflight ran.
    found = conversion_cache.find(request, prints, context.store)
    if not isinstance(found, CacheMiss):
        return ConvertOutcome(manifest=found, reused=True)
    # Only files from a bucket are counted while they are fetched.
    size = model.weights_bytes if request.model.uri is not None and not model.in_place else None
    context.progress.begin("fetching the model", total_bytes=size)
    model = context.model(weights=True)
    maxtext.prepare(plan)
    weights = open_weights(model.path, plan, where=model.source)
    entry = CacheLayout(request.cache).convert_output(
        prints.value, request.job.uid, request.attempt, request.restart, context.run
    )
    made = streaming.convert(
        weights, plan, entry, store=context.store, layout=layout, progress=context.progress
    )
    context.progress.begin("listing the converted model's files")
    # Listed before the proof reads it: what is proven is what is listed.
    files_digest = cache_entry.write_file_list(context.store, entry)
    sentence = ""
    if request.export_proof:
        sentence = conversion_check.check_conversion(
            weights,
            made.items,
            plan,
            _rows(context, plan),
            scratch=context.scratch,
            progress=context.progress,
        ).sentence
    model.require_unchanged()
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
    conversion_cache.keep(request, manifest, found, context.store)
    return ConvertOutcome(manifest=manifest)


def _rows(context: StageContext, plan: ModelPlan) -> list[list[int]]:
    """Token ids of the first examples of the user's own data that predict a token."""
    source, pairs = context.request.data.train[0], isinstance(context.request.method, PreferenceMethod)
    schema = PairSchema if pairs else DatasetSchema
    length = min(conversion_check.LENGTH, plan.context_length)
    rows = (
        context.renderer.tokens(example).ids[:length].tolist()
        for example in read_all(source, context.store, context.scratch, schema)
    )
    return list(itertools.islice((row for row in rows if len(row) > 1), conversion_check.ROWS))
