"""Starts programs for the script tests: a sidecar and what stands behind it, on free ports, and ends them."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE = 60.0
HERE = pathlib.Path(__file__).resolve().parent


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait(what, level):
    """Waits until level() gives something true, with a bound."""
    start = time.monotonic()
    while time.monotonic() - start < PATIENCE:
        if reached := level():
            return reached
        time.sleep(0.02)
    raise AssertionError(f"waited in vain: {what}")


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def get(url):
    """Status and text of a GET; None while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


@contextlib.contextmanager
def program(arguments, environment, log):
    """Runs a program to the end of the block, then ends it politely."""
    with open(log, "wb") as out:
        child = subprocess.Popen(
            arguments, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield child
        if child.poll() is not None:
            raise AssertionError(f"{arguments[0]} ended early")
    except BaseException:
        print(f"--- {log}\n{pathlib.Path(log).read_text(errors='replace')[-4000:]}\n---", flush=True)
        raise
    finally:
        for _ in range(6):
            # Again where it was not heard: a program under valgrind may be between two waits.
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE / 6)
                break
        else:
            child.kill()
            raise AssertionError(f"{arguments[0]} did not end")


@contextlib.contextmanager
def sidecar(policies, upstream_port):
    """A sidecar before a port, once it is ready: its URL, its telemetry's URL, and its folder."""
    data, telemetry = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "TAKEBACK_LISTEN": f"127.0.0.1:{data}",
            "TAKEBACK_TELEMETRY_LISTEN": f"127.0.0.1:{telemetry}",
            "TAKEBACK_UPSTREAM_URL": f"http://127.0.0.1:{upstream_port}",
            "TAKEBACK_POLICIES": str(policies),
            "TAKEBACK_LEDGER": f"{folder}/ledger.db",
        }
        command = [os.environ["PROGRAM"], "run"]
        with program(command, environment, f"{folder}/log") as child:
            def ready():
                assert child.poll() is None, "the sidecar ended"
                return (get(f"http://127.0.0.1:{telemetry}/readyz") or (0,))[0] == 200

            wait("the sidecar is ready", ready)
            pathlib.Path(folder, "pid").write_text(str(child.pid))
            yield f"http://127.0.0.1:{data}", f"http://127.0.0.1:{telemetry}", folder
