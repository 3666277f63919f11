{{/*
What the operator may do, as tests/rbac.py lists it (a test holds the two together).
No Secret is ever read: pods get them by reference.
*/}}
{{- define "finetune-operator.jobRules" -}}
- apiGroups: [tpu-finetune.dev]
  resources: [finetunejobs]
  verbs: [get, list, watch]
# Status only: spec and metadata belong to the user.
- apiGroups: [tpu-finetune.dev]
  resources: [finetunejobs/status]
  verbs: [patch]
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Why a JobSet waits in its queue. Kueue need not be there.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, watch]
# The ConfigMap of a chat template, by name.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
# Compared with a job's slice before the job is admitted.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list]
# Created about jobs; listed for a pod that finds no node or a Job that creates no pods.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}

{{/* What is cluster-scoped: an operator that serves a few namespaces reads and judges it, too. */}}
{{- define "finetune-operator.clusterRules" -}}
- apiGroups: [tpu-finetune.dev]
  resources: [finetuneprofiles]
  verbs: [get, list, watch]
- apiGroups: [tpu-finetune.dev]
  resources: [finetuneprofiles/status]
  verbs: [patch]
# Of a slice on which a pod has failed: was a host taken away, or did the program crash?
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
# Other releases of the chart say in theirs which namespaces they serve.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  verbs: [list]
{{- end }}

{{/* Leader election and the plans of jobs, in the operator's own namespace. */}}
{{- define "finetune-operator.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, patch]
# The plans of jobs: written once, read by name, deleted when the job is gone.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, delete]
{{- end }}

{{/* The records of delivered notices and of jobs on chips. They are created with the rights above. */}}
{{- define "finetune-operator.recordRules" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ include "finetune-operator.fullname" . }}-notifications, {{ include "finetune-operator.fullname" . }}-at-work]
  verbs: [patch]
{{- end }}
