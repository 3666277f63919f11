"""Host memory that the trainer takes on CPU, in bytes per parameter of the model; the operator requests by it.

Measured as the growth of anonymous memory over a process that has imported the engine, with models of 0.14 to 0.98
billion parameters, over which it is linear; ``tests/trainer/test_host_memory.py`` holds that no stage takes more.
"""

CONVERT = 11.0
"""The float32 arrays and Orbax's copies of them while it saves, and the forward pass of the proof: 10.1 to 10.8."""
EXPORT = 8.8
"""Of a whole model, in bfloat16 or float32: 5.5 to 6.8, and rising with the size."""
EXPORT_WITH_ORBAX = 11.0
"""The same with MaxText's format beside it, which is another conversion: 9.9 to 10.4."""
EXPORT_MERGED = 1.5
"""Of an adapter merged into weights that are read tensor by tensor: 1.4, of which the largest tensor is a part."""
ADAPTER = 12.0
"""Per parameter of the adapter, not of the model: as restored, by layer, and as written."""
