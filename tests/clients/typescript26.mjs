// Driver on the TypeScript SDK (@modelcontextprotocol/client@2.4.0). Same steps, same lines as client26.py.
//   URL=http://127.0.0.1:3905/mcp MODE=legacy|auto|modern CONFIRM=accept|decline node client26.mjs [list] [tool[=JSON]] ...
// MODE legacy (default of that SDK): initialize and a session; auto: server/discover first; modern: pinned to 2026-07-28.
// Without CONFIRM no elicitation is declared. META (JSON) -> _meta of every call; PROGRESS=1; TIMEOUT seconds (10).
import {Client, StreamableHTTPClientTransport} from '@modelcontextprotocol/client';
const E = process.env, say = o => console.log(JSON.stringify(o));
const steps = process.argv.slice(2); if (!steps.length) steps.push('list', 'get_thing={"id":"t1"}', 'counter_add={"n":1}');
const mode = {legacy: 'legacy', auto: 'auto', modern: {pin: '2026-07-28'}}[E.MODE || 'legacy'];
const timeout = 1000 * (E.TIMEOUT || 10);
const fill = s => Object.fromEntries(Object.entries(s?.properties || {}).map(([k, p]) =>
  [k, (k === "confirm" ? true : p.default) ?? p.enum?.[0] ?? {boolean: true, integer: 1, number: 1, array: []}[p.type] ?? 'x']));
const failed = (step, e) => say({step, error: {type: e.constructor.name, code: e.code, message: String(e.message).slice(0, 300), data: e.data}});
const c = new Client({name: 'client26', version: '1'}, {versionNegotiation: {mode}, capabilities: E.CONFIRM ? {elicitation: {form: {}}} : {}});
if (E.CONFIRM) c.setRequestHandler('elicitation/create', async r => {
  say({step: 'elicited', message: r.params.message, schema: r.params.requestedSchema, answer: E.CONFIRM});
  return E.CONFIRM === 'accept' ? {action: 'accept', content: fill(r.params.requestedSchema)} : {action: 'decline'};
});
try {
  await c.connect(new StreamableHTTPClientTransport(new URL(E.URL || 'http://127.0.0.1:3905/mcp')), {timeout});
  for (const s of steps) {
    const at = s.indexOf('='), name = at < 0 ? s : s.slice(0, at);
    try {
      if (name === 'list') {
        say({step: 'list', tools: (await c.listTools()).tools.map(t => t.name), protocol: c.getNegotiatedProtocolVersion?.()});
        continue;
      }
      const r = await c.callTool({name, arguments: JSON.parse(at < 0 ? '{}' : s.slice(at + 1)), ...(E.META ? {_meta: JSON.parse(E.META)} : {})},
        {timeout, ...(E.PROGRESS ? {onprogress: p => say({step: 'progress', ...p})} : {})});
      say({step: name, text: r.content.filter(b => b.type === 'text').map(b => b.text), isError: !!r.isError, _meta: r._meta ?? null,
        ...(r.structuredContent !== undefined ? {structured: r.structuredContent} : {})});
    } catch (e) { failed(name, e); }
  }
  await c.close();
} catch (e) { failed('session', e); }
process.exit(0);
