"""Object storage of the operator and the trainer: ``gs://`` and ``file://`` behind one interface of blocking calls.

``google`` and ``files`` are imported by whoever makes a store: the first needs google-cloud-storage, the second POSIX.
"""
