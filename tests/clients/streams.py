"""A thousand standing streams through a sidecar: what they weigh while they rest, and how long an event takes.

The weight is checked. The times are printed, beside those of a stream without a sidecar in the same run, because
the machine that this runs on has other work.
"""
import asyncio
import os
import pathlib
import re
import resource
import statistics
import sys
import tempfile
import time

import sidecar

STREAMS = 1000
# All of the program is to stay below 64 MiB with them; built for its release it has 16 without.
LIMIT_MIB = 64 - 16
EVENTS = 200
POLICY = """
version: 1
operations:
  notes.read:
    match: { tool: read_note }
    effect: { class: read }
"""
HEAD = b"GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
OPENED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text):
    return f"{len(text):x}\r\n{text}\r\n".encode()


class Upstream:
    """Standing streams, and events on all of them or on one; each event says when it was written."""

    def __init__(self):
        self.writers = []

    async def serve(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OPENED + chunk(": open\n\n"))
        self.writers.append(writer)

    @staticmethod
    def tell(writer):
        data = '{"jsonrpc":"2.0","method":"notifications/message","params":{"at":%d}}' % time.perf_counter_ns()
        writer.write(chunk(f"data: {data}\n\n"))


async def opened(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    await reader.readuntil(b": open\n")
    return reader, writer


async def micros(reader):
    """How long the next event took."""
    said = await reader.readuntil(b"}}\n")
    return (time.perf_counter_ns() - int(re.search(rb'"at":(\d+)', said).group(1))) / 1000


async def timed(upstream, ports):
    """The median and the 99th percentile of what events took, by each way in turn."""
    ways = {}
    for name, port in ports.items():
        reader, writer = await opened(port)
        ways[name] = (reader, writer, upstream.writers[-1], [])
    for _ in range(EVENTS):
        for reader, _, out, taken in ways.values():
            upstream.tell(out)
            taken.append(await micros(reader))
    for name, (_, writer, _, taken) in ways.items():
        writer.close()
        taken.sort()
        print(
            f"-- an event {name}: {statistics.median(taken):.0f} us, 99 of 100 within"
            f" {taken[int(EVENTS * 0.99)]:.0f} us", flush=True,
        )


def rss_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


async def measured(upstream, direct, through, pid):
    before = rss_mib(pid)
    streams = [await opened(through) for _ in range(STREAMS)]
    weight = rss_mib(pid)
    print(f"-- {STREAMS} idle streams: {before:.1f} MiB before, {weight:.1f} MiB with them", flush=True)
    assert len(upstream.writers) == STREAMS, "each has its own stream upstream"
    assert weight - before < LIMIT_MIB, (before, weight)

    for writer in upstream.writers:
        upstream.tell(writer)
    await asyncio.gather(*(micros(reader) for reader, _ in streams))
    await timed(upstream, {"direct": direct, "through": through})
    for _, writer in streams:
        writer.close()


async def main():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A stream is four open files here and two there.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * STREAMS + 200), most))
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, backlog=STREAMS)
    direct = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "policy.yaml").write_text(POLICY)
        started = sidecar.sidecar(folder, direct)
        url, _, home = await asyncio.to_thread(started.__enter__)
        try:
            pid = int(pathlib.Path(home, "pid").read_text())
            await measured(upstream, direct, int(url.rsplit(":", 1)[1]), pid)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    sys.exit(asyncio.run(main()))
