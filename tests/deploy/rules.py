"""What every render must keep to: the restricted profile, the proxy's own rules, and that nothing but the
proxy can be reached. Each rule is tried on a render that breaks it, so that none passes everything."""
import copy
import sys

import renders

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
           "projected", "secret"}
PROXY = "takeback"
DATA, TELEMETRY = "http-proxy", "http-telemetry"


def restricted(template):
    """The Pod Security Standard `restricted`, as of its version for Kubernetes 1.37."""
    spec = template["spec"]
    own = spec.get("securityContext") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    if own.get("sysctls"):
        yield "sysctls"
    for volume in spec.get("volumes") or []:
        if not set(volume) - {"name"} <= VOLUMES:
            yield f"volume {volume['name']} of another kind"
    for container in renders.containers(spec):
        name, context = container["name"], container.get("securityContext") or {}
        capabilities = context.get("capabilities") or {}
        seccomp = context.get("seccompProfile") or own.get("seccompProfile") or {}
        if context.get("privileged"):
            yield f"{name} is privileged"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may escalate"
        if context.get("runAsNonRoot", own.get("runAsNonRoot")) is not True:
            yield f"{name} may run as root"
        if context.get("runAsUser", own.get("runAsUser")) == 0:
            yield f"{name} is root"
        if "ALL" not in (capabilities.get("drop") or []):
            yield f"{name} keeps capabilities"
        if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f"{name} adds capabilities"
        if seccomp.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no seccomp profile"
        for port in container.get("ports") or []:
            if port.get("hostPort"):
                yield f"{name} has a host port"


def proxy(template):
    """What the proxy's container needs to keep its promises."""
    spec = template["spec"]
    mine = [each for each in renders.containers(spec) if each["name"] == PROXY]
    if len(mine) != 1:
        yield "not one container takeback"
        return
    [own] = mine
    context = own.get("securityContext") or {}
    if own in (spec.get("initContainers") or []) and own.get("restartPolicy") != "Always":
        yield "as an init container it must be restartable"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "its root can be written"
    if spec.get("automountServiceAccountToken") is not False:
        yield "a token of the cluster is mounted"
    if spec.get("enableServiceLinks") is not False:
        yield "a Service could set its variables"
    if own.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        yield "its last words are lost"
    if "memory" not in (own.get("resources", {}).get("limits") or {}):
        yield "no memory limit"
    image = own["image"]
    if "@" not in image and (":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")):
        yield "its image floats"
    for probe, path in (("startupProbe", "/startupz"), ("readinessProbe", "/readyz"),
                        ("livenessProbe", "/livez")):
        call = (own.get(probe) or {}).get("httpGet") or {}
        if (call.get("path"), call.get("port")) != (path, TELEMETRY):
            yield f"{probe} is not {path} on {TELEMETRY}"
    volumes = {each["name"]: each for each in spec.get("volumes") or []}
    for mount in own.get("volumeMounts") or []:
        if mount.get("subPath"):
            yield f"{mount['name']} is a subPath, which receives no updates"
        is_ledger = mount["name"] == "takeback-ledger"
        if not mount.get("readOnly") and not is_ledger:
            yield f"{mount['name']} can be written"
    ledger = volumes.get("takeback-ledger", {})
    if (ledger.get("emptyDir") or {}).get("medium") == "Memory":
        yield "its ledger is memory"
    if "emptyDir" in ledger and not ledger["emptyDir"].get("sizeLimit"):
        yield "its ledger has no limit"


def grace(template, config):
    """The pod's grace covers the proxy's drain, and what stands behind the proxy ends after it."""
    spec, drain = template["spec"], config.get("drain") or {}
    need = drain.get("grace_ms", 25_000) / 1000 + 5
    if spec.get("terminationGracePeriodSeconds", 30) < need:
        yield f"the pod is killed within the {need} s of the drain"
    restartable = [each["name"] for each in spec.get("initContainers") or []]
    for container in spec.get("containers") or []:
        is_gateway = PROXY not in restartable and container["name"] != PROXY
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if is_gateway and sleep < need:
            yield f"{container['name']} ends while the proxy drains"


