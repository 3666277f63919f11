"""The stages of a job, one module each: ``run(context) -> its outcome``."""
