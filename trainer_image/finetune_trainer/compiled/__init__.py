"""The real TPU compiler, on CPU: whether a train step fits a slice, and how fast it can be, before one is claimed.

``question`` holds what is asked and answered, ``compiler`` runs in a process of its own (``__main__``) and answers,
``asking`` starts it and remembers answers, ``search`` decides what to ask, ``check`` is what the preflight stage calls.
"""
