"""Narrow port to the Kubernetes API, as the reconciler needs it, and its adapter."""
