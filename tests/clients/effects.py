"""The fixture's tools with effects through a sidecar: each is gated, keyed, recorded and reported rightly, and what
a client sees agrees with what the fixture says that it did."""
import json
import os
import subprocess
import urllib.request

import sidecar
from driver import MODULES

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"


class Client:
    """A program of an SDK that makes calls and says what it saw, one line for each step."""

    def __init__(self, url, command, mode):
        self.url, self.command, self.mode = url, command, mode

    def calls(self, *calls, **environment):
        """For each call, a tool and its arguments: the lines before its answer, and the answer."""
        extra = {"URL": self.url, "MODE": self.mode, "CONFIRM": "accept", "NODE_PATH": str(MODULES)}
        done = subprocess.run(
            [*self.command, *(f"{tool}={json.dumps(arguments)}" for tool, arguments in calls)],
            env={**os.environ, **extra, **environment}, timeout=120, capture_output=True, text=True,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        seen, before = [], []
        for line in map(json.loads, done.stdout.splitlines()):
            if line["step"] in ("elicited", "progress"):
                before.append(line)
            else:
                seen.append((before, line))
                before = []
        assert [line["step"] for _, line in seen] == [tool for tool, _ in calls], seen
        return seen


class Fixture:
    """What the fixture itself says, past the sidecar."""

    def __init__(self, port):
        self.port = port

    def door(self, name):
        status, text = sidecar.get(f"http://127.0.0.1:{self.port}/{name}")
        assert status == 200, (status, text)
        return json.loads(text)

    def performed(self, tool):
        return self.door("effects")["performed"].get(tool, 0)

    def arrived(self, tool):
        return self.door("counts").get(tool, 0)


def accepted(line):
    assert "error" not in line and not line.get("isError"), line
    report = line["_meta"]["effect"]
    assert report["outcome"] == "accepted" and report["entry"], line
    return report


def refused(line, code):
    """A refusal as a model reads it: nothing of this call was sent."""
    assert "error" not in line and line["isError"], line
    error = json.loads("".join(line["text"]))["error"]
    assert error["code"] == code and error["message"].startswith("Nothing was sent. "), line
    assert line["_meta"]["effect"]["refused"] == code, line
    return error


def confirmed_and_keyed(client, fixture, name, thing):
    mails = [("send_mail", {"to": name, "body": "1"}), ("send_mail_mirrored", {"to": name, "body": "2"})]
    (asked, deleted), (theirs, done), *sent, (_, read) = client.calls(
        ("delete_thing", {"id": thing}), ("asks_first", {"what": name}), *mails, ("counter_get", {}),
    )

    assert any(thing in line["message"] and "thing.delete" in line["message"] for line in asked), asked
    assert accepted(deleted)["class"] == "irreversible", deleted
    assert thing not in fixture.door("effects")["things"]

    assert [line["step"] for line in theirs] == ["elicited"], "only the upstream's own question"
    assert "Really do" in theirs[0]["message"], theirs
    accepted(done)

    for (_, arguments), (_, line) in zip(mails, sent):
        key = accepted(line)["idempotency_key"]
        found = [mail for mail in fixture.door("effects")["mails"] if mail["idempotency_key"] == key]
        assert [(mail["to"], mail["body"]) for mail in found] == [(name, arguments["body"])], found

    assert read["_meta"]["effect"]["class"] == "read" and "entry" not in read["_meta"]["effect"], read


def repeated(client, fixture, number):
    """A compensable write says how it is taken back; the same again is asked about, or is the same answer."""
    arguments = {"n": 100 + number}
    before = fixture.performed("counter_add")
    (asked, added), (_, again) = client.calls(("counter_add", arguments), ("counter_add", arguments))
    assert not asked, asked
    undo = accepted(added)["undo"]
    assert (undo["kind"], undo["operation"], undo["tool"]) == ("compensate", "counter.add_typed", "counter_add_typed")
    assert undo["arguments"] == arguments, undo
    report = accepted(again)
    made = 1 if report.get("replayed") else 2
    assert report.get("replayed") or report["repeats"] == added["_meta"]["effect"]["entry"], again
    assert fixture.performed("counter_add") == before + made, again


def lost(client, fixture, name):
    """An answer that is lost is unknown at once, in words; the same call is not made again."""
    legacy = client.mode == "legacy"
    ways = ["close", "reset", "json"] + ([] if legacy else ["stream"])
    before = fixture.performed("lost_answer")
    calls = [("lost_answer", {"how": way, "for": name}) for way in ways for _ in range(2)]
    if legacy:
        # The stream is cut after an event with an id, and the client comes back for the rest.
        calls.append(("lost_answer", {"how": "stream", "kept": True, "for": name}))
    seen = client.calls(*calls)
    if legacy:
        accepted(seen.pop()[1])
    for (_, unknown), (_, again) in zip(seen[::2], seen[1::2]):
        assert unknown["isError"], unknown
        report, text = unknown["_meta"]["effect"], "".join(unknown["text"])
        assert report["outcome"] == "unknown" and report["undo"] is None, unknown
        assert report["entry"] in text and "Do not repeat it" in text, text
        assert report["entry"] in json.dumps(refused(again, "outcome_unknown")), again
    assert fixture.performed("lost_answer") == before + len(ways) + legacy


def slow(client, fixture, name):
    """A client that gives up gets no second effect by asking again."""
    arguments = {"ms": 2000, "at": "start", "for": name}
    before = fixture.performed("slow_write")
    [(_, gave_up)] = client.calls(("slow_write", arguments), TIMEOUT="1")
    assert "error" in gave_up, gave_up
    (_, done), (_, again) = client.calls(("slow_write", {"ms": 100, "for": name}), ("slow_write", arguments))
    accepted(done)
    if again["isError"]:
        code = again["_meta"]["effect"]["refused"]
        assert code in ("in_flight", "outcome_unknown"), again
        refused(again, code)
    else:
        assert accepted(again)["replayed"], again
    assert fixture.performed("slow_write") == before + 2


def progress(client, name):
    [(seen, done)] = client.calls(("sse_progress_write", {"steps": 3, "ms": 20, "for": name}), PROGRESS="1")
    assert [line["progress"] for line in seen] == [1, 2, 3], seen
    accepted(done)


class Wire:
    """Messages by hand, for what no SDK speaks yet: tasks."""

    def __init__(self, url, modern):
        self.url, self.modern, self.next, self.session = url, modern, 0, None
        if not modern:
            self.ask("initialize", {
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "wire", "version": "1"},
            })
            self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    def post(self, message, headers):
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
        if self.session:
            headers |= {"mcp-session-id": self.session, "mcp-protocol-version": "2025-11-25"}
        request = urllib.request.Request(self.url, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            self.session = answer.headers.get("mcp-session-id") or self.session
            return answer.read().decode()

    def ask(self, method, params):
        """The result of a request."""
        self.next += 1
        headers = {}
        if self.modern:
            params = {**params, "_meta": {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
                "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
            }}
            headers = {
                "mcp-protocol-version": MODERN, "mcp-method": method,
                "mcp-name": params.get("name") or params.get("taskId"),
            }
        text = self.post({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}, headers)
        if not text.lstrip().startswith("{"):
            lines = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()]
            text = next(line for line in lines if '"result"' in line or '"error"' in line)
        return json.loads(text)["result"]


