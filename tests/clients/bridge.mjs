// A face on streamable HTTP for an MCP server that speaks stdio: `PORT=... node bridge.mjs SERVER.js [ARGUMENT...]`.
// One process of the server for each session; messages pass as they are, between the SDK's own transports.
import {randomUUID} from 'node:crypto';
import {createServer} from 'node:http';
import {StdioClientTransport} from '@modelcontextprotocol/sdk/client/stdio.js';
import {StreamableHTTPServerTransport} from '@modelcontextprotocol/sdk/server/streamableHttp.js';

const args = process.argv.slice(2);
const sessions = new Map();

async function begun() {
  const server = new StdioClientTransport({command: process.execPath, args, env: process.env});
  const face = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: id => sessions.set(id, face),
    onsessionclosed: id => sessions.delete(id),
  });
  face.onmessage = message => server.send(message);
  face.onclose = () => server.close();
  server.onmessage = message => face.send(message);
  await server.start();
  await face.start();
  return face;
}

createServer(async (req, res) => {
  const id = req.headers['mcp-session-id'];
  const face = id === undefined ? await begun() : sessions.get(id);
  if (face === undefined) {
    res.writeHead(404, {'content-type': 'application/json'});
    res.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
    return;
  }
  await face.handleRequest(req, res);
}).listen(Number(process.env.PORT), '127.0.0.1');
