{{/*
A namespace is served by one release: two would act on the same jobs. Every release says in an annotation of its
ClusterRole, which no tenant can write, what it serves. helm template cannot see the cluster, so it refuses nothing; the
operator of the later release then waits.
*/}}
{{- define "finetune-operator.serves" -}}
{{- .Values.namespaces | default (list "*") | sortAlpha | join "," -}}
{{- end }}

{{- define "finetune-operator.refuseShared" -}}
{{- $own := .Values.namespaces -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- $release := get $notes "meta.helm.sh/release-name" -}}
{{- $serves := get $notes "tpu-finetune.dev/serves" -}}
{{- /* What helm has not written, as Argo CD's objects, has the name alone. */ -}}
{{- $who := printf "the release with ClusterRole %s" .metadata.name -}}
{{- $ours := eq .metadata.name (include "finetune-operator.fullname" $) -}}
{{- if $release -}}
{{- $who = printf "release %s in namespace %s" $release (get $notes "meta.helm.sh/release-namespace") -}}
{{- $ours = eq $who (printf "release %s in namespace %s" $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{- if and $serves (not $ours) -}}
{{- $theirs := splitList "," $serves -}}
{{- $shared := list -}}
{{- if not $own -}}{{- $shared = $theirs -}}{{- end -}}
{{- range $own -}}
{{- if or (has "*" $theirs) (has . $theirs) -}}{{- $shared = append $shared . -}}{{- end -}}
{{- end -}}
{{- if $shared -}}
{{- fail (printf "namespaces: %s serves %s already, and both releases would act on the same jobs. Name other namespaces, or take these from that release first." $who (join ", " $shared | replace "*" "every namespace")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