def tasks(url, fixture, modern):
    """A handle is no outcome; the entry is finished by what the task gives."""
    wire = Wire(url, modern)
    arguments = {"n": 7, "ms": 200, "for": "modern" if modern else "legacy"}
    before = fixture.performed("task_write")
    params = {"name": "task_write", "arguments": arguments, **({} if modern else {"task": {"ttl": 60000}})}
    made = wire.ask("tools/call", params)
    handle = made if modern else made["task"]
    report = made["_meta"]["effect"]
    assert handle["taskId"] and report["entry"] and report["undo"] is None, made
    assert report.get("outcome") != "accepted", made

    def done():
        state = wire.ask("tasks/get", {"taskId": handle["taskId"]})
        return state["status"] == "completed" and state

    state = sidecar.wait("the task is done", done)
    result = state["result"] if modern else wire.ask("tasks/result", {"taskId": handle["taskId"]})
    final = result["_meta"]["effect"]
    assert final["outcome"] == "accepted" and final["entry"] == report["entry"], result
    assert fixture.performed("task_write") == before + 1


def told(url, port, clients):
    """Each client in each era, then tasks in both. `clients` are names, commands and modes."""
    fixture = Fixture(port)
    for number, (name, command, mode) in enumerate(clients, start=1):
        client = Client(url, command, mode)
        confirmed_and_keyed(client, fixture, name, f"t{number}")
        repeated(client, fixture, number)
        lost(client, fixture, name)
        slow(client, fixture, name)
        progress(client, name)
        print(f"-- {name}: each effect gated, reported and made once", flush=True)
    for modern in [False, True]:
        tasks(url, fixture, modern)
    print("-- tasks of both eras: finished by what they gave", flush=True)
