"""Commands on the jobs and profiles of a cluster: listing, watching, logs, costs, and edits."""
