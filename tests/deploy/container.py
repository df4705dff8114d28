"""Runs an unpacked image with runc as a pod does, calls it, and ends it. `tests/deploy/image` calls this."""
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

import renders

sys.path.insert(0, str(renders.TOP / "tests/clients"))
import sidecar  # noqa: E402

USER = 65532


def spec(scratch, data, telemetry):
    """The runtime's configuration: what the manifests ask for, in its words."""
    path = scratch / "bundle/config.json"
    given = json.loads(path.read_text())
    process = given["process"]
    assert (process["user"]["uid"], process["args"][0]) == (USER, "/usr/local/bin/takeback"), process
    process["terminal"] = False
    process["noNewPrivileges"] = True
    process["capabilities"] = {kind: [] for kind in ("bounding", "effective", "permitted")}
    process["env"] = [f"TAKEBACK_LISTEN=127.0.0.1:{data}", f"TAKEBACK_TELEMETRY_LISTEN=127.0.0.1:{telemetry}"]
    given["root"]["readonly"] = True
    # The test calls it on loopback.
    given["linux"]["namespaces"] = [each for each in given["linux"]["namespaces"] if each["type"] != "network"]
    for source, target, mode in (("config", "/etc/takeback/config", "ro"), ("policy", "/etc/takeback/policy", "ro"),
                                 ("state", "/var/lib/takeback", "rw")):
        given["mounts"].append({"destination": target, "type": "bind", "source": f"{scratch}/{source}",
                                "options": ["bind", mode]})
        # A root that cannot be written has no place for a mount; a runtime of Kubernetes makes it.
        (scratch / "bundle/rootfs" / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(given))


def main():
    scratch, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    config = (renders.EXAMPLES / "gateway/config.yaml").read_text()
    # What is drained in this test is nothing.
    (scratch / "config/config.yaml").write_text(config.replace("min_ms: 5000", "min_ms: 0"))
    data, telemetry = sidecar.free_port(), sidecar.free_port()
    spec(scratch, data, telemetry)
    log = scratch / "log"
    runc = ["runc", "--root", f"{scratch}/runc"]
    with open(log, "wb") as out:
        child = subprocess.Popen([*runc, "run", "--bundle", f"{scratch}/bundle", name],
                                 stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        def ready():
            assert child.poll() is None, "it ended"
            return (sidecar.get(f"http://127.0.0.1:{telemetry}/readyz") or (0,))[0] == 200

        sidecar.wait("the container is ready", ready)
        call = urllib.request.Request(f"http://127.0.0.1:{data}/elsewhere", data=b"{}", method="POST")
        try:
            urllib.request.urlopen(call, timeout=10)
            raise AssertionError("an undeclared write was sent")
        except urllib.error.HTTPError as error:
            assert error.code == 428, error.code
        assert (scratch / "state/ledger.db").stat().st_uid == USER, "its ledger is on the volume"
        inside = [*runc, "exec", name, "/usr/local/bin/takeback", "ledger", "list",
                  "--config", "/etc/takeback/config/config.yaml"]
        subprocess.run(inside, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*runc, "kill", name, "TERM"], check=True)
        assert child.wait(sidecar.PATIENCE) == 0, child.returncode
    except BaseException:
        print(log.read_text(errors="replace")[-4000:], flush=True)
        raise
    finally:
        subprocess.run([*runc, "delete", "--force", name], stderr=subprocess.DEVNULL)
        if child.poll() is None:
            child.kill()
    print(f"ran as {USER} on a root that cannot be written; SIGTERM ended it with 0")


if __name__ == "__main__":
    assert os.environ.get("XDG_RUNTIME_DIR"), "tests/deploy/image sets a folder for the runtime"
    main()
