{{- define "roundhouse.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "roundhouse.serviceAccount" -}}
{{- default (printf "%s-orchestrator" (include "roundhouse.fullname" .)) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The labels by which the orchestrator's Pods are selected. They never change. */}}
{{- define "roundhouse.selector" -}}
app.kubernetes.io/name: roundhouse-orchestrator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "roundhouse.labels" -}}
{{ include "roundhouse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: roundhouse
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "roundhouse.image" -}}
{{- $registry := .Values.image.registry -}}
{{- if $registry }}{{ $registry | trimSuffix "/" }}/{{ end -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "roundhouse.engineImage" -}}
{{- $registry := default .Values.image.registry .Values.engines.image.registry -}}
{{- if $registry }}{{ $registry | trimSuffix "/" }}/{{ end -}}
{{ .Values.engines.image.repository }}:{{ default .Chart.AppVersion .Values.engines.image.tag }}
{{- end -}}

{{/* What every container of the chart is confined by: the Pod Security Standard `restricted`, and more. */}}
{{- define "roundhouse.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "roundhouse.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
