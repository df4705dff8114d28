{{- define "takeback.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "takeback.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "takeback.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "takeback.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "takeback.selectorLabels" -}}
app.kubernetes.io/name: {{ include "takeback.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "takeback.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "takeback.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: proxy
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "takeback.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "takeback.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "takeback.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "takeback.policyConfigMap" -}}
{{- .Values.policy.existingConfigMap | default (printf "%s-policy" (include "takeback.fullname" .)) -}}
{{- end -}}

{{- /* The end of the proxy, 5 s for its last batch, and the end of the gateway after it. */ -}}
{{- define "takeback.podGrace" -}}
{{- $gateway := ternary (int .Values.gateway.stopSeconds) 0 (eq .Values.topology "gateway") -}}
{{- add (int .Values.drain.graceSeconds) 5 $gateway -}}
{{- end -}}

{{- /* The settings file: the chart's own members, and what `config` adds. */ -}}
{{- define "takeback.config" -}}
{{- $own := dict
  "listen" (printf "0.0.0.0:%d" (int .Values.ports.proxy))
  "telemetry_listen" (printf "0.0.0.0:%d" (int .Values.ports.telemetry))
  "admin_listen" "/var/lib/takeback/admin.sock"
  "policies" "/etc/takeback/policy"
  "upstream" (dict "url" .Values.upstream.url)
  "drain" (dict
    "min_ms" (mul 1000 (int .Values.drain.minSeconds))
    "grace_ms" (mul 1000 (int .Values.drain.graceSeconds))) -}}
{{- if eq .Values.ledger.type "embedded" -}}
{{- $_ := set $own "ledger" "/var/lib/takeback/ledger.db" -}}
{{- end -}}
{{- if .Values.ledger.macKey.secretName -}}
{{- $_ := set $own "ledger_mac_key_file" "/var/run/secrets/takeback/ledger-key/keys" -}}
{{- end -}}
{{- if .Values.upstream.headersSecret.name -}}
{{- $_ := set $own.upstream "headers_file" "/var/run/secrets/takeback/upstream/headers" -}}
{{- end -}}
{{- merge $own (deepCopy .Values.config) | toYaml -}}
{{- end -}}
