"""The node agent: stands for the kubelets of all local nodes and runs pods' containers as processes."""
