"""The trainer: the stages of a fine-tuning job on MaxText and Tunix."""
