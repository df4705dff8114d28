"""Starts the program on every settings file that is rendered, with the policy beside it, its folders and
ports moved to free ones: it gets ready, shows metrics, has no route but GET on telemetry, and ends with 0."""
import pathlib
import re
import sys
import tempfile
import urllib.error
import urllib.request

import renders

sys.path.insert(0, str(renders.TOP / "tests/clients"))
import sidecar  # noqa: E402

# For a render whose policy is somewhere else.
FALLBACK = (renders.TOP / "deploy/kustomize/overlays/gateway/policy.yaml").read_text()


def settings(kubes):
    """The settings file's text and the policy's files of a render; None if its ledger is a database."""
    [template] = [renders.pod(each) for each in kubes if renders.pod(each)]
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    if "TAKEBACK_LEDGER" in str(template):
        return None
    data = {each["metadata"]["name"]: each["data"] for each in kubes if each["kind"] == "ConfigMap"}
    config = data[volumes["takeback-config"]["configMap"]["name"]]["config.yaml"]
    policy = data.get(volumes["takeback-policy"]["configMap"]["name"], {"policy.yaml": FALLBACK})
    return config, policy


def moved(text, folder):
    """Settings with folders under `folder` and free ports; and the telemetry's port."""
    for place, name in (("/var/lib/takeback", "state"), ("/etc/takeback/policies", "policy"),
                        ("/etc/takeback/policy", "policy"),
                        ("/var/run/secrets/takeback/upstream", "secret"),
                        ("/var/run/secrets/takeback/ledger-key", "secret")):
        text = text.replace(place, f"{folder}/{name}")
    telemetry = sidecar.free_port()
    text = re.sub(r"^telemetry_listen: \S+$", f"telemetry_listen: 127.0.0.1:{telemetry}", text, flags=re.M)
    text = re.sub(r"^listen: \S+$", f"listen: 127.0.0.1:{sidecar.free_port()}", text, flags=re.M)
    # What drains is nothing here.
    return re.sub(r"min_ms: \d+", "min_ms: 0", text), telemetry


def refuses_all_but_get(url):
    """Telemetry can only be read, and only in its four places."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for path in ("/metrics", "/readyz", "/livez", "/startupz"):
            call = urllib.request.Request(url + path, method=method)
            try:
                urllib.request.urlopen(call, timeout=10)
                raise AssertionError(f"{method} {path} is served")
            except urllib.error.HTTPError as error:
                assert error.code == 405, (method, path, error.code)
    for path in ("/", "/drain", "/quitquitquit", "/api/v1/reload", "/debug/pprof", "/env"):
        assert sidecar.get(url + path)[0] == 404, path


def serve(program, config, policy):
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for name in ("state", "policy", "secret"):
            (place / name).mkdir()
        for name, text in policy.items():
            (place / "policy" / name).write_text(text)
        (place / "secret/keys").write_text("0123456789abcdef0123456789abcdef\n")
        (place / "secret/headers").write_text("Authorization: Bearer test\n")
        text, port = moved(config, folder)
        (place / "config.yaml").write_text(text)
        url = f"http://127.0.0.1:{port}"
        command = [program, "run", f"--config={folder}/config.yaml"]
        with sidecar.program(command, {}, f"{folder}/log") as child:
            def ready():
                assert child.poll() is None, "it ended"
                return (sidecar.get(f"{url}/readyz") or (0,))[0] == 200

            sidecar.wait("it is ready", ready)
            assert "takeback_build_info" in sidecar.get(f"{url}/metrics")[1]
            refuses_all_but_get(url)
        assert child.returncode == 0, child.returncode


def main():
    program = sys.argv[1]
    made = {name: settings(renders.objects(text))
            for name, text in renders.all_renders(renders.VERSIONS[1]).items()}
    unit = renders.TOP / "deploy/systemd/takeback.yaml"
    made["systemd"] = (unit.read_text(), {"policy.yaml": FALLBACK})
    started = [name for name, given in made.items() if given]
    assert len(started) >= 5, started
    for name in started:
        print(f"{name} ...", end=" ", flush=True)
        serve(program, *made[name])
        print("serves")


if __name__ == "__main__":
    main()
