"""The stages of a job, one module each, with ``run(context)`` that returns the stage's outcome."""
