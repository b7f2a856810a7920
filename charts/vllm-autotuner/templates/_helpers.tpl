{{- define "vllm-autotuner.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "vllm-autotuner.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "vllm-autotuner.name" .) }}
{{- end }}

{{- /* A number or a percentage; a number of values is a float, which prints large ones as 1e+06. */}}
{{- define "vllm-autotuner.share" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ int64 . }}{{ end }}
{{- end }}

{{- define "vllm-autotuner.limitsName" -}}
{{- printf "%s-limits" (include "vllm-autotuner.name" .) }}
{{- end }}

{{- /* A duration such as 1h30m in seconds. */}}
{{- define "vllm-autotuner.seconds" -}}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 }}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) (regexFind "[a-z]+" .))) }}
{{- end }}
{{- $sum }}
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

{{- /* A list of our labels or annotations and the user's: theirs win. One mapping, as a key may stand in both. */}}
{{- define "vllm-autotuner.overlaid" -}}
{{- toYaml (mergeOverwrite (first . | fromYaml) (default dict (last .))) }}
{{- end }}

{{- /* Every Prometheus server with all its settings: the operator's own, then prometheus.sources by name. `at` is where
they stand in the values, `folder` where their files are mounted. */}}
{{- define "vllm-autotuner.servers" -}}
{{- $folder := "/etc/vllm-autotuner" }}
{{- $own := dict "name" "" "at" "prometheus" "prefix" "" "folder" $folder }}
{{- $servers := list (merge $own (deepCopy (omit .Values.prometheus "sources"))) }}
{{- range $name, $settings := .Values.prometheus.sources }}
{{- $place := dict "name" $name "at" (printf "prometheus.sources.%s" $name) "prefix" (printf "source-%s-" $name) "folder" (printf "%s/sources/%s" $folder $name) }}
{{- $keys := dict "bearerToken" (dict "key" "token") "basic" (dict "key" "password") "ca" (dict "key" "ca.crt") "clientCertificate" (dict "certificate" "tls.crt" "key" "tls.key") }}
{{- $servers = append $servers (merge $place (deepCopy $settings) $keys) }}
{{- end }}
{{- range $servers }}
{{- if and .bearerToken.secretName .basic.secretName }}
{{- fail (printf "set %s.bearerToken.secretName or %s.basic.secretName, not both" .at .at) }}
{{- end }}
{{- if ne (empty .basic.secretName) (empty .basic.username) }}
{{- fail (printf "basic authentication needs both %s.basic.username and %s.basic.secretName" .at .at) }}
{{- end }}
{{- end }}
{{- toYaml (dict "servers" $servers) }}
{{- end }}

{{- /* The Secrets and ConfigMaps with credentials and CAs of all servers: name of the volume, path, secret or configMap. */}}
{{- define "vllm-autotuner.credentials" -}}
{{- $found := list }}
{{- range $server := (include "vllm-autotuner.servers" . | fromYaml).servers }}
{{- range $part, $volume := dict "bearerToken" "bearer-token" "basic" "basic" "clientCertificate" "client-certificate" }}
{{- with (get $server $part).secretName }}
{{- $found = append $found (dict "name" (printf "%s%s" $server.prefix $volume) "path" (printf "%s/%s" $server.folder $volume) "secret" .) }}
{{- end }}
{{- end }}
{{- with $server.ca.configMapName }}
{{- $found = append $found (dict "name" (printf "%sca" $server.prefix) "path" (printf "%s/ca" $server.folder) "configMap" .) }}
{{- end }}
{{- end }}
{{- toYaml (dict "volumes" $found) }}
{{- end }}

{{- /* The file of `run --prometheus-sources`. */}}
{{- define "vllm-autotuner.sources" -}}
{{- $sources := dict }}
{{- range (include "vllm-autotuner.servers" . | fromYaml).servers }}
{{- if .name }}
{{- $source := pick . "url" "match" "headers" }}
{{- if .bearerToken.secretName }}
{{- $_ := set $source "bearerTokenFile" (printf "%s/bearer-token/%s" .folder .bearerToken.key) }}
{{- end }}
{{- if .basic.secretName }}
{{- $_ := set $source "username" .basic.username }}
{{- $_ := set $source "passwordFile" (printf "%s/basic/%s" .folder .basic.key) }}
{{- end }}
{{- if .ca.configMapName }}
{{- $_ := set $source "caFile" (printf "%s/ca/%s" .folder .ca.key) }}
{{- end }}
{{- if .clientCertificate.secretName }}
{{- $_ := set $source "clientCert" (printf "%s/client-certificate/%s" .folder .clientCertificate.certificate) }}
{{- $_ := set $source "clientKey" (printf "%s/client-certificate/%s" .folder .clientCertificate.key) }}
{{- end }}
{{- $_ := set $sources .name $source }}
{{- end }}
{{- end }}
{{- toYaml $sources }}
{{- end }}
