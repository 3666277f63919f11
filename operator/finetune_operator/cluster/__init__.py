"""The Kubernetes API as the reconciler needs it: a narrow port and its adapter."""
