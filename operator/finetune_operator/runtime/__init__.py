"""What surrounds the reconciler in a pod: events, queue, leadership, metrics, probes, signals."""
