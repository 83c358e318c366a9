{{- define "perdure.name" -}}
{{- printf "%s" (ternary .Release.Name (printf "%s-perdure" .Release.Name) (contains "perdure" .Release.Name)) | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "perdure.labels" -}}
app.kubernetes.io/name: perdure
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "perdure.selector" -}}
app.kubernetes.io/name: perdure
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "perdure.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* The image runs as 10001, writes nothing, and needs no right of the kernel. */}}
{{- define "perdure.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "perdure.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "perdure.env" -}}
{{- range $name, $value := . }}
- { name: {{ $name }}, value: {{ $value | quote }} }
{{- end }}
{{- end -}}

{{/* Tasks of a queue that wait: in the memory of servers, and as rows; the latter counted up to 10,000. */}}
{{- define "perdure.waiting" -}}
select coalesce((select sum(b.waiting) from perdure.engine_backlog b join perdure.engine_session e on e.id = b.session_id and e.expires_at > now() join perdure.namespace n on n.id = b.ns where n.name = '{{ .namespace }}' and b.queue = '{{ .queue }}'), 0) + (select count(*) from (select from perdure.task_queue t join perdure.namespace n on n.id = t.ns where n.name = '{{ .namespace }}' and t.queue = '{{ .queue }}' and t.owner is null and not t.held and t.run_at <= now() limit 10000) waiting)
{{- end -}}
