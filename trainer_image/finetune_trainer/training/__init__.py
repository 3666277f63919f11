"""The training loop of a stage: its settings, session, steps, checkpoints and reports."""
