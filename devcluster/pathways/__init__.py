"""A stand-in for the images of Pathways' servers, which nobody outside of Google's TPU machines can run.

It keeps what the JobSets rely on and is otherwise empty: the flags (an unknown one is refused), the ports, workers
that register with the resource manager and serve until they are ended, and a proxy that answers a client when the
workers of all slices are there. No array is held and nothing is computed, so it says nothing about Pathways' speed,
its errors or its recovery. JAX on the local nodes computes on the head's CPU in place of the platform ``proxy``.

Between the servers go lines of JSON, see :mod:`devcluster.pathways.servers`; Pathways' own protocol is not public.
"""
