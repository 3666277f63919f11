"""The ``finetune`` command: thin, for people; everything it shows comes from the layers below or from status."""
