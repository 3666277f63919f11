"""MaxText checkpoints in storage: how they lie there, written and read by slices so that no array is held whole."""
