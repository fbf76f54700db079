{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "holdfast.metadataLabels" -}}
{{ include "holdfast.labels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "holdfast.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "holdfast.controlHost" -}}
{{ .Release.Name }}-control.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "holdfast.storeEndpoints" -}}
{{- if .Values.store.endpoints -}}
{{ join "," .Values.store.endpoints }}
{{- else -}}
https://{{ .Release.Name }}-store.{{ .Release.Namespace }}.svc:2379
{{- end -}}
{{- end }}

{{- /* Arguments by which a role reaches the store. */ -}}
{{- define "holdfast.storeArgs" -}}
- --store={{ include "holdfast.storeEndpoints" . }}
{{- if or (not .Values.store.endpoints) .Values.store.secretName }}
- --store-ca=/etc/holdfast/store/ca.crt
- --store-cert=/etc/holdfast/store/tls.crt
- --store-key=/etc/holdfast/store/tls.key
{{- end }}
{{- end }}

{{- /* A pod leaves a lost node quickly. */ -}}
{{- define "holdfast.evictionTolerations" -}}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
- key: {{ . }}
  operator: Exists
  effect: NoExecute
  tolerationSeconds: {{ $.Values.evictionSeconds }}
{{- end }}
{{- end }}

{{- /* What a pod without privileges may do: nothing. */ -}}
{{- define "holdfast.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
