// A private stack for tests that need a real server: Postgres, Redis, and processes of Flyball.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const READY_MS = 60_000;

/** The program: FLYBALL, or that of the last build. @returns {string | null} */
export function findFlyball() {
  return [process.env.FLYBALL, path.join(ROOT, 'target/debug/flyball'), path.join(ROOT, 'target/release/flyball')]
    .find((place) => place && existsSync(place)) ?? null;
}

/** A port that is free now. */
export async function freePort() {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

/** One process of `flyball serve`. */
class ServerProcess {
  constructor(child, port) {
    this.child = child;
    this.url = `http://127.0.0.1:${port}`;
    this.port = port;
    this.log = '';
    this.ended = once(child, 'exit').then(([code, signal]) => ({ code, signal }));
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => { this.log = (this.log + text).slice(-8_000); });
  }

  async ready() {
    const end = Date.now() + READY_MS;
    for (;;) {
      const answer = await fetch(`${this.url}/readyz`).catch(() => null);
      if (answer?.ok) return this;
      if (this.child.exitCode !== null || Date.now() > end) throw new Error(`flyball serve is not ready:\n${this.log}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  kill(signal) {
    this.child.kill(signal);
    return this.ended;
  }
}

/** Postgres and Redis in a folder that is deleted at the end. */
export class Stack {
  static async start(program, settings, env) {
    const dir = mkdtempSync(path.join(tmpdir(), 'flyball-stack-'));
    const services = spawn(program, ['services', '--dir', path.join(dir, 'services'), '--ephemeral', '--fsync', 'off'], { stdio: ['pipe', 'pipe', 'inherit'] });
    const stack = new Stack(program, dir, services);
    const [line] = await Promise.race([
      once(createInterface({ input: services.stdout }), 'line'),
      once(services, 'exit').then(([code]) => { throw new Error(`flyball services ended with ${code}`); }),
    ]);
    const urls = JSON.parse(line);
    const config = path.join(dir, 'flyball.toml');
    writeFileSync(config, settings);
    stack.env = { ...process.env, DATABASE_URL: urls.database_url, REDIS_URL: urls.redis_url, FLYBALL_CONFIG: config, ...env };
    const { status, stderr } = spawnSync(program, ['migrate'], { env: stack.env, encoding: 'utf8', cwd: dir });
    if (status !== 0) throw new Error(`flyball migrate: ${stderr}`);
    return stack;
  }

  constructor(program, dir, services) {
    this.program = program;
    this.dir = dir;
    this.services = services;
    this.processes = [];
  }

  /** Starts a process; on a port of its own unless one is given. */
  async serve(port = undefined, roles = 'api') {
    const at = port ?? await freePort();
    const child = spawn(this.program, ['serve', '--roles', roles, '--listen', `127.0.0.1:${at}`], { env: this.env, cwd: this.dir, stdio: ['ignore', 'pipe', 'pipe'] });
    const process = new ServerProcess(child, at);
    this.processes.push(process);
    return process.ready();
  }

  async stop() {
    for (const one of this.processes) if (one.child.exitCode === null) one.child.kill('SIGKILL');
    await Promise.all(this.processes.map((one) => one.ended));
    this.services.stdin.end();
    if (this.services.exitCode === null) await once(this.services, 'exit');
    rmSync(this.dir, { recursive: true, force: true });
  }
}
