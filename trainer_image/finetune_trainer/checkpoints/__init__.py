"""MaxText checkpoints in storage: their layout, written and read by slices so that no array is held whole."""
