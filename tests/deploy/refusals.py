"""Values that the chart must refuse, and what it must say: of a refusal, and after an installation."""
import sys
import tempfile

import renders

# On top of which value file, what is set, and what is said.
REFUSED = [
    (None, [], "topology=gateway needs gateway.container"),
    ("gateway", ['typo=1'], "typo"),
    ("gateway", ['topology="agent"'], "topology"),
    ("gateway", ['image.tag="latest"'], "tag"),
    ("gateway", ['image.digest="sha256:12"'], "digest"),
    ("gateway", ['ports.proxy=80'], "proxy"),
    ("gateway", ['ports.telemetry=8080'], "are the same"),
    ("gateway", ['replicas=2'], "replicas > 1 needs ledger.type=postgres"),
    ("gateway", ['ledger.type="redis"'], "type"),
    ("gateway", ['ledger.type="postgres"'], "needs ledger.postgres.secretName"),
    ("gateway", ['ledger.postgres.secretName="x"'], "ledger.type=embedded does not use it"),
    ("gateway", ['ledger.persistence.enabled=false'], "acknowledgeEphemeral=true"),
    ("gateway", ['ledger.persistence.accessMode="ReadWriteMany"'], "accessMode"),
    ("gateway", ['upstream.url="http://gateway.other.svc"'], "needs upstream.url on 127.0.0.1"),
    ("gateway", ['upstream.url="http://127.0.0.1.evil.example"'], "needs upstream.url on 127.0.0.1"),
    ("gateway", ['upstream.url="http://user@127.0.0.1:8000"'], "url"),
    ("gateway", ['gateway.container.ports=[{"containerPort":8000}]'], "remove them"),
    ("gateway", ['gateway.container.name="takeback"'], "which is the proxy's"),
    ("gateway", ['gateway.container.name=""'], "needs a name"),
    ("gateway", ['gateway.container.readinessProbe={"httpGet":{"port":8000}}'], "around the proxy"),
    ("gateway", ['gateway.container.livenessProbe={"tcpSocket":{"port":8000}}'], "around the proxy"),
    ("gateway", ['gateway.container.volumeMounts=[{"name":"takeback-ledger","mountPath":"/l"}]'],
     "the proxy's alone"),
    ("gateway", ['gateway.volumes=[{"name":"takeback-x","emptyDir":{}}]'], "a name of the proxy's"),
    ("gateway", ['gateway.container.env=[{"name":"TAKEBACK_MODE","value":"observe"}]'],
     "a setting of the proxy"),
    ("gateway", ['policy.files=null'], "nothing is served under no policy"),
    ("gateway", ['policy.existingConfigMap="x"'], "are both set"),
    ("gateway", ['policy.files={"a.txt":"version: 1"}'], "a.txt"),
    ("gateway", ['drain.graceSeconds=1'], "includes drain.minSeconds"),
    ("gateway", ['config={"listen":"0.0.0.0:1"}'], "config.listen is set by the chart"),
    ("gateway", ['config={"admin_listen":"0.0.0.0:1"}'], "config.admin_listen is set by the chart"),
    ("gateway", ['config={"ledger":"/tmp/l"}'], "config.ledger is set by the chart"),
    ("gateway", ['config={"upstream":{"url":"http://x"}}'], "config.upstream.url is set"),
    ("gateway", ['ledger.macKey={"secretName":"k"}', 'config={"ledger_mac_key_file":"/k"}'],
     "ledger.macKey.secretName are both set"),
    ("gateway", ['ledger.macKey.secretName="K!"'], "secretName"),
    ("gateway", ['ledger.macKey={"secretName":"k"}',
                 'extraEnv=[{"name":"TAKEBACK_LEDGER_MAC_KEY_FILE","value":"/k"}]'], "give one"),
    ("gateway", ['ledger.macKey={"secretName":"k"}',
                 'secretMounts=[{"secretName":"a","mountPath":"/var/run/secrets/takeback/ledger-key"}]'],
     "where ledger.macKey is mounted"),
    ("gateway", ['extraEnv=[{"name":"TAKEBACK_LISTEN","value":"0.0.0.0:1"}]'], "TAKEBACK_LISTEN"),
    ("gateway", ['secretMounts=[{"secretName":"a","mountPath":"/var/lib/takeback"}]'], "mountPath"),
    ("gateway", ['networkPolicy.from=[]'], "no agent could call the proxy"),
    ("gateway", ['monitoring.podMonitor.enabled=true'], "Prometheus could not reach"),
    ("gateway", ['monitoring.gatewayWrites="sum(x)"'], "prometheusRule.enabled=true"),
    ("standalone", ['upstream.url="http://127.0.0.1:8000"'], "is the proxy's own pod"),
    ("standalone", ['gateway.container={"name":"g"}'], "does not run it"),
    ("standalone", ['networkPolicy.to=[]'], "the proxy could not reach the gateway"),
    ("replicas", ['ledger.postgres.secretName=""'], "needs ledger.postgres.secretName"),
]


# On top of which value file, what is set, and what the notes say of the way around.
NOTES = [
    ("gateway", [], "is closed while the gateway listens on 127.0.0.1"),
    ("gateway", [], "Set monitoring.gatewayWrites"),
    ("gateway", ['networkPolicy.enabled=false'], "anything in the cluster may call"),
    ("gateway-full", [], "goes with the pod, as acknowledged"),
    ("standalone", [], "THE WAY AROUND THE PROXY IS OPEN until"),
    ("standalone", [], "(upstream.headersSecret, set)"),
    ("standalone", ['upstream.headersSecret.name=""'], "(upstream.headersSecret, NOT SET)"),
    ("gateway", [], "The ledger's chain has no key"),
    ("gateway", ['config={"tls":{"cert_file":"x"}}'], "Agents call https://"),
    ("gateway", [], "is cut by it becomes unknown"),
]


def notes(name, sets):
    more = [part for value in sets for part in ("--set-json", value)]
    return renders.ok(renders.helm("install", "t", renders.CHART, "--dry-run=client", "--values",
                                   renders.CHART / f"ci/{name}-values.yaml", *more))


def main():
    bad = [f"the notes of {name}, {sets} do not say {say!r}"
           for name, sets, say in NOTES if say not in notes(name, sets)]
    for name, sets, say in REFUSED:
        path = renders.CHART / f"ci/{name}-values.yaml" if name else None
        done = renders.chart(path, sets)
        if done.returncode == 0:
            bad.append(f"accepted on {name}: {sets}")
        elif say not in done.stderr:
            bad.append(f"on {name}, {sets}: {say!r} is not in {done.stderr}")
    old = renders.chart(renders.CHART / "ci/gateway-values.yaml", version="1.28")
    if old.returncode == 0 or "kubeVersion" not in old.stderr:
        bad.append("accepted for Kubernetes 1.28")
    # A setting that the chart does not know by name gets into the file.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as more:
        more.write((renders.CHART / "ci/gateway-values.yaml").read_text())
        more.write("config: {tls: {cert_file: /var/run/secrets/takeback/tls/tls.crt}}\n")
        more.flush()
        if "cert_file: /var/run/secrets/takeback/tls/tls.crt" not in renders.ok(renders.chart(more.name)):
            bad.append("a setting of `config` is lost")
    print("\n".join(bad) or f"{len(REFUSED) + 1} combinations are refused, each with its reason")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
