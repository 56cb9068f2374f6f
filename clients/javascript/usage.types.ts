// Compiles if the types fit the way in which programs use the client; it is not run.

import { Flyball, FlyballError, type Position } from './flyball.js';

interface Order {
  total: number;
}

async function usage(saved: Position): Promise<void> {
  const client = new Flyball({
    url: 'https://jobs.example.com',
    ticket: async () => {
      const answer = await fetch('/ticket', { method: 'POST' });
      if (answer.status === 401) throw new FlyballError('signed out', { permanent: true });
      return answer.text();
    },
    onstate: (state) => {
      if (state.name === 'waiting') console.log(state.retryInMs, state.offline);
      if (state.name === 'closed' && state.error) console.log(state.error.code);
    },
    onwarning: ({ code, message }) => console.log(code, message),
  });
  const subscription = client.subscribe<Order>('orders', {
    message: ({ data, position }) => console.log(data.total, position?.offset),
    lost: ({ reason, missed }) => console.log(reason, missed ?? 'some'),
  }, { since: saved });
  await subscription.ready;
  // @ts-expect-error: a program must say what it does about lost messages
  client.subscribe('orders', { message: () => {} });
  for await (const event of client.subscribe<Order>('more')) {
    // @ts-expect-error: the event may be that messages were lost
    console.log(event.data);
    if (event.type === 'lost') break;
    console.log(event.data.total);
  }
  const { id } = await client.publish('orders', { total: 3 });
  client.inbox.onmessage = (message) => console.log(message.id, id);
  const page = await client.inbox.list({ limit: 20, state: 'unread' });
  const counts = await client.inbox.mark({ ids: page.messages.map((message) => message.id), as: 'read' });
  console.log(counts.unseen);
  // @ts-expect-error: either some or all
  await client.inbox.mark({ as: 'read' });
  client.unsubscribe('orders');
  client.close();
}

void usage;
