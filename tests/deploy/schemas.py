"""Every render against the schemas of three versions of Kubernetes, the rules in it by promtool, and the
operator's objects by the members that they use."""
import pathlib
import subprocess
import sys
import tempfile

import renders

# What monitoring.coreos.com/v1 has, of what is used here.
POD_MONITOR = {"jobLabel", "podMetricsEndpoints", "selector"}
ENDPOINT = {"interval", "path", "port"}


def main():
    bad, count, rules = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for version in renders.VERSIONS:
            files = []
            for name, text in renders.all_renders(version).items():
                path = pathlib.Path(folder) / f"{name}-{version}.yaml"
                path.write_text(text)
                files.append(path)
            command = ["kubernetes-validate", "--strict", "--no-warn", "--quiet", "-k", version, *files]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                bad.append(done.stdout + done.stderr)
            count += len(files)
        for path in files:
            for kube in renders.objects(path.read_text()):
                if kube["kind"] == "PodMonitor":
                    spec = kube["spec"]
                    members = set(spec) - POD_MONITOR
                    members |= {key for each in spec["podMetricsEndpoints"] for key in set(each) - ENDPOINT}
                    if members:
                        bad.append(f"{path.name}: PodMonitor has {sorted(members)}")
                if kube["kind"] == "PrometheusRule":
                    group = pathlib.Path(folder) / "rules.yaml"
                    group.write_text(renders.yaml.safe_dump(kube["spec"]))
                    done = subprocess.run(["promtool", "check", "rules", group], capture_output=True, text=True)
                    rules += 1
                    if done.returncode != 0:
                        bad.append(f"{path.name}: {done.stdout}{done.stderr}")
        # A schema that lets everything pass would say nothing.
        seeded = pathlib.Path(folder) / "seeded.yaml"
        seeded.write_text(files[0].read_text().replace("terminationGracePeriodSeconds", "terminationGraceSeconds"))
        done = subprocess.run(["kubernetes-validate", "--strict", "--no-warn", "--quiet", "-k",
                               renders.VERSIONS[-1], seeded], capture_output=True, text=True)
        if done.returncode == 0:
            bad.append("a misspelt member passes the schema")
    print("\n".join(bad) or f"{count} renders fit their version of Kubernetes; {rules} rule objects load")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
