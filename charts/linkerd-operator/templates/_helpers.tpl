{{- /* Names are fixed. The admission policies apply to the accounts whose names begin with linkerd-operator, and a cluster
has one installation. */ -}}

{{- /* The labels of the objects. */ -}}
{{- define "linkerd-operator.labels" -}}
{{- include "linkerd-operator.labelsOf" (dict "root" . "name" "linkerd-operator") }}
{{- end }}

{{- /* The same for the objects of a Deployment, which .name names. */ -}}
{{- define "linkerd-operator.labelsOf" -}}
{{- $root := .root }}
{{- $own := dict
  "app.kubernetes.io/name" .name
  "app.kubernetes.io/part-of" "linkerd-operator"
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
{{- toYaml (merge $own (deepCopy ($root.Values.labels | default dict))) }}
{{- end }}

{{- define "linkerd-operator.image" -}}
{{- $image := .Values.image }}
{{- $message := "image.repository is not set. No image is published: set the repository that you pushed the image to." }}
{{- $repository := required $message $image.repository }}
{{- if $image.digest }}
{{- printf "%s@%s" $repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* The ServiceAccount of a job: that of its own Deployment, or the one of all other jobs. */ -}}
{{- define "linkerd-operator.account" -}}
{{- $jobs := .root.Values.jobs }}
{{- if and (eq .job "destination") $jobs.destination.separate }}
{{- "linkerd-operator-destination" }}
{{- else if and (eq .job "externalWorkload") $jobs.externalWorkload.separate }}
{{- "linkerd-operator-external-workload" }}
{{- else if eq .job "identity" }}
{{- "linkerd-operator-identity" }}
{{- else if eq .job "issuerWriter" }}
{{- "linkerd-operator-issuer" }}
{{- else }}
{{- "linkerd-operator" }}
{{- end }}
{{- end }}

{{- /* The namespace of a Deployment and its account: that of Linkerd for the one that mounts the Secret of the issuer. */ -}}
{{- define "linkerd-operator.namespace" -}}
{{- ternary .root.Values.controlPlane.namespace .root.Release.Namespace (eq .name "linkerd-operator-identity") }}
{{- end }}

{{- /* The subjects of a binding: the accounts of the jobs that are enabled, each once. */ -}}
{{- define "linkerd-operator.subjects" -}}
{{- $root := .root }}
{{- $accounts := list }}
{{- range .jobs }}
{{- if dig . "enabled" false $root.Values.jobs }}
{{- $accounts = append $accounts (include "linkerd-operator.account" (dict "root" $root "job" .)) }}
{{- end }}
{{- end }}
{{- range uniq $accounts }}
- kind: ServiceAccount
  name: {{ . }}
  namespace: {{ include "linkerd-operator.namespace" (dict "root" $root "name" .) | quote }}
{{- end }}
{{- end }}

{{- /* Whether clients in the cluster reach discovery, and not only port-forwards. */ -}}
{{- define "linkerd-operator.servesDiscovery" -}}
{{- if and .Values.jobs.destination.enabled .Values.jobs.destination.separate }}true{{ end }}
{{- end }}

{{- /* Whether the operator serves webhooks. */ -}}
{{- define "linkerd-operator.servesWebhooks" -}}
{{- if or .Values.jobs.proxyInjector.enabled .Values.jobs.validation.enabled }}true{{ end }}
{{- end }}

{{- /* The token that a monitor sends, if the metrics need one. */ -}}
{{- define "linkerd-operator.authorization" -}}
{{- if .Values.metrics.authentication -}}
authorization:
  credentials:
    name: linkerd-operator-metrics-reader
    key: token
{{- end }}
{{- end }}

{{- /* The names of the Deployments, as a JSON list. The first one has all jobs that are not separate. */ -}}
{{- define "linkerd-operator.deployments" -}}
{{- $jobs := .Values.jobs }}
{{- $names := list }}
{{- if or (and $jobs.destination.enabled (not $jobs.destination.separate))
  (and $jobs.externalWorkload.enabled (not $jobs.externalWorkload.separate))
  $jobs.linkerdConfig.enabled
  (include "linkerd-operator.servesWebhooks" .) }}
{{- $names = append $names "linkerd-operator" }}
{{- end }}
{{- if and $jobs.destination.enabled $jobs.destination.separate }}
{{- $names = append $names "linkerd-operator-destination" }}
{{- end }}
{{- if and $jobs.externalWorkload.enabled $jobs.externalWorkload.separate }}
{{- $names = append $names "linkerd-operator-external-workload" }}
{{- end }}
{{- if $jobs.identity.enabled }}
{{- $names = append $names "linkerd-operator-identity" }}
{{- end }}
{{- if $jobs.issuerWriter.enabled }}
{{- $names = append $names "linkerd-operator-issuer" }}
{{- end }}
{{- if not $names }}
{{- fail "No job is enabled: set jobs.NAME.enabled of at least one job." }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{- /* The environment of a Deployment's container: the jobs, then the settings. */ -}}
{{- define "linkerd-operator.env" -}}
{{- $values := .root.Values }}
{{- $jobs := $values.jobs }}
{{- $isMain := eq .name "linkerd-operator" }}
{{- $isIdentity := eq .name "linkerd-operator-identity" }}
{{- $hasDestination := and $jobs.destination.enabled (ternary (not $jobs.destination.separate) (eq .name "linkerd-operator-destination") $isMain) }}
{{- $hasExternalWorkload := and $jobs.externalWorkload.enabled (ternary (not $jobs.externalWorkload.separate) (eq .name "linkerd-operator-external-workload") $isMain) }}
{{- $variables := dict }}
{{- if and (ne $values.controlPlane.namespace "linkerd") (not $isIdentity) }}
{{- $_ := set $variables "LINKERD_OPERATOR_CONTROLLER_NAMESPACE" $values.controlPlane.namespace }}
{{- end }}
{{- if not $hasDestination }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_DESTINATION" "false" }}
{{- else if $jobs.destination.multicluster }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_MULTICLUSTER" "true" }}
{{- end }}
{{- if and $hasDestination $jobs.destination.separate }}
{{- $_ := set $variables "LINKERD_OPERATOR_DESTINATION_ADDR" "[::]:8086" }}
{{- end }}
{{- if not $hasExternalWorkload }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_EXTERNAL_WORKLOAD" "false" }}
{{- end }}
{{- if not (and $jobs.linkerdConfig.enabled $isMain) }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_LINKERD_CONFIG" "false" }}
{{- end }}
{{- if eq .name "linkerd-operator-issuer" }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_ISSUER_WRITER" "true" }}
{{- end }}
{{- if and $isMain $jobs.proxyInjector.enabled }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_PROXY_INJECTOR" "true" }}
{{- end }}
{{- if and $isMain $jobs.validation.enabled }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_WEBHOOKS" "true" }}
{{- end }}
{{- if and $isMain (include "linkerd-operator.servesWebhooks" .root) }}
{{- $_ := set $variables "LINKERD_OPERATOR_WEBHOOK_CERTIFICATE_SECRET" "linkerd-operator-webhook" }}
{{- end }}
{{- if $isIdentity }}
{{- $_ := set $variables "LINKERD_OPERATOR_ENABLE_IDENTITY" "true" }}
{{- $_ := set $variables "LINKERD_OPERATOR_IDENTITY_ADDR" "[::]:8080" }}
{{- $_ := set $variables "LINKERD_OPERATOR_IDENTITY_TLS" "true" }}
{{- if $jobs.identity.watch }}
{{- $_ := set $variables "LINKERD_OPERATOR_IDENTITY_WATCH" "true" }}
{{- end }}
{{- else if $values.metrics.authentication }}
{{- $_ := set $variables "LINKERD_OPERATOR_METRICS_AUTHENTICATION" "true" }}
{{- end }}
{{- range $flag, $value := $values.settings }}
{{- $variable := printf "LINKERD_OPERATOR_%s" ($flag | upper | replace "-" "_") }}
{{- /* Helm reads numbers as floating point, and prints large ones with an exponent. */}}
{{- $_ := set $variables $variable (kindIs "float64" $value | ternary (int64 $value) $value | toString) }}
{{- end }}
{{- range $variable, $value := $variables }}
- name: {{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
