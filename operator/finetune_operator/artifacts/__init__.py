"""Narrow port to object storage, as the operator needs it: stores of ``finetune_storage`` with bounds and shares."""
