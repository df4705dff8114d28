{{- /* Combinations that the schema cannot see, and that would break a promise or never work. */ -}}
{{- define "takeback.validate" -}}
{{- $isGateway := eq .Values.topology "gateway" -}}
{{- $isEmbedded := eq .Values.ledger.type "embedded" -}}
{{- $isLoopback := regexMatch "^https?://(127\\.[0-9.]+|localhost|\\[::1\\])(:|/|$)" .Values.upstream.url -}}

{{- if and $isGateway (not .Values.gateway.container) -}}
{{- fail "topology=gateway needs gateway.container, the gateway's own container; or set topology=standalone and upstream.url" -}}
{{- end -}}
{{- if and $isGateway (not $isLoopback) -}}
{{- fail (printf "topology=gateway needs upstream.url on 127.0.0.1, where nobody else reaches the gateway; it is %s" .Values.upstream.url) -}}
{{- end -}}
{{- if and (not $isGateway) $isLoopback -}}
{{- fail "topology=standalone needs the gateway's address in upstream.url: 127.0.0.1 is the proxy's own pod" -}}
{{- end -}}
{{- if and (not $isGateway) .Values.gateway.container -}}
{{- fail "gateway.container is set, and topology=standalone does not run it; remove it, or set topology=gateway" -}}
{{- end -}}
{{- with .Values.gateway.container -}}
{{- if .ports -}}
{{- fail "gateway.container.ports: in this topology nothing but the proxy may reach the gateway; remove them" -}}
{{- end -}}
{{- if not .name -}}
{{- fail "gateway.container needs a name" -}}
{{- end -}}
{{- if eq .name "takeback" -}}
{{- fail "gateway.container.name is takeback, which is the proxy's" -}}
{{- end -}}
{{- $container := . -}}
{{- range $probe := list "startupProbe" "readinessProbe" "livenessProbe" -}}
{{- $given := get $container $probe | default dict -}}
{{- if or (hasKey $given "httpGet") (hasKey $given "tcpSocket") (hasKey $given "grpc") -}}
{{- fail (printf "gateway.container.%s is called on the pod's address; a gateway that answers there is reached around the proxy: use exec, or leave it to the proxy's probes" $probe) -}}
{{- end -}}
{{- end -}}
{{- range .volumeMounts -}}
{{- if hasPrefix "takeback-" .name -}}
{{- fail (printf "gateway.container mounts %s, which is the proxy's alone" .name) -}}
{{- end -}}
{{- end -}}
{{- range .env -}}
{{- if hasPrefix "TAKEBACK_" .name -}}
{{- fail (printf "gateway.container.env has %s, a setting of the proxy; put it under config or extraEnv" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- range .Values.gateway.volumes -}}
{{- if hasPrefix "takeback-" .name -}}
{{- fail (printf "gateway.volumes has %s, which is a name of the proxy's" .name) -}}
{{- end -}}
{{- end -}}

{{- if and (gt (int .Values.replicas) 1) $isEmbedded -}}
{{- fail "replicas > 1 needs ledger.type=postgres: each replica would have a ledger of its own, and a repeat at another replica would be sent again" -}}
{{- end -}}
{{- if and $isEmbedded (not .Values.ledger.persistence.enabled) (not .Values.ledger.acknowledgeEphemeral) -}}
{{- fail "ledger.persistence.enabled=false loses the ledger with the pod: a write of unknown outcome is forgotten, and its repeat is sent; set ledger.acknowledgeEphemeral=true if you accept that" -}}
{{- end -}}
{{- if and $isEmbedded .Values.ledger.postgres.secretName -}}
{{- fail "ledger.postgres.secretName is set, and ledger.type=embedded does not use it; set ledger.type=postgres" -}}
{{- end -}}
{{- if and (not $isEmbedded) (not .Values.ledger.postgres.secretName) -}}
{{- fail "ledger.type=postgres needs ledger.postgres.secretName: a Secret with the postgres:// address" -}}
{{- end -}}

{{- if and (not .Values.policy.existingConfigMap) (not .Values.policy.files) -}}
{{- fail "no policy: give policy.files or policy.existingConfigMap; nothing is served under no policy" -}}
{{- end -}}
{{- if and .Values.policy.existingConfigMap .Values.policy.files -}}
{{- fail "policy.existingConfigMap and policy.files are both set; give one" -}}
{{- end -}}

{{- if lt (int .Values.drain.graceSeconds) (int .Values.drain.minSeconds) -}}
{{- fail "drain.graceSeconds counts from SIGTERM and includes drain.minSeconds; it must not be less" -}}
{{- end -}}
{{- if eq (int .Values.ports.proxy) (int .Values.ports.telemetry) -}}
{{- fail "ports.proxy and ports.telemetry are the same; an agent would reach telemetry, or nothing" -}}
{{- end -}}

{{- $own := dict "listen" "ports.proxy" "telemetry_listen" "ports.telemetry" "policies" "policy" "ledger" "ledger" "drain" "drain" -}}
{{- range $member, $value := $own -}}
{{- if hasKey $.Values.config $member -}}
{{- fail (printf "config.%s is set by the chart; use %s" $member $value) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ledger.macKey.secretName (hasKey .Values.config "ledger_mac_key_file") -}}
{{- fail "config.ledger_mac_key_file and ledger.macKey.secretName are both set; give one" -}}
{{- end -}}
{{- if hasKey .Values.config "admin_listen" -}}
{{- fail "config.admin_listen is set by the chart: a socket on the ledger's volume, which only the proxy mounts; reach it by kubectl exec" -}}
{{- end -}}
{{- range .Values.secretMounts -}}
{{- if and $.Values.ledger.macKey.secretName (eq .mountPath "/var/run/secrets/takeback/ledger-key") -}}
{{- fail "secretMounts has /var/run/secrets/takeback/ledger-key, where ledger.macKey is mounted" -}}
{{- end -}}
{{- end -}}
{{- range $member := list "url" "headers_file" -}}
{{- if hasKey ($.Values.config.upstream | default dict) $member -}}
{{- fail (printf "config.upstream.%s is set by the chart; use upstream.url or upstream.headersSecret" $member) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if and $.Values.ledger.macKey.secretName (eq .name "TAKEBACK_LEDGER_MAC_KEY_FILE") -}}
{{- fail "extraEnv has TAKEBACK_LEDGER_MAC_KEY_FILE, and ledger.macKey.secretName is set; give one" -}}
{{- end -}}
{{- if has .name (list "TAKEBACK_LISTEN" "TAKEBACK_TELEMETRY_LISTEN" "TAKEBACK_ADMIN_LISTEN" "TAKEBACK_POLICIES" "TAKEBACK_LEDGER" "TAKEBACK_UPSTREAM" "TAKEBACK_UPSTREAM_URL" "TAKEBACK_DRAIN_MIN_MS" "TAKEBACK_DRAIN_GRACE_MS" "TAKEBACK_CONFIG") -}}
{{- fail (printf "extraEnv has %s, which the chart sets in the settings file; use the chart's value" .name) -}}
{{- end -}}
{{- end -}}

{{- if .Values.networkPolicy.enabled -}}
{{- if not .Values.networkPolicy.from -}}
{{- fail "networkPolicy.from is empty: no agent could call the proxy; name the agents, or set networkPolicy.enabled=false" -}}
{{- end -}}
{{- if and (not $isGateway) (not .Values.networkPolicy.to) -}}
{{- fail "networkPolicy.to is empty: the proxy could not reach the gateway; name it, or set networkPolicy.enabled=false" -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled (not .Values.networkPolicy.telemetryFrom) -}}
{{- fail "monitoring.podMonitor.enabled needs networkPolicy.telemetryFrom: Prometheus could not reach the metrics" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.gatewayWrites (not .Values.monitoring.prometheusRule.enabled) -}}
{{- fail "monitoring.gatewayWrites is for TakebackBypassSuspected; set monitoring.prometheusRule.enabled=true" -}}
{{- end -}}
{{- end -}}
