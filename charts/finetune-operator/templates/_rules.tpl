{{/* What the operator may do where its jobs live. No Secret is ever read: pods get them by reference. */}}
{{- define "finetune-operator.jobRules" -}}
- apiGroups: [tpu-finetune.dev]
  resources: [finetunejobs]
  verbs: [get, list, watch]
- apiGroups: [tpu-finetune.dev]
  resources: [finetunejobs/status]
  verbs: [get, patch, update]
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# The immutable ConfigMap <job>-plan: written once, read by name.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* Profiles are cluster-scoped: also an operator that serves a few namespaces reads all of them. */}}
{{- define "finetune-operator.profileRules" -}}
- apiGroups: [tpu-finetune.dev]
  resources: [finetuneprofiles]
  verbs: [get, list, watch]
{{- end }}

{{/* Leader election, in the operator's own namespace. */}}
{{- define "finetune-operator.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update, patch]
{{- end }}
