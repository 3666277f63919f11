"""The node agent: acts as the kubelet of all local nodes and runs pods' containers as processes."""
