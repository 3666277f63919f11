"""Object storage of the operator and the trainer: ``gs://`` and ``file://`` behind one interface of blocking calls.

A program imports ``google`` or ``files`` when it makes that store: one needs google-cloud-storage, the other POSIX.
"""
