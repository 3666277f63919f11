"""The objects of a job in the API server, as typed views: JobSets, pods, Workloads, nodes and Events."""
