"""The ``finetune`` command, a thin layer: everything it shows comes from the layers below or from a job's status."""
