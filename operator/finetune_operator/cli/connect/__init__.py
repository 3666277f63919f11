"""Access of commands to a cluster and to an object store, with the rights of the caller."""
