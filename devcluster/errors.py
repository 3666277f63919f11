"""What can go wrong with the local cluster, as one type that the command line prints without a traceback."""


class LocalClusterError(Exception):
    """The cluster can't do what was asked. The message says what, where to look, and what to do."""
