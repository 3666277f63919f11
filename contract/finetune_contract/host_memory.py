"""Host memory of the CPU stages, which hold one piece of the model at a time. Determines their memory requests.

The figures are the measured anonymous and shared memory of the process. ``tests/trainer/test_host_memory.py`` verifies
that no stage uses more, and that additional layers do not increase it.
"""

FIXED = 2 * 2**30
"""Bytes for the process, its libraries and compiled programs, and slices queued for storage; measured: 1.3 GB."""
PIECE = 16
"""Bytes per parameter of the largest piece (``ModelSizes.largest_piece``); measured: 10.1 to convert, 14.1 to export.
"""
CHUNK = 8
"""Bytes per parameter of a chunk of a trained checkpoint, held both as stored and as decoded."""
ADAPTER_HELD = 4
"""Bytes per parameter of an adapter while it is merged into the model, in float32."""
ADAPTER_WRITTEN = 12
"""Bytes per parameter of an adapter while it is written: in float32, in the export's dtype, and as the file's bytes."""
