"""Default XLA flags for TPU where a profile's flavor sets none: MaxText's own, by TPU family.

They are what MaxText's benchmarks set for every dense model of a family (``benchmarks/xla_flags_library.py`` and
``maxtext_{v5e,v5p,trillium}_model_configs.py`` in its repository; its package has neither), without what they add for
single models. MaxText has none for v4, and for tpu7x only those of single models: there, XLA's own defaults apply. The
fusion of all-gathers is left out on v5p and v6e: libtpu 0.0.44 rejects it there and warns of wrong results.
"""

from collections.abc import Mapping

_GATHER_FUSION = (
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
)
_GATHER_OVERLAP = (
    "--xla_tpu_overlap_compute_collective_tc=true",
    "--xla_enable_async_all_gather=true",
)
_DATA_PARALLEL_OVERLAP = (
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "--xla_tpu_data_parallel_opt_different_sized_ops=true",
)
_BY_FAMILY: Mapping[str, tuple[str, ...]] = {
    "v5e": (*_DATA_PARALLEL_OVERLAP, *_GATHER_OVERLAP, *_GATHER_FUSION),
    "v5p": (*_DATA_PARALLEL_OVERLAP, *_GATHER_OVERLAP),
    "v6e": ("--xla_tpu_scoped_vmem_limit_kib=98304", *_DATA_PARALLEL_OVERLAP, *_GATHER_OVERLAP),
}


def default_libtpu_args(family: str) -> tuple[str, ...]:
    """Returns the values of LIBTPU_INIT_ARGS for slices of the family; empty if there are none."""
    return _BY_FAMILY.get(family, ())
