"""What the process of a stage is: signals, logs, progress, the host's memory, and the other processes."""
