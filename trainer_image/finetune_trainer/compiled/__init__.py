"""The real TPU compiler, on CPU: whether a train step fits a slice, and how fast it can be, before one is claimed.

``compile_protocol`` holds the requests and answers, ``compiler`` runs in a separate process (``__main__``) and answers,
``compile_client`` starts it and caches answers, ``search`` decides which candidates to compile by a step's ``cost``,
``remedies`` says what to change where none fits, and ``check`` is what the preflight stage calls.
"""
