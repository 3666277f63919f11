"""The commands of the program ``finetune-stage``."""
