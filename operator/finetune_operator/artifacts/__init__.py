"""Object storage as the operator needs it: a narrow port and its adapters (gs:// and file://)."""
