// The inbox of one recipient in a fake gateway.

/** An inbox: ids grow, pages have the newest first. */
export class FakeInbox {
  messages = [];

  constructor(gateway) {
    this.gateway = gateway;
    gateway.onframe = (connection, frame) => this.take(connection, frame);
  }

  get counts() {
    const count = (...states) => this.messages.filter(({ state }) => states.includes(state)).length;
    return { unseen: count('unseen'), unread: count('unseen', 'seen') };
  }

  add(subject, { body = '', created_at = new Date().toISOString() } = {}) {
    const message = { id: String(this.messages.length + 1), subject, body, category: 'product', state: 'unseen', created_at };
    this.messages.push(message);
    this.gateway.publish('$inbox/u1', { type: 'message', message: { ...message }, ...this.counts });
  }

  /** Marks messages as another device does, or as the frame of this one asks. */
  mark({ ids, all_up_to: upTo, as }) {
    const isUpTo = ({ id, created_at: at }) => (/^\d+$/.test(upTo) ? Number(id) <= Number(upTo) : at <= upTo);
    for (const message of this.messages) {
      if (!(ids ? ids.includes(message.id) : isUpTo(message) && (message.state === 'archived') === (as === 'unarchived'))) continue;
      if (as === 'seen') message.state = message.state === 'unseen' ? 'seen' : message.state;
      else message.state = { unread: 'seen', unarchived: 'read' }[as] ?? as;
    }
    this.gateway.publish('$inbox/u1', { type: 'counts', ...this.counts, as, ids: ids ?? null, all_up_to: upTo ?? null });
  }

  take(connection, frame) {
    const { type, ref, cursor, limit = 50, state } = frame;
    if (type === 'inbox_list') {
      const fits = (its) => (state === 'unread' ? ['unseen', 'seen'].includes(its) : state ? its === state : its !== 'archived');
      const found = this.messages.filter(({ id, state: its }) => (!cursor || Number(id) < Number(cursor)) && fits(its)).reverse();
      const messages = found.slice(0, limit);
      const next = found.length > limit ? messages.at(-1).id : null;
      connection.send({ type: 'inbox', messages, next, counts: this.counts, ref });
      return true;
    }
    if (type !== 'inbox_mark') return false;
    if (frame.ids?.length > 1000) {
      connection.send({ type: 'error', code: 'BAD_FRAME', message: 'ids: must be a list of 1 to 1000 ids of messages, each a text', ref });
      return true;
    }
    this.mark(frame);
    connection.send({ type: 'inbox_counts', ...this.counts, ref });
    return true;
  }
}