def reach(template, services, policies, topology):
    """Services, ports, NetworkPolicies and secrets: the proxy's port is the only way in."""
    spec, labels = template["spec"], template["metadata"]["labels"]
    ports = {port.get("name"): each["name"] for each in renders.containers(spec)
             for port in each.get("ports") or []}
    selecting = [each for each in services
                 if set((each["spec"].get("selector") or {}).items()) <= set(labels.items())]
    if topology == "agent":
        if selecting:
            yield "a Service leads into the agent's pod"
        if DATA in ports:
            yield "the data port is published"
    elif not selecting:
        yield "no Service leads to the proxy"
    for service in selecting:
        for port in service["spec"]["ports"]:
            if port.get("targetPort") != DATA:
                yield f"Service {service['metadata']['name']} leads to {port.get('targetPort')}"
        if service["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"Service {service['metadata']['name']} leaves the cluster"
    for name, owner in ports.items():
        if topology == "gateway" and owner != PROXY:
            yield f"{owner} publishes the port {name}"
    for container in renders.containers(spec):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            calls = set(container.get(probe) or {}) & {"httpGet", "tcpSocket", "grpc"}
            if topology == "gateway" and container["name"] != PROXY and calls:
                yield f"{container['name']} is probed on the pod's address"
    for policy in policies:
        chosen = policy["spec"]["podSelector"].get("matchLabels") or {}
        if not set(chosen.items()) <= set(labels.items()):
            continue
        for rule in policy["spec"].get("ingress") or []:
            for port in rule.get("ports") or [{}]:
                if port.get("port") not in (DATA, TELEMETRY):
                    yield f"NetworkPolicy admits to {port.get('port')}"
            if not rule.get("from"):
                yield "NetworkPolicy admits everybody"


def secrets(template):
    """Secrets and the proxy's volumes are the proxy's alone, as mounts and as variables."""
    spec = template["spec"]
    private = {each["name"] for each in spec.get("volumes") or []
               if "secret" in each or each["name"].startswith("takeback-")}
    for container in renders.containers(spec):
        if container["name"] == PROXY:
            continue
        for mount in container.get("volumeMounts") or []:
            if mount["name"] in private:
                yield f"{container['name']} mounts {mount['name']}"
        for variable in container.get("env") or []:
            secret = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
            if str(secret.get("name", "")).startswith("takeback"):
                yield f"{container['name']} has the secret {secret['name']}"
        for source in container.get("envFrom") or []:
            if "secretRef" in source and source["secretRef"]["name"].startswith("takeback"):
                yield f"{container['name']} has a secret of the proxy's"


def mounts(template, claims=()):
    """Each mount has its volume: what a component forgot."""
    spec = template["spec"]
    known = {each["name"] for each in spec.get("volumes") or []} | set(claims)
    for container in renders.containers(spec):
        for mount in container.get("volumeMounts") or []:
            if mount["name"] not in known:
                yield f"{container['name']} mounts {mount['name']}, and there is no such volume"


def config_of(kubes, template):
    """The settings file that the proxy's pod mounts."""
    names = [each["configMap"]["name"] for each in template["spec"]["volumes"]
             if each["name"] == "takeback-config"]
    [text] = [each["data"]["config.yaml"] for each in kubes
              if each["kind"] == "ConfigMap" and each["metadata"]["name"] in names]
    return renders.yaml.safe_load(text)


def topology_of(template, config):
    """What the render is, by what it does and not by its name."""
    if config["listen"].startswith("127.0.0.1"):
        return "agent"
    return "gateway" if len(renders.containers(template["spec"])) > 1 else "standalone"


def faults(kubes):
    """All faults of one render."""
    of = lambda kind: [each for each in kubes if each["kind"] == kind]  # noqa: E731
    workloads = [each for each in kubes if renders.pod(each)]
    if not workloads:
        yield "there is no workload"
    for kube in workloads:
        template = renders.pod(kube)
        config = config_of(kubes, template)
        topology = topology_of(template, config)
        claims = [each["metadata"]["name"] for each in kube["spec"].get("volumeClaimTemplates") or []]
        yield from restricted(template)
        yield from proxy(template)
        yield from grace(template, config)
        yield from reach(template, of("Service"), of("NetworkPolicy"), topology)
        yield from secrets(template)
        yield from mounts(template, claims)
        if topology == "gateway" and not config["upstream"]["url"].startswith("http://127.0.0.1:"):
            yield "the gateway is not on loopback"
        is_alone = "TAKEBACK_LEDGER" not in str(template)
        if is_alone and kube["spec"].get("replicas", 1) > 1:
            yield "replicas with a ledger each"
        is_claimed = any("persistentVolumeClaim" in each for each in template["spec"]["volumes"])
        if is_claimed and kube["spec"].get("strategy", {}).get("type") != "Recreate":
            yield "a second writer is started before the first has ended"


def broken(kubes):
    """Renders with one fault each, and a part of what must be said of it."""
    def change(say, edit):
        other = copy.deepcopy(kubes)
        template = next(renders.pod(each) for each in other if renders.pod(each))
        spec = template["spec"]
        own = next(each for each in renders.containers(spec) if each["name"] == PROXY)
        gateway = next(each for each in renders.containers(spec) if each["name"] != PROXY)
        service = next(each for each in other if each["kind"] == "Service")
        policy = next(each for each in other if each["kind"] == "NetworkPolicy")
        workload = next(each for each in other if renders.pod(each))
        edit({"spec": spec, "own": own, "gateway": gateway, "service": service["spec"],
              "policy": policy["spec"], "workload": workload["spec"], "all": other})
        return say, other

    def of(path, value):
        def edit(parts):
            place = parts
            for step in path[:-1]:
                place = place[step]
            if value is None:
                del place[path[-1]]
            else:
                place[path[-1]] = value
        return edit

    def add(path, value):
        def edit(parts):
            place = parts
            for step in path[:-1]:
                place = place[step]
            place.setdefault(path[-1], []).append(value)
        return edit

    for say, edit in (
        ("hostNetwork", of(("spec", "hostNetwork"), True)),
        ("sysctls", of(("spec", "securityContext", "sysctls"), [{"name": "a", "value": "b"}])),
        ("of another kind", add(("spec", "volumes"), {"name": "x", "hostPath": {"path": "/"}})),
        ("privileged", of(("gateway", "securityContext", "privileged"), True)),
        ("may escalate", of(("own", "securityContext", "allowPrivilegeEscalation"), None)),
        ("may run as root", of(("own", "securityContext", "runAsNonRoot"), False)),
        ("is root", of(("own", "securityContext", "runAsUser"), 0)),
        ("keeps capabilities", of(("own", "securityContext", "capabilities"), {})),
        ("adds capabilities", of(("own", "securityContext", "capabilities", "add"), ["NET_ADMIN"])),
        ("host port", of(("own", "ports", 0, "hostPort"), 80)),
        ("not one container", of(("own", "name"), "other")),
        ("root can be written", of(("own", "securityContext", "readOnlyRootFilesystem"), False)),
        ("token", of(("spec", "automountServiceAccountToken"), None)),
        ("its variables", of(("spec", "enableServiceLinks"), None)),
        ("last words", of(("own", "terminationMessagePolicy"), None)),
        ("memory limit", of(("own", "resources", "limits"), {})),
        ("floats", of(("own", "image"), "takeback:latest")),
        ("livenessProbe is not", of(("own", "livenessProbe", "httpGet", "path"), "/readyz")),
        ("startupProbe is not", of(("own", "startupProbe"), None)),
        ("subPath", of(("own", "volumeMounts", 0, "subPath"), "a.yaml")),
        ("can be written", of(("own", "volumeMounts", 0, "readOnly"), None)),
        ("within the", of(("spec", "terminationGracePeriodSeconds"), 20)),
        ("ends while", of(("gateway", "lifecycle"), None)),
        ("leads to http", of(("service", "ports", 0, "targetPort"), "http")),
        ("leads to 8000", add(("service", "ports"), {"port": 81, "targetPort": 8000})),
        ("leads to http-telemetry", add(("service", "ports"), {"port": 9, "targetPort": TELEMETRY})),
        ("leaves the cluster", of(("service", "type"), "LoadBalancer")),
        ("no Service", of(("service", "selector"), {"app": "other"})),
        ("publishes", add(("gateway", "ports"), {"name": "http", "containerPort": 8000})),
        ("probed on", of(("gateway", "readinessProbe"), {"httpGet": {"port": 8000}})),
        ("admits to", add(("policy", "ingress", 0, "ports"), {"port": 8000})),
        ("admits everybody", of(("policy", "ingress", 0, "from"), [])),
        ("mounts takeback-ledger", add(("gateway", "volumeMounts"), {"name": "takeback-ledger"})),
        ("has the secret", add(("gateway", "env"), {"name": "A", "valueFrom": {
            "secretKeyRef": {"name": "takeback-ledger", "key": "url"}}})),
        ("no such volume", add(("own", "volumeMounts"), {"name": "lost", "readOnly": True})),
        ("replicas", of(("workload", "replicas"), 2)),
        ("second writer", of(("workload", "strategy"), {"type": "RollingUpdate"})),
    ):
        yield change(say, edit)


def main():
    bad = []
    made = renders.all_renders(renders.VERSIONS[1]) | renders.every_ledger()
    topologies = set()
    for name, text in made.items():
        kubes = renders.objects(text)
        for kube in kubes:
            if template := renders.pod(kube):
                topologies.add(topology_of(template, config_of(kubes, template)))
        bad += [f"{name}: {fault}" for fault in faults(kubes)]
    assert topologies == {"agent", "gateway", "standalone"}, topologies
    tried = 0
    for say, kubes in broken(renders.objects(made["kustomize-gateway"])):
        found = list(faults(kubes))
        tried += 1
        if not any(say in fault for fault in found):
            bad.append(f"a render that breaks a rule passes: {say!r} is not in {found}")
    print("\n".join(bad) or f"{len(made)} renders keep the rules; {tried} broken ones are found")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
