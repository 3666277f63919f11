"""The operator's process around the reconciler: events, queue, leadership, metrics, probes, signals."""
