{{- define "loxilight.labels" -}}
app.kubernetes.io/name: loxilight
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ include "loxilight.component" . }}
{{- end }}

{{- define "loxilight.component" -}}
{{ if .Values.daemon.enabled }}node{{ else }}agent{{ end }}
{{- end }}

{{- define "loxilight.name" -}}
{{ if .Values.daemon.enabled }}loxilight{{ else }}loxilight-agent{{ end }}
{{- end }}

{{- define "loxilight.controller" -}}
{{ include "loxilight.name" . }}-controller
{{- end }}

{{- define "loxilight.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- /* Where the agent is asked how it is; nothing where it listens nowhere. A wildcard address is asked at the node's own. */}}
{{- define "loxilight.health" -}}
{{- with default "" (dig "health" "listen" ":10256" .Values.agent.config) -}}
{{- $host := trimAll "[]" (regexReplaceAll ":[^:]*$" . "") -}}
port: {{ regexReplaceAll "^.*:" . "" }}
{{- if and $host (ne $host "0.0.0.0") (ne $host "::") }}, host: {{ toJson $host }}{{ end }}
{{- end }}
{{- end }}
