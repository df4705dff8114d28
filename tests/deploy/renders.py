"""Renders everything under deploy/: the chart with each of its value files, and the kustomize overlays."""
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

TOP = pathlib.Path(__file__).resolve().parents[2]
CHART = TOP / "deploy/helm/takeback"
EXAMPLES = TOP / "deploy/kustomize/overlays"
GOLDENS = TOP / "tests/golden/deploy"
TOOLS = TOP / ".tools/deploy/bin"

# The oldest that the chart accepts with a preStop sleep switched on, one between, and the newest known.
VERSIONS = ("1.30", "1.33", "1.37")


def helm(*arguments):
    """Runs helm; the completed process."""
    return subprocess.run([TOOLS / "helm", *map(str, arguments)], capture_output=True, text=True)


def chart(values=None, sets=(), version=VERSIONS[1]):
    """A render of the chart as a release `t` in the namespace `agents`; the completed process."""
    given = ["--values", values] if values else []
    more = [part for value in sets for part in ("--set-json", value)]
    return helm("template", "t", CHART, "--namespace", "agents", "--kube-version", version + ".0",
                *given, *more)


def ok(process):
    """What a process wrote, if it worked."""
    assert process.returncode == 0, process.stderr
    return process.stdout


def values():
    return sorted((CHART / "ci").glob("*-values.yaml"))


def kustomize(path):
    command = [TOOLS / "kubectl", "kustomize", path]
    return ok(subprocess.run(command, capture_output=True, text=True))


def all_renders(version):
    """Every render by name, as text."""
    made = {}
    for path in values():
        made["chart-" + path.name.removesuffix("-values.yaml")] = ok(chart(path, version=version))
    for path in sorted(EXAMPLES.iterdir()):
        made["kustomize-" + path.name] = kustomize(path)
    return made


def every_ledger():
    """Each example with each of the ledgers, by name, as text."""
    made = {}
    # Beside the tools, because kustomize follows relative paths alone.
    with tempfile.TemporaryDirectory(dir=TOOLS.parent) as folder:
        for path in sorted(EXAMPLES.iterdir()):
            for ledger in ("ephemeral", "postgres", "volume"):
                copy = pathlib.Path(folder) / f"{path.name}-{ledger}"
                shutil.copytree(path, copy)
                file = copy / "kustomization.yaml"
                text = file.read_text().replace("../../", "../../../../deploy/kustomize/")
                text, count = re.subn("components/ledger-[a-z]+", f"components/ledger-{ledger}", text)
                assert count == 1, f"{path.name} takes one ledger"
                file.write_text(text)
                made[copy.name] = kustomize(copy)
    return made


def objects(text):
    return [each for each in yaml.safe_load_all(text) if each]


def pod(kube):
    """The pod's template of a workload, or None."""
    match kube["kind"]:
        case "Deployment" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicaSet":
            return kube["spec"]["template"]
        case "Pod":
            return kube
    return None


def containers(spec):
    return (spec.get("initContainers") or []) + (spec.get("containers") or [])
