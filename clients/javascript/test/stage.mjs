// A gateway with a client of it, with which most tests begin.

import { Flyball } from '../flyball.js';
import { FakeGateway, until } from './fake-gateway.mjs';

/** Replaces the clocks: time passes by `t.mock.timers.tick(ms)` only. */
export function stopClock(t) {
  t.mock.timers.enable({ apis: ['setTimeout', 'Date'], now: 1_800_000_000_000 });
  const now = Date.now.bind(Date);
  t.mock.method(performance, 'now', now);
}

/** Sets the clock of the device, which programs can read, and not the time that passes. */
export const setClock = (t, to_ms) => t.mock.method(Date, 'now', () => to_ms);

/** Starts a gateway and a client of it, which end with the test. */
export async function stage(t, options = {}) {
  const gateway = await FakeGateway.start();
  const states = [];
  const warnings = [];
  const tickets = [];
  const client = new Flyball({
    url: gateway.url,
    ...(options.token ? {} : { ticket: async () => { tickets.push(`ticket-${tickets.length + 1}`); return tickets.at(-1); } }),
    onstate: (state) => states.push(state),
    onwarning: (warning) => warnings.push(warning),
    ...options,
  });
  t.after(async () => {
    client.close();
    await gateway.die();
  });
  const is = (name) => until(`the state ${name}`, () => client.state.name === name && client.state);
  return { gateway, client, states, warnings, tickets, is };
}

/** Notes everything that a subscription tells. */
export function notes() {
  const seen = { messages: [], lost: [], subscribed: [], lags: [], errors: [], data: () => seen.messages.map(({ data }) => data) };
  const handlers = {
    message: (message) => seen.messages.push(message),
    lost: (lost) => seen.lost.push(lost),
    subscribed: (subscribed) => seen.subscribed.push(subscribed),
    lag: (lag) => seen.lags.push(lag),
    error: (error) => seen.errors.push(error),
  };
  return { seen, handlers };
}

export const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
