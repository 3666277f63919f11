"""What a profile allows: checks of jobs against it, and of the profile itself."""
