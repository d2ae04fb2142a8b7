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

{{- define "loxilight.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
