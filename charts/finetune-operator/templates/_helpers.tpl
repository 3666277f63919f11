{{- define "finetune-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/*
The release's name, with the chart's appended unless it is in it already. Helm takes dots, names of Services none. 55:
the longest suffix that an object adds (-metrics) must fit into a DNS label.
*/}}
{{- define "finetune-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | replace "." "-" | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "finetune-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "finetune-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "finetune-operator.labels" -}}
{{ include "finetune-operator.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels and more of one object, whose values win: root, more. A key that is written twice is no valid YAML. */}}
{{- define "finetune-operator.labelsAnd" -}}
{{- merge (dict) (.more | default dict) (fromYaml (include "finetune-operator.labels" .root)) | toYaml -}}
{{- end }}

{{/* Of the objects of `helm test`, which the operator's selectors must not select. */}}
{{- define "finetune-operator.testLabels" -}}
app.kubernetes.io/name: {{ include "finetune-operator.name" . | trunc 58 | trimSuffix "-" }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "finetune-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "finetune-operator.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name: name the ServiceAccount to use, or set serviceAccount.create=true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "finetune-operator.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}
