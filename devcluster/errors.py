"""The error type of the local cluster, which the command line prints without a traceback."""


class LocalClusterError(Exception):
    """The cluster can't do what was requested. The message says what failed, where to look, and what to do."""
