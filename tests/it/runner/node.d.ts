// The parts of Node.js that the worker in TypeScript uses, so that its types are checked without a package.
declare module "node:os" {
  export function hostname(): string;
}
declare module "node:process" {
  const process: {
    env: Record<string, string | undefined>;
    pid: number;
    on(signal: string, listener: () => void): void;
  };
  export default process;
}
declare module "node:timers/promises" {
  export function setTimeout(ms: number): Promise<void>;
}

interface AbortSignal {}
declare const AbortSignal: { timeout(ms: number): AbortSignal };
interface Response {
  ok: boolean;
  status: number;
  headers: { get(name: string): string | null };
  json(): Promise<any>;
  text(): Promise<string>;
}
interface RequestInit {
  method: string;
  headers: Record<string, string>;
  body: string;
  signal: AbortSignal;
}
declare function fetch(url: string, init: RequestInit): Promise<Response>;
declare function setInterval(listener: () => void, ms: number): number;
declare function clearInterval(interval: number): void;
declare const console: { log(text: string): void };
