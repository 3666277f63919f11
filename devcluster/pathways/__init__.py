"""A substitute for the images of Pathways' servers, which run only on Google's TPU machines.

It has what the JobSets rely on and is otherwise empty: the flags (an unknown one is refused), the ports, workers that
register with the resource manager and serve until they are ended, and a proxy that answers a client once the workers of
all slices are registered. No array is held and nothing is computed, so it shows nothing of Pathways' speed, its errors
or its recovery. JAX on the local nodes computes on the head's CPU in place of the platform ``proxy``. The servers
exchange lines of JSON, see :mod:`devcluster.pathways.servers`; Pathways' own protocol is not public.
"""
