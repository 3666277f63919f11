"""Host memory of the stages on CPU, which hold one piece of the model at a time; the operator requests by it.

Measured as the anonymous and shared memory of the process. ``tests/trainer/test_host_memory.py`` holds that no stage
takes more and that further layers take none.
"""

FIXED = 2 * 2**30
"""Bytes for the process, its libraries and compiled programs, and the slices that wait for storage: 1.3 GB."""
PIECE = 16
"""Bytes per parameter of the largest piece, ``ModelSizes.largest_piece``: 10.1 to convert, 14.1 to export."""
CHUNK = 8
"""Bytes per parameter of a chunk of a trained checkpoint: as stored and as decoded."""
ADAPTER_HELD = 4
"""Bytes per parameter of an adapter while it is merged into the model: float32."""
ADAPTER_WRITTEN = 12
"""The same while it is written: in float32, in the export's dtype, and as the file's bytes."""
