// Serves the example inbox and issues tickets for it. Node.js only, no dependencies.
//
//   FLYBALL_TOKEN=… node server.mjs [--port 8090] [--flyball http://127.0.0.1:8080]
//
// The token is that of the tenant, with the scope channels:subscribe; it never reaches the page. In
// your application the session of the signed-in person names the recipient; here the address does.

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';

const option = (name, usual) => {
  const i = process.argv.indexOf(`--${name}`);
  return i < 0 ? usual : process.argv[i + 1];
};
const flyball = new URL(option('flyball', 'http://127.0.0.1:8080')).href.replace(/\/$/, '');
const port = Number(option('port', '8090'));
const token = process.env.FLYBALL_TOKEN;
if (!token) {
  console.error('server: set FLYBALL_TOKEN to a token of the tenant with the scope channels:subscribe');
  process.exit(78);
}

const FILES = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/style.css': ['style.css', 'text/css; charset=utf-8'],
  '/inbox.js': ['inbox.js', 'text/javascript; charset=utf-8'],
  '/flyball.js': ['../../clients/javascript/flyball.js', 'text/javascript; charset=utf-8'],
};
const CSP = `default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' ${new URL(flyball).origin.replace(/^http/, 'ws')}; base-uri 'none'; form-action 'none'`;

/** Issues a ticket for one connection of one recipient. */
async function issueTicket(recipient) {
  const answer = await fetch(`${flyball}/api/v1/ws/tickets`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify({ recipient }),
  });
  const { ticket, detail } = await answer.json();
  return answer.ok ? [200, ticket] : [502, detail ?? `flyball answered ${answer.status}`];
}

createServer(async (request, response) => {
  // A request for // names no host.
  if (!URL.canParse(request.url, 'http://localhost')) return void response.writeHead(400).end();
  const { pathname, searchParams } = new URL(request.url, 'http://localhost');
  const answer = (status, type, body) => response.writeHead(status, { 'content-type': type, 'content-security-policy': CSP, 'cache-control': 'no-store' }).end(body);
  if (request.method === 'POST' && pathname === '/ticket') {
    const [status, body] = await issueTicket(searchParams.get('recipient') ?? 'user-7')
      .catch(() => [502, `no answer from ${flyball}`]);
    answer(status, 'text/plain; charset=utf-8', body);
  } else if (request.method === 'GET' && FILES[pathname]) {
    const [name, type] = FILES[pathname];
    const text = await readFile(new URL(name, import.meta.url), 'utf8');
    answer(200, type, text.replace('%FLYBALL%', flyball));
  } else answer(404, 'text/plain', 'not found\n');
}).listen(port, '127.0.0.1', () => console.log(`open http://127.0.0.1:${port}/?recipient=user-7`));
