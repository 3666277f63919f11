"""Narrow port to object storage, as the operator needs it, and its adapters (gs:// and file://)."""
