// The page of an inbox: a list that grows at both ends, and its state in words. No framework.

import { Flyball, FlyballError } from './flyball.js';

const PAGE = 20;
/** The most messages that one mark may name. */
const MARK_MOST = 1000;
const recipient = new URLSearchParams(location.search).get('recipient') ?? 'user-7';
const $ = (id) => document.getElementById(id);

/** The messages that are shown, newest first. */
let shown = [];
/** The cursor of the next page; `null` at the end, `undefined` before the first. */
let next;
let filter = '';
let isLoading = false;
/** Grows when the list begins anew, so that late pages of the old one are dropped. */
let generation = 0;

// === The connection ===

const client = new Flyball({ url: document.body.dataset.flyball, ticket: fetchTicket, onstate: showConnection });
client.inbox.onmessage = arrive;
client.inbox.oncounts = showCounts;
// Nobody knows the missed messages, so the list is read anew.
client.inbox.onlost = restart;
client.inbox.onerror = showError;

/** Asks our own server, which knows who is signed in and has the token. */
async function fetchTicket() {
  const answer = await fetch(`/ticket?recipient=${encodeURIComponent(recipient)}`, { method: 'POST' });
  if (answer.status === 401) throw new FlyballError('you are signed out', { permanent: true });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.text();
}

function showConnection(state) {
  const words = {
    connecting: () => 'Connecting …',
    open: () => 'Connected. New messages appear by themselves.',
    waiting: () => (state.offline
      ? 'You are offline. This is the inbox as it was; it goes on when the network is back.'
      : `The connection is lost. Trying again ${state.retryInMs < 1_500 ? 'now' : `in ${Math.round(state.retryInMs / 1_000)} seconds`} …`),
    closed: () => `Not connected: ${state.error?.message ?? 'the page has ended the connection'}. Reload the page to try again.`,
  };
  // A reconnection that takes a moment is no news.
  if (state.name === 'connecting' && $('connection').dataset.state === 'waiting') return;
  $('connection').dataset.state = state.name;
  $('connection').textContent = words[state.name]();
}

// === The list ===

async function restart() {
  generation += 1;
  shown = [];
  next = undefined;
  isLoading = false;
  $('messages').replaceChildren();
  $('empty').hidden = true;
  await load();
}

async function load() {
  if (isLoading || next === null) return;
  isLoading = true;
  const own = generation;
  $('more').hidden = false;
  try {
    const page = await client.inbox.list({ cursor: next, limit: PAGE, state: filter || undefined });
    if (own !== generation) return;
    next = page.next;
    const known = new Set(shown.map(({ id }) => id));
    for (const message of page.messages.filter(({ id }) => !known.has(id))) {
      shown.push(message);
      $('messages').append(rowOf(message));
    }
    showCounts(page.counts);
    showError(null);
    seeVisible();
  } catch (error) {
    if (own === generation) showError(error);
  } finally {
    if (own === generation) {
      isLoading = false;
      $('more').hidden = true;
      showEmpty();
    }
  }
  if (own === generation) watchEnd();
}

/** Loads the next page while the end of the list is near the screen. */
const endWatcher = new IntersectionObserver(([entry]) => { if (entry.isIntersecting) load(); }, { rootMargin: '400px' });

function watchEnd() {
  endWatcher.disconnect();
  const last = $('messages').lastElementChild;
  if (last && next) endWatcher.observe(last);
}

function arrive(message) {
  $('news').textContent = `New message: ${message.subject ?? message.body}`;
  if (filter === 'archived' || shown.some(({ id }) => id === message.id)) return;
  shown.unshift(message);
  $('messages').prepend(rowOf(message));
  showEmpty();
  seeVisible();
}

function rowOf(message) {
  const row = $('message').content.cloneNode(true).firstElementChild;
  row.dataset.id = message.id;
  row.querySelector('h3').textContent = message.subject ?? 'Message';
  row.querySelector('p').textContent = message.body;
  const time = row.querySelector('time');
  const at = new Date(message.created_at);
  time.dateTime = at.toISOString();
  time.textContent = at.toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
  for (const button of row.querySelectorAll('[data-mark]')) button.addEventListener('click', () => mark(message, button.dataset.mark));
  showState(row, message);
  return row;
}

