"""The status of a job, built once per decision."""
