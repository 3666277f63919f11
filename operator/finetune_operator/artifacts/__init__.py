"""Narrow port to object storage, as the operator needs it: the stores of ``finetune_storage`` with bounds and shares."""