function showState(row, message) {
  const isRead = message.state === 'read';
  row.dataset.state = message.state;
  const read = row.querySelector('.actions').children[0];
  read.dataset.mark = isRead ? 'unread' : 'read';
  read.textContent = isRead ? 'Mark unread' : 'Mark read';
  read.hidden = message.state === 'archived';
  const archive = row.querySelector('.actions').children[1];
  archive.dataset.mark = message.state === 'archived' ? 'unarchived' : 'archived';
  archive.textContent = message.state === 'archived' ? 'Put back' : 'Archive';
}

function showEmpty() {
  $('empty').textContent = { '': 'No messages yet.', unread: 'Everything is read.', archived: 'The archive is empty.' }[filter];
  $('empty').hidden = shown.length > 0 || isLoading;
}

function showCounts({ unseen, unread, marked }) {
  $('unseen').textContent = unseen > 99 ? '99+' : String(unseen);
  $('unseen').hidden = unseen === 0;
  $('bell-words').textContent = unseen === 0 ? 'Inbox, nothing new' : `Inbox, ${unseen} new`;
  $('read-all').disabled = unread === 0;
  document.title = unseen === 0 ? 'Inbox' : `(${unseen}) Inbox`;
  // Several marks at once are not named.
  if (marked === null) restart();
  else if (marked) follow(marked);
}

function showError(error) {
  $('error').hidden = !error;
  $('error').textContent = error ? `This did not work: ${error.message}.` : '';
}

// === Marks ===

/** Shows a mark that was made here or on another device. */
function follow({ ids, allUpTo, as }) {
  // Messages that are put back, and those until a time, may be others than those that are shown.
  if (as === 'unarchived' || (allUpTo && !/^\d+$/.test(allUpTo))) {
    restart();
    return;
  }
  for (const message of [...shown]) {
    const isMeant = ids ? ids.includes(message.id) : BigInt(message.id) <= BigInt(allUpTo);
    if (isMeant && (ids || message.state !== 'archived')) apply(message, as);
  }
  showEmpty();
}

function apply(message, as) {
  const row = [...$('messages').children].find(({ dataset }) => dataset.id === message.id);
  if (as === 'seen') message.state = message.state === 'unseen' ? 'seen' : message.state;
  else message.state = { read: 'read', unread: 'seen', archived: 'archived' }[as] ?? message.state;
  const fits = filter === 'archived' ? message.state === 'archived' : message.state !== 'archived' && !(filter === 'unread' && message.state === 'read');
  if (fits) {
    showState(row, message);
    return;
  }
  const hadFocus = row.contains(document.activeElement);
  const beside = row.nextElementSibling ?? row.previousElementSibling;
  shown = shown.filter((one) => one !== message);
  row.remove();
  watchEnd();
  if (shown.length === 0) load();
  if (hadFocus) (beside ?? $('title')).focus();
}

async function change(wanted) {
  try {
    showCounts({ ...await client.inbox.mark(wanted), marked: wanted });
    showError(null);
  } catch (error) {
    showError(error);
  }
}

const mark = (message, as) => change({ ids: [message.id], as });

/** Messages on an open page are seen; the bell no longer counts them. */
function seeVisible() {
  if (document.hidden || $('inbox').hidden) return;
  const ids = shown.filter(({ state }) => state === 'unseen').map(({ id }) => id);
  // A page that was hidden for days may show thousands.
  for (let n = 0; n < ids.length; n += MARK_MOST) change({ ids: ids.slice(n, n + MARK_MOST), as: 'seen' });
}

document.addEventListener('visibilitychange', seeVisible);
$('read-all').addEventListener('click', async () => {
  // Up to the newest that is shown: one that comes now was not read. Where none is, the server tells
  // the newest, because the clock of the device may be wrong.
  let newest = filter === 'archived' ? undefined : shown[0]?.id;
  try {
    newest ??= (await client.inbox.list({ limit: 1 })).messages[0]?.id;
  } catch (error) {
    showError(error);
  }
  if (newest) await change({ allUpTo: newest, as: 'read' });
});
$('bell').addEventListener('click', () => {
  $('inbox').hidden = !$('inbox').hidden;
  $('bell').setAttribute('aria-expanded', String(!$('inbox').hidden));
  seeVisible();
});
for (const button of document.querySelectorAll('.filters button')) {
  button.addEventListener('click', () => {
    filter = button.dataset.state;
    for (const other of document.querySelectorAll('.filters button')) other.setAttribute('aria-pressed', String(other === button));
    restart();
  });
}

restart();
