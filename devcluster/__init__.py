"""A real Kubernetes control plane on one machine, without containers and without root.

etcd, kube-apiserver, controller-manager, scheduler, the JobSet controller and a Cloud Storage emulator run as plain
processes on loopback; a node agent registers nodes that resemble GKE's TPU nodes and runs each pod's containers as
local processes with JAX on CPU. Run it with ``python -m devcluster``; see README.md beside this file.
"""
