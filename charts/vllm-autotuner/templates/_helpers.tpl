{{- define "vllm-autotuner.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "vllm-autotuner.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "vllm-autotuner.name" .) }}
{{- end }}

{{- define "vllm-autotuner.limitsName" -}}
{{- printf "%s-limits" (include "vllm-autotuner.name" .) }}
{{- end }}

{{- define "vllm-autotuner.image" -}}
{{- with .Values.image }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}{{ end }}
{{- end }}

{{- define "vllm-autotuner.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vllm-autotuner.labels" -}}
{{ include "vllm-autotuner.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
