{{- /* The metadata of each CRD. Helm keeps the CRDs when the release is uninstalled, because their deletion would delete
every resource. */ -}}
{{- define "linkerd-operator-crds.metadata" -}}
labels:
  {{- $own := dict
    "app.kubernetes.io/name" "linkerd-operator"
    "app.kubernetes.io/part-of" "linkerd-operator"
    "app.kubernetes.io/instance" .Release.Name
    "app.kubernetes.io/version" .Chart.AppVersion
    "app.kubernetes.io/managed-by" .Release.Service
    "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
  {{- toYaml (merge $own (deepCopy (.Values.labels | default dict))) | nindent 2 }}
annotations:
  helm.sh/resource-policy: keep
  {{- with .Values.annotations }}
  {{- toYaml (omit . "helm.sh/resource-policy") | nindent 2 }}
  {{- end }}
{{- end }}
