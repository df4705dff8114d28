// The TypeScript SDK, v1 or v2: `node sdk.mjs v1|v2 URL`. MODE of v2: legacy (its default), or modern.
// One JSON line for a step, one for what came of it; see lines.py.
import {createInterface} from 'node:readline';

const [version, url] = process.argv.slice(2);
const {CONFIRM, MODE} = process.env;
const say = line => console.log(JSON.stringify(line));

async function parts() {
  if (version === 'v2') {
    const {Client, StreamableHTTPClientTransport} = await import('@modelcontextprotocol/client');
    return {Client, Transport: StreamableHTTPClientTransport, question: 'elicitation/create'};
  }
  const {Client} = await import('@modelcontextprotocol/sdk/client/index.js');
  const transport = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const {ElicitRequestSchema} = await import('@modelcontextprotocol/sdk/types.js');
  return {Client, Transport: transport.StreamableHTTPClientTransport, question: ElicitRequestSchema};
}

const {Client, Transport, question} = await parts();
const client = new Client({name: 'driver', version: '1'}, {
  capabilities: CONFIRM ? {elicitation: {}} : {},
  ...(version === 'v2' ? {versionNegotiation: {mode: MODE === 'modern' ? {pin: '2026-07-28'} : 'legacy'}} : {}),
});
if (CONFIRM) {
  const answers = CONFIRM.split(',');
  client.setRequestHandler(question, async request => {
    say({asked: request.params.message});
    return answers.shift() === 'accept' ? {action: 'accept', content: {confirm: true}} : {action: 'decline'};
  });
}
const transport = new Transport(new URL(url));
await client.connect(transport);
for await (const line of createInterface({input: process.stdin})) {
  const step = JSON.parse(line);
  try {
    if (step.do === 'list') {
      const {tools} = await client.listTools();
      say({tools: Object.fromEntries(tools.map(tool => [tool.name, tool.inputSchema])), protocol: null});
    } else {
      const result = await client.callTool({
        name: step.name, arguments: step.arguments, ...(step.meta ? {_meta: step.meta} : {}),
      }, ...(version === 'v2' ? [{timeout: 20000}] : [undefined, {timeout: 20000}]));
      const text = result.content.filter(block => block.type === 'text').map(block => block.text);
      say({text: text.join('\n'), is_error: Boolean(result.isError), meta: result._meta ?? null});
    }
  } catch (error) {
    say({failed: `${error.constructor.name}: ${error.message}`});
  }
}
await transport.terminateSession?.();
await client.close();
