"""MaxText for one model: its set-up, its settings, and how programs are compiled and sharded."""
