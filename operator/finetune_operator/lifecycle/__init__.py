"""What is observed of a job, and what is decided from it. Pure: no I/O, no clock."""
