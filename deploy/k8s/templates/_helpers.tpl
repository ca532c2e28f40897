{{/* Names, labels and the parts that all pods share. */}}

{{- define "headrace.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Call with (list . "gateway"). */}}
{{- define "headrace.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "headrace.labels" -}}
{{- $top := index . 0 -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end }}

{{/* Name and labels of an object: call with (list . "gateway"). */}}
{{- define "headrace.metadata" -}}
name: {{ include "headrace.name" (index . 0) }}-{{ index . 1 }}
labels: {{- include "headrace.labels" . | nindent 2 }}
{{- end }}

{{/* Call with (list . "rollout" "-cpu"): the third is put behind the tag. */}}
{{- define "headrace.image" -}}
{{- $top := index . 0 -}}
{{ $top.Values.image.registry }}headrace-{{ index . 1 }}:{{ $top.Values.image.tag | default $top.Chart.AppVersion }}{{ index . 2 }}
{{- end }}

{{- define "headrace.secret" -}}
{{ .Values.global.existingSecret | default (printf "%s-secrets" (include "headrace.name" .)) }}
{{- end }}

{{- define "headrace.claim" -}}
{{ .Values.data.existingClaim | default (printf "%s-data" (include "headrace.name" .)) }}
{{- end }}

{{- define "headrace.redisURL" -}}
{{- if .Values.redis.enabled -}}
redis://{{ .Release.Name }}-redis:6379/0
{{- else -}}
{{- $_ := required "global.existingSecret is needed with redis.enabled=false: its redis-password is that Redis' password, or empty" .Values.global.existingSecret -}}
{{ required "externalRedis.url is needed with redis.enabled=false" .Values.externalRedis.url }}
{{- end -}}
{{- end }}

{{/* The key of the reward service, for itself and for those that ask it. */}}
{{- define "headrace.rewardKey" -}}
- name: HEADRACE_REWARD_KEY
  valueFrom: {secretKeyRef: {name: {{ include "headrace.secret" . }}, key: reward-key}}
{{- end }}

{{/* What every process of ours is told; the keys and the password come from the secret. */}}
{{- define "headrace.env" -}}
- {name: HEADRACE_POOL, value: {{ .Values.pool | quote }}}
- {name: HEADRACE_LOG_LEVEL, value: {{ .Values.logLevel | quote }}}
- {name: HEADRACE_TRUST_REMOTE_CODE, value: {{ .Values.trustRemoteCode | quote }}}
- {name: HEADRACE_REDIS_URL, value: {{ include "headrace.redisURL" . | quote }}}
- {name: HEADRACE_GATEWAY_URL, value: "http://{{ include "headrace.name" . }}-gateway:{{ .Values.gateway.service.port }}"}
- {name: HEADRACE_REWARD_URL, value: "http://{{ include "headrace.name" . }}-reward:8002"}
- name: HEADRACE_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "headrace.secret" . }}, key: redis-password}}
- name: HEADRACE_API_KEY
  valueFrom: {secretKeyRef: {name: {{ include "headrace.secret" . }}, key: api-key}}
{{ include "headrace.rewardKey" . }}
{{- end }}

{{/* Variables of a map. A number of a values file is a float to helm, which would write a large one as
     1.073741824e+09. */}}
{{- define "headrace.moreEnv" -}}
{{- range $name, $value := . }}
{{- if kindIs "float64" $value }}
{{- $value = eq (floor $value) $value | ternary (printf "%.0f" $value) (toString $value) }}
{{- end }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Nobody here talks to the cluster's API. */}}
{{- define "headrace.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end }}

{{- define "headrace.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "headrace.placed" -}}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Resources of a pod with GPUs: requests and limits of those have to be equal. */}}
{{- define "headrace.gpuResources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpus -}}
{{- $_ := set $resources "limits" (merge (dict .gpuResource (.gpus | int)) ($resources.limits | default dict)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end }}

{{/* A worker process for each CPU that is asked for: by itself the service takes one for each of the
     node's, more than it gets time for, and programs would seem too slow. Call with variables that may
     say it already. */}}
{{- define "headrace.workers" -}}
{{- if not (hasKey . "HEADRACE_WORKERS") }}
- {name: HEADRACE_WORKERS, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
{{- end }}
{{- end }}

{{/* The components that are workers, as `rollout spot serving`. */}}
{{- define "headrace.workerComponents" -}}
rollout{{ if .Values.spot.replicas }} spot{{ end }}{{ if .Values.serving.replicas }} serving{{ end }}
{{- end }}
