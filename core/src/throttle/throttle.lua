-- Flyball's throttles: the law of the bucket for Redis 6 or newer and Valkey.
--
-- It is the law of bucket.rs, holds.rs, learned.rs, quota_window.rs, rolling_window.rs and
-- serve.rs, operation by operation; docs/reference/throttle-protocol.md describes the calls.
--
-- Every key is passed in KEYS. ARGV[1] is the verb, ARGV[2] the time in unix microseconds for
-- tests, empty to use the server's clock. Numbers that must not lose digits are passed as text,
-- whole ones as integers. The law runs once for a hundred lanes, thousands of times a second: it
-- reads and writes only what it needs, and passes numbers to commands as they are, because Redis
-- writes them with all their digits.
--
-- This text is a library of functions, which Redis 7 runs once, when it is loaded, and a script,
-- which an older Redis runs with each call. To make all the functions below costs 20 microseconds,
-- as much as a call itself.

local IS_LIBRARY = redis.register_function ~= nil
local script_keys, script_args
if not IS_LIBRARY then script_keys, script_args = KEYS, ARGV end

-- The call in progress.
local KEYS, ARGV, verb, now, now_ms, shortest_ttl_ms

local function begin(keys, args)
  KEYS, ARGV, verb = keys, args, args[1]
  if args[2] == '' then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
    shortest_ttl_ms = 1
  else
    now = tonumber(args[2])
    -- With a clock of the tests no key may expire by the real one.
    shortest_ttl_ms = 3600000
  end
  now_ms = math.floor(now / 1000)
end

if not IS_LIBRARY then begin(script_keys, script_args) end

local STOPPED_WAIT, CROWDED_WAIT = 500000, 50000
local MAX_WAIT = 1e15
local SLACK, SPACED, LATE = 0.5, 20000, 10000
local WEEK, DAY, HOUR = 604800, 86400, 3600
local LONGEST_DEBT, MAX_HOLDERS = 300e6, 1000
local MAX_COST, PLAIN_COST, COST_WINDOWS, COST_SECONDS, FEW_TOKENS = 1e9, 1000, 10, 3600, 10
local LONGEST_FIELD, LONGEST_NAME, LONGEST_WHY = 64, 128, 1000
local CUT, NEAR_CUT, NEAR, USED, LATELY, AHEAD, WANTED_AHEAD = 0.3, 0.1, 0.25, 0.65, 0.25, 1.25, 2
local SURE_CUT, SURE, STEEPNESS, FOUND, ROW_CUT, LEAST_PART = 0.03, 0.05, 0.1, 0.985, 0.5, 0.1
local COUNTED_ROW, COUNTED, COUNTED_TOKENS, ROUNDED_UP = 3, 10e6, 20, 500000
local GUESS, GUESS_USED, GUESS_FOUND, DOUBLING_S, DOUBLING_TOKENS, GUESS_DOUBLINGS = 0, 0.4, 0.8, 4, 4, 40
local REST, SLOWEST = 60e6, 1 / 60
local PERIOD_S, PERIOD_TOKENS, OPEN_CREDIT = 20, 20, 16
local PATIENCE, KEEP, KEEP_PERIODS = 30e6, 600e6, 6
local EXACT_GRANTS, SLACK_TOKENS, WINDOWS_MAX, WINDOW_TOKENS, WINDOW_SPAN = 256, 1e-9, 4, 9999999, 9999999
local WINDOW_BYTES, GRANT_BYTES = 24, 16
local KNOB_FIELDS, MOST_REMEMBERED, LONGEST_DUMP = 24, 4000, 4000
local BREADTH = { key = 0, throttle = 1, account = 2 }

local function text(number) return string.format('%.17g', number) end

-- Returns a number in its range, or nil for anything else: hex, inf, nan, words.
local function number(value, low, high, zero, unlimited)
  if not value or #value > LONGEST_FIELD or not string.find(value, '^[%s%d.eE+-]+$') then return nil end
  local n = tonumber(value)
  if n == 0 then n = 0 end
  if n and ((n >= low and n <= high) or (zero and n == 0) or (unlimited and n == -1)) then return n end
  return nil
end

-- Returns a finite number, or nil for anything else.
local function finite(value)
  local n = value and tonumber(value)
  if n and n - n == 0 then return n end
  return nil
end

-- Returns the cost in an argument, clamped as sane_cost does: the caller may be any program.
local function cost_of(at) return math.min(math.max(finite(ARGV[at]) or 1, 1e-9), MAX_COST) end

-- Returns the tokens in an argument, 0 for nonsense.
local function tokens_of(at) return math.min(math.max(finite(ARGV[at]) or 0, -MAX_COST), MAX_COST) end

-- Returns a concurrency limit, below 0 for none; nonsense lets one job run.
local function limit_of(value)
  if not value then return -1 end
  local n = number(value, 0, 1e6, true, true)
  return n and math.floor(n) == n and n or 1
end

-- Returns the slower of two rates; below 0 is unlimited.
local function slower(a, b)
  if a < 0 then return b end
  if b < 0 then return a end
  return math.min(a, b)
end

-- Returns the name of a throttle, or the empty text for an invalid name.
local function name_of(text)
  if text and #text <= LONGEST_NAME and string.find(text, '^[A-Za-z0-9._/:{}-]+$') then return text end
  return ''
end

-- Returns the limits of rolling windows, `10/1 1000/3600` as tokens and seconds, or nil for
-- anything else; and the rate that they allow in the long run, below 0 for none.
local NO_WINDOWS = {}
local function windows_of(value)
  if not value then return NO_WINDOWS, -1 end
  local limits, rps = {}, -1
  for word in string.gmatch(value, '[^ \t\n\r\v\f]+') do
    local tokens, span = string.match(word, '^([%d.]+)/([%d.]+)$')
    tokens, span = tonumber(tokens or ''), tonumber(span or '')
    if not tokens or not span or tokens < 1 or tokens > WINDOW_TOKENS or span < 0.001 or span > WINDOW_SPAN then return nil end
    limits[#limits + 1] = { tokens = tokens, span = span, us = math.floor(span * 1e6 + 0.5) }
    rps = slower(rps, tokens / span)
  end
  if #limits > WINDOWS_MAX then return nil end
  return limits, rps
end

-- An open window has a limit and a span, the tokens and the number of its grants, and the grants,
-- each a time and tokens, oldest first. Those of earlier calls stay packed as doubles in `text`, from
-- the byte `from` to the byte `to`, because a call needs the first and the last of hundreds, and a
-- text of hundreds costs as much to make as a command. At most one follows them that is not packed
-- yet: `last` tokens at `last_at`.

-- Returns the span, the tokens and the number of grants of the packed window at `at`, or nil for
-- anything else, which only a person can have written.
local function packed_window(value, at, length)
  if length - at + 1 < WINDOW_BYTES then return nil end
  local span, used, grants = struct.unpack('<ddd', value, at)
  local is_sound = used >= 0 and (grants > 0 or used == 0 and grants == 0) and grants % 1 == 0
  if is_sound and grants * GRANT_BYTES <= length - at + 1 - WINDOW_BYTES then return span, used, grants end
  return nil
end

-- Returns the windows that a text remembers: for each its span, the tokens and the number of its
-- grants, and then the grants.
local function parse_grants(value)
  local all, at, length = {}, 1, value and #value or 0
  while at <= length do
    local span, used, grants = packed_window(value, at, length)
    if not span then return NO_WINDOWS end
    local from = at + WINDOW_BYTES
    at = from + grants * GRANT_BYTES
    all[#all + 1] = { span = span, used = used, grants = grants, text = value, from = from, to = at - 1, last_at = false, last = 0 }
  end
  return all
end

-- Returns the grants of a window as two texts, the second for the last one.
local function packed_grants(w)
  local earlier = w.to >= w.from and string.sub(w.text, w.from, w.to) or ''
  return earlier, w.last_at and struct.pack('<dd', w.last_at, w.last) or ''
end

-- Returns the text that remembers windows, behind `before`.
local function grants_text(open, before)
  local all = before
  for i = 1, #open do
    local w = open[i]
    local earlier, last = packed_grants(w)
    all = all .. struct.pack('<ddd', w.span, w.used, w.grants) .. earlier .. last
  end
  return all
end

-- Returns the time and the tokens of the i-th grant.
local function grant(w, i)
  if w.last_at and i == w.grants then return w.last_at, w.last end
  local at, tokens = struct.unpack('<dd', w.text, w.from + (i - 1) * GRANT_BYTES)
  return at, tokens
end

local function forget_last(w)
  if w.last_at then w.last_at = false else w.to = w.to - GRANT_BYTES end
  w.grants = w.grants - 1
end

local function add_last(w, at, tokens)
  if w.last_at then
    local earlier, last = packed_grants(w)
    w.text = earlier .. last
    w.from, w.to = 1, #w.text
  end
  w.last_at, w.last, w.grants = at, tokens, w.grants + 1
end

-- Adds the tokens up again, as one sum of fractions differs from another in the last digits.
local function sum_grants(w)
  w.used = 0
  for i = 1, w.grants do
    local _, tokens = grant(w, i)
    w.used = w.used + tokens
  end
end

-- Forgets the grants that are a span old, of those that are packed.
local function forget_grants(w)
  local gone, whole = 0, w.used % 1 == 0
  while gone < w.grants do
    local at, tokens = grant(w, gone + 1)
    if at + w.us > now then break end
    gone, w.used, whole = gone + 1, w.used - tokens, whole and tokens % 1 == 0
  end
  if gone == 0 then return end
  w.from, w.grants = w.from + gone * GRANT_BYTES, w.grants - gone
  if not whole or w.grants == 0 then sum_grants(w) end
end

-- Gives a window whose span was turned the grants of before: those of the shortest window with a
-- longer span, or else of the longest. `value` remembers them from the byte `at` on, and is sound.
local function adopt_grants(w, value, at)
  local best
  while at <= #value do
    local span, used, grants = packed_window(value, at, #value)
    local from = at + WINDOW_BYTES
    at = from + grants * GRANT_BYTES
    local is_nearer = not best or (best < w.span and span > best) or (best >= w.span and span >= w.span and span < best)
    if is_nearer then best, w.used, w.grants, w.text, w.from, w.to = span, used, grants, value, from, at - 1 end
  end
end

-- Opens windows at the present time; `value` remembers them from the byte `at` on.
local function open_windows(limits, value, at)
  local open = {}
  for i = 1, #limits do
    local limit = limits[i]
    open[i] = {
      limit = limit.tokens, span = limit.span, us = limit.us, grants = 0, used = 0, text = false, from = 1, to = 0, last_at = false, last = 0,
    }
  end
  local first, length = at, value and #value or 0
  while at <= length do
    local span, used, grants = packed_window(value, at, length)
    if not span then return open_windows(limits, nil, 1) end
    local from = at + WINDOW_BYTES
    at = from + grants * GRANT_BYTES
    for i = 1, #open do
      local w = open[i]
      if w.span == span and not w.text then w.used, w.grants, w.text, w.from, w.to = used, grants, value, from, at - 1 end
    end
  end
  for i = 1, #open do
    local w = open[i]
    if not w.text and first <= length then adopt_grants(w, value, first) end
    if w.grants > 0 and grant(w, w.grants) > now then
      local list = {}
      for n = 1, w.grants do
        local time, tokens = grant(w, n)
        list[n] = struct.pack('<dd', math.min(time, now), tokens)
      end
      w.text, open.clamped = table.concat(list), true
      w.from, w.to = 1, #w.text
    end
    forget_grants(w)
  end
  return open
end

local function window_units(w, cost)
  local n = math.floor((w.limit - w.used + SLACK_TOKENS) / cost)
  if n < 1 and w.grants == 0 then return 1 end
  return math.max(n, 0)
end

local function window_wait(w, cost)
  local needed = math.min(w.used + cost - w.limit, w.used)
  if needed <= SLACK_TOKENS then return 0 end
  local freed = 0
  for i = 1, w.grants do
    local at, tokens = grant(w, i)
    freed = freed + tokens
    if freed >= needed - SLACK_TOKENS then return at + w.us - now end
  end
  return 0
end

local function window_take(w, tokens)
  w.used = w.used + tokens
  if w.grants > 0 then
    local at, last = grant(w, w.grants)
    local part = w.us / EXACT_GRANTS
    if at == now or w.grants >= EXACT_GRANTS and math.floor(at / part) == math.floor(now / part) then
      forget_last(w)
      tokens = last + tokens
    end
  end
  add_last(w, now, tokens)
end

local function window_give_back(w, tokens)
  while w.grants > 0 and tokens > SLACK_TOKENS do
    local at, last = grant(w, w.grants)
    local back = math.min(last, tokens)
    last, tokens = last - back, tokens - back
    forget_last(w)
    if last > SLACK_TOKENS then
      add_last(w, at, last)
      break
    end
  end
  sum_grants(w)
end

-- Charges tokens after the fact, or gives them back if negative.
local function windows_settle(open, tokens)
  for i = 1, #open do
    if tokens > 0 then window_take(open[i], tokens) elseif tokens < 0 then window_give_back(open[i], -tokens) end
  end
end

-- Returns the longest time for which the grants count, in seconds.
local function windows_span(open)
  local longest = 0
  for i = 1, #open do longest = math.max(longest, open[i].span) end
  return longest
end

local function is_true(word) return word == '1' or word == 'true' or word == 'yes' or word == 'on' end

-- A library remembers the knobs that were made of a hash, by its serialized form, until a lease
-- begins or ends: one text is compared in a third of the time of reading 24 fields. Throttles with the
-- same fields share their knobs, so that the collector of garbage, which took a third of the time of
-- thousands of tenants, has little to look at.
local remembered, remembered_dumps, alike_knobs, has_dumps = {}, 0, {}, IS_LIBRARY

-- Returns the serialized hash at `key`, or nil if it cannot stand for the fields. Only the two types
-- of a hash without expiring fields can, because an expired field may still be in the text: 4 is a
-- table, 16 a packed list.
local function dump_of(key)
  if not has_dumps then return nil end
  local dump = redis.pcall('DUMP', key)
  if type(dump) == 'string' then
    local kind = string.byte(dump)
    return (kind == 4 or kind == 16) and #dump <= LONGEST_DUMP and dump or nil
  end
  -- A user may be allowed to call everything else here and not this.
  if dump then has_dumps = false end
  return nil
end

local function remember(dump, fields, knobs)
  if not remembered[dump] then
    if remembered_dumps == MOST_REMEMBERED then remembered, remembered_dumps, alike_knobs = {}, 0, {} end
    remembered_dumps = remembered_dumps + 1
  end
  if not knobs.lease then
    for i = 1, KNOB_FIELDS do fields[i] = fields[i] and #fields[i] .. ':' .. fields[i] or '-' end
    local all = table.concat(fields)
    alike_knobs[all] = alike_knobs[all] or knobs
    knobs = alike_knobs[all]
  end
  remembered[dump] = knobs
  return knobs
end

-- Returns the knobs of one throttle in force now, or nil if there are none. `texts` are the numbers
-- as stored in the hash, or their defaults, in the order of the fields.
local function knobs(key)
  local dump = dump_of(key)
  local known = dump and remembered[dump]
  if known and (not known.lease or (now / 1000 > known.lease) == known.is_over) then return known end
  local h = redis.pcall('HMGET', key, 'rps', 'burst', 'window', 'safe_rps', 'key_rps', 'key_burst', 'mode',
    'valid_until', 'paused', 'parent', 'seq', 'on_store_loss', 'concurrency', 'key_concurrency', 'weight', 'borrow', 'on_429',
    'over_limit', 'capacity', 'max_cost', 'max', 'windows', 'key_windows', 'cost_factor')
  if h.err then return nil end
  local parent, fields = name_of(h[10]), {}
  -- A text too long for any knob is neither parsed nor returned.
  for i = 1, KNOB_FIELDS do
    if h[i] and #h[i] > LONGEST_FIELD then h[i] = '?' end
    fields[i] = h[i]
  end
  -- A name may be longer than a number, and throttles with different parents have different knobs.
  fields[10] = parent
  local careful = false
  local function read(i, default, low, high, zero, unlimited)
    local n = number(h[i], low, high, zero, unlimited)
    if n then return n end
    if h[i] then careful = true end
    h[i] = default
    return tonumber(default)
  end
  local rps = number(h[1], 1e-6, 1e9, true, true)
  local safe = read(4, '1', 1e-6, 1e9, true, false)
  local burst = read(2, '1', 0, 1e4)
  local window = read(3, '1', 0.001, 86400)
  local key_rps = read(5, '-1', 1e-6, 1e9, true, true)
  local capacity = read(19, '-1', 1e-6, 1e9, true, true)
  local key_burst = read(6, '1', 0, 1e4)
  local cost_factor = read(24, '1', 0.001, 1000)
  local windows, window_rps = windows_of(h[22])
  local key_windows, key_window_rps = windows_of(h[23])
  careful = careful or not windows or not key_windows
  if not rps and not h[1] and redis.call('EXISTS', key) == 0 then return nil end
  local function at_most_safe()
    if slower(rps, safe) ~= rps then rps, h[1] = safe, h[4] end
  end
  if not rps then
    rps, h[1] = safe, h[4]
  elseif careful then
    at_most_safe()
  end
  local wanted, lease = rps, nil
  if h[8] then
    local kept = h[7] == 'manual' or h[7] == 'shadow' or h[7] == 'off'
    lease = not kept and number(h[8], 0, 9e15) or nil
    lease = lease and math.floor(lease)
    if lease and now / 1000 > lease then at_most_safe() end
  end
  if is_true(h[9]) then rps, h[1] = 0, '0' end
  local mode = h[17]
  if mode == 'passive-informed' or mode == 'passive-naive' then key_rps, h[5] = -1, '-1' end
  if h[18] == 'drop' then
    -- A throttle that drops counts in whole tokens for each window.
    local function in_whole(rate, i)
      local tokens = rate * window
      if tokens <= 1 or tokens >= 1e6 then return rate end
      rate = math.ceil(tokens - 1e-9) / window
      h[i] = text(rate)
      return rate
    end
    rps, key_rps = in_whole(rps, 1), in_whole(key_rps, 5)
  end
  -- The capacity limits the rate, regardless of the other knobs.
  local bears_nothing = capacity == 0 and rps ~= 0
  if slower(rps, capacity) ~= rps then rps, h[1] = capacity, h[19] end
  -- The highest charged cost of one job.
  local most = number(h[20], 0.001, MAX_COST)
  if not most then
    if h[7] == 'auto' and wanted >= 0 then wanted = math.max(wanted, number(h[21], 1e-6, 1e9) or 1000) end
    local windows = math.max(COST_WINDOWS, burst) * window
    most = wanted < 0 and MAX_COST or math.min(windows * wanted, MAX_COST)
    most = math.max(most, PLAIN_COST)
    local rate = slower(rps, key_rps)
    if rate > 0 then most = math.min(most, math.max(rate * math.max(COST_SECONDS, windows), FEW_TOKENS)) end
  end
  local read_knobs = {
    most = most,
    bears_nothing = bears_nothing, borrows = is_true(h[16]), naive = mode == 'active-naive' or mode == 'passive-naive',
    learns = not (mode == 'active-naive' or mode == 'passive-naive' or mode == 'passive-informed'),
    rps = rps, depth = burst * window * 1e6, key_rps = key_rps, key_depth = key_burst * window * 1e6,
    cost_factor = cost_factor, windows = windows or {}, key_windows = key_windows or {}, window_rps = window_rps or -1, key_window_rps = key_window_rps or -1,
    parent = parent, concurrency = limit_of(h[13]), key_concurrency = limit_of(h[14]), texts = h,
    lease = lease, is_over = lease and now / 1000 > lease,
  }
  return dump and remember(dump, fields, read_knobs) or read_knobs
end

-- Returns the widest scope of an untrusted refusal in a throttle, as a number, and the longest
-- pause after any refusal, in microseconds, or nil if it is not set.
local function trust(key)
  local h = redis.pcall('HMGET', key, 'trust_scope', 'max_pause')
  if h.err then return 0, nil end
  local most = number(h[2], 1, 2592000)
  return BREADTH[h[1] or ''] or 0, most and most * 1e6
end

-- Opens a bucket under a rate above 0, clamped to possible values.
local function open(spent_to, debt, rps, depth, full, cost, most)
  local b = { interval = 1e6 / rps, debt = debt or 0 }
  b.longest = math.max(LONGEST_DEBT, most * b.interval)
  b.tau = math.max(depth, 2 * b.interval)
  if full and depth < SPACED then b.tau = b.interval + depth end
  if full and depth == 0 then b.tau = math.max(b.interval, SPACED) end
  local begin = full and now - b.tau or now - b.interval
  local highest = now + math.min(b.tau + (10 * cost + b.debt) * b.interval, b.longest)
  b.spent_to = math.max(math.min(spent_to or begin, highest), now - b.tau)
  return b
end

local function units(b, cost)
  local n = math.floor((now - b.spent_to + SLACK) / (cost * b.interval))
  if n < 1 and b.spent_to <= now - b.tau + SLACK then return 1 end
  return math.max(n, 0)
end

local function charge(b, time)
  b.spent_to = b.spent_to + time
  b.debt = math.max((b.spent_to - now) / b.interval, 0)
end

-- Charges tokens after the fact, or returns them if negative, up to the longest debt; returns the
-- tokens that counted.
local function settle_open(b, tokens)
  local before, highest = b.spent_to, now + b.longest
  b.spent_to = before + tokens * b.interval
  if b.spent_to > highest then
    b.spent_to = highest
    tokens = math.max((highest - before) / b.interval, 0)
  end
  b.debt = math.max((b.spent_to - now) / b.interval, 0)
  return tokens
end

-- Returns the units in the upper half of the bucket, the part that may be borrowed.
local function spare_units(b, cost)
  return math.max(math.floor((now - b.spent_to - b.tau / 2 + SLACK) / (cost * b.interval)), 0)
end

local function spare_wait(b, cost)
  local needed = cost * b.interval
  if needed > b.tau / 2 then return math.huge end
  return needed + b.tau / 2 - (now - b.spent_to)
end

local function wait_for(b, cost) return math.min(cost * b.interval, b.tau) - (now - b.spent_to) end

-- Returns the jobs that may go while it is unknown if the server accepts them, or nil for no limit
-- (a credit below 0).
local function probe_left(p)
  if p.credit < 0 then return nil end
  if p.credit < 1 and math.abs(now - p.at) >= PATIENCE then return 1 end
  return p.credit
end

local function probe_take(p, units)
  local left = probe_left(p)
  if left then p.credit, p.at = left - units, now end
  return left
end

local function probe_answered(p, succeeded, failed, may_open)
  if p.credit < 0 then return end
  p.credit, p.at = p.credit + 2 * succeeded + failed, now
  if p.credit >= OPEN_CREDIT then
    if may_open then p.credit, p.at = -1, 0 else p.credit = OPEN_CREDIT end
  end
end

-- Returns true for the error of a key of another type. Only a person can have put it there, and
-- what was there before counts as lost.
local function is_of_type(reply)
  return type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true) ~= nil
end

-- Returns the text at a key, or false.
local function text_at(key)
  local reply = redis.pcall('GET', key)
  if type(reply) ~= 'table' then return reply end
  if is_of_type(reply) then redis.call('DEL', key) end
  return redis.call('GET', key)
end

-- Parses the learned state of a key, a string of twenty-two numbers, the last of them the end of
-- its validity in unix milliseconds.
local function parse_learned(value)
  if not value then return nil end
  local n = {}
  for word in string.gmatch(value, '%S+') do n[#n + 1] = tonumber(word) end
  if #n ~= 22 or n[22] <= now_ms then return nil end
  return {
    settle = n[1], grows_from = n[2], since = n[3], done = n[4], credit = n[5], at = n[6], strikes = n[7], refused = n[8],
    cut = n[9], lately = n[10], lately_from = n[11], wanted_at = n[12],
    pace = n[13], ends = n[14], left = n[15], most = n[16], from = n[17], late = n[18], first = n[19], reported_at = n[20], begun = n[21],
    keep_to = n[22],
  }
end

local function new_learned()
  return {
    settle = 0, grows_from = 0, since = now, done = 0, credit = -1, at = 0, strikes = 0, refused = 0,
    cut = CUT, lately = 0, lately_from = now, wanted_at = 0,
    pace = 0, ends = 0, left = 0, most = -1, from = 0, late = 0, first = -1, reported_at = 0, begun = 0,
  }
end

local function learned_text(l)
  local numbers = {
    l.settle, l.grows_from, l.since, l.done, l.credit, l.at, l.strikes, l.refused, l.cut, l.lately, l.lately_from, l.wanted_at,
    l.pace, l.ends, l.left, l.most, l.from, l.late, l.first, l.reported_at, l.begun, l.keep_to,
  }
  for i = 1, 22 do numbers[i] = text(numbers[i]) end
  return table.concat(numbers, ' ')
end

local function period(l)
  if l.settle > 0 then return math.max(PERIOD_S, PERIOD_TOKENS / l.settle) end
  return PERIOD_S
end

-- Returns the rate of the curve.
local function curve(l)
  if l.settle <= 0 then return -1 end
  local k = period(l)
  local age, grown = math.max((now - l.grows_from) / 1e6, 0), nil
  if l.cut == GUESS then
    grown = l.settle * 2 ^ math.min(age / math.max(DOUBLING_S, DOUBLING_TOKENS / l.settle), GUESS_DOUBLINGS)
  else
    local x = (age - k) / k
    local steepness = x > 0 and math.max(l.cut, STEEPNESS) or l.cut
    grown = l.settle * (1 + steepness * x * x * x)
  end
  local succeeds = 0
  local span = now - l.lately_from
  if span >= 1e6 then succeeds = l.lately * 1e6 / span end
  if math.abs(now - l.wanted_at) < LATELY * k * 1e6 then
    return math.min(grown, WANTED_AHEAD * math.max(l.settle, succeeds))
  end
  return math.min(grown, math.max(l.settle, AHEAD * succeeds))
end

-- Returns true if a rate is learned and no guess.
local function has_known_rate(l) return l.settle > 0 and l.cut ~= GUESS end

-- Returns the assumed end of a window of a reported quota.
local function believed_end(l)
  if l.ends - l.late > l.reported_at then return l.ends - l.late end
  return l.ends
end

-- Returns the end of the validity of a reported quota.
local function holds_to(l)
  if l.first > 0 then return l.ends + math.max(l.ends - l.from, 0) end
  return l.ends
end

-- Records a report: `left` tokens are left for `reset` microseconds, of which at most `most` count.
local function told(l, left, reset, most)
  local ROUNDED, DRIFT, BACK, ELAPSED, MOST_LATE = 60e6, 2e6, 0.25, 0.3, 0.67
  local TOLD_LATE, LEAST_EARLIER, MOST_EARLIER = 150000, 250000, 900000
  local ends = now + math.min(reset, most)
  if reset % 1e6 ~= 0 or reset > ROUNDED or reset > most then
    l.pace, l.ends, l.left, l.most = math.max(left * 1e6 / reset, SLOWEST), ends, left, -1
    l.from, l.late, l.first, l.reported_at = now, 0, -1, now
    return
  end
  local is_known = l.most >= 0 and now < holds_to(l)
  local is_back = left >= l.left + (l.most - l.left) * BACK and now - l.from >= ELAPSED * (l.ends - l.from)
  local is_same = is_known and now < l.ends and not is_back and ends <= l.ends + DRIFT
  if is_same then
    l.ends, l.left = math.min(l.ends, ends), math.min(l.left, left)
    if now >= l.ends - l.late then l.late = l.late / 2 end
  else
    if not is_known then
      l.late, l.first = 0, -1
    elseif now < l.ends and is_back then
      l.late = (l.late + l.ends - now) / 2
    else
      l.late = l.late / 2
    end
    l.late = math.min(l.late, MOST_LATE * reset)
    -- Windows last whole seconds, so the end of one tells that of the next.
    local apart = ends - l.ends
    local earlier = apart - math.floor(apart / 1e6) * 1e6
    if is_known and l.late >= TOLD_LATE and earlier >= LEAST_EARLIER and earlier <= MOST_EARLIER then ends = ends - earlier end
    l.from, l.most, l.left, l.ends = now, left, left, ends
  end
  l.reported_at = now
  l.pace = math.max((l.left + 0.5) * 1e6 / math.max(believed_end(l) - now, 1000), SLOWEST)
  if not is_same and left >= 1 then
    l.first = l.pace
  elseif is_same and l.first > 0 then
    l.pace = math.min(l.pace, 2 * l.first)
  end
end

-- Returns the rate of a reported quota, below 0 for none, 0 for a rest.
local function told_rate(l)
  if now >= holds_to(l) then return -1 end
  if now >= l.ends then return l.first end
  if l.left >= 1 then return l.pace end
  if l.first > 0 and now >= believed_end(l) then return l.first end
  if math.abs(now - l.reported_at) < REST then return 0 end
  return SLOWEST
end

local function rests_to(l)
  local till = l.first > 0 and believed_end(l) or l.ends
  return math.min(till, l.reported_at + REST)
end

local function told_depth(l)
  if l.left < 1 then return LATE end
  return math.max((l.ends - l.late - now) / 10, LATE)
end

-- Returns the refill that may be saved up under a learned rate or a reported quota: what a late
-- worker would lose, or more of a quota; nothing under a learned rate from fifty a second down,
-- because some servers refuse any two requests that come too close together.
local function learned_depth(l)
  if l.settle <= 0 then return told_depth(l) end
  if holds_to(l) > now then return LATE end
  return math.min(math.max(SPACED - 1e6 / curve(l), 0), LATE)
end

local function learned_rate(l) return slower(curve(l), told_rate(l)) end

local function learned_over(l, configured)
  local free = l.settle <= 0 or (configured > 0 and learned_rate(l) >= configured)
  return l.credit < 0 and holds_to(l) <= now and free
end

local function keep_ms(l)
  local kept = math.max(holds_to(l) - now, 0)
  if l.settle > 0 or l.credit >= 0 then
    kept = math.max(kept, math.max(l.grows_from - now + math.max(KEEP, KEEP_PERIODS * 1e6 * period(l)), 0))
  end
  return math.min(math.max(math.ceil(kept / 1000), 1), 1e12)
end

-- Adds an entry to `zset`, which holds the names of the pauses and the learned state of a
-- throttle's keys by their end. It expires with the last of them: while it is absent, acquire need
-- not look at each lane's.
local function note(zset, member, until_ms)
  if redis.call('TYPE', zset).ok ~= 'zset' then redis.call('DEL', zset) end
  -- A clock that steps back revives the pauses of the last hours, which must still be found.
  redis.call('ZREMRANGEBYSCORE', zset, '-inf', now_ms - 2 * HOUR * 1000)
  redis.call('ZADD', zset, until_ms, member)
  local last = tonumber(redis.call('ZREVRANGE', zset, 0, 0, 'WITHSCORES')[2])
  redis.call('PEXPIRE', zset, math.max(last - now_ms, shortest_ttl_ms))
end

local function keep_learned(key, zset, l)
  local ms = keep_ms(l)
  l.keep_to = now_ms + ms
  redis.call('SET', key, learned_text(l), 'PX', math.max(ms, shortest_ttl_ms))
  note(zset, key, l.keep_to)
end

-- Parses the last refusal that concerned a whole throttle: `until credit at strikes|why`.
local function parse_refusal(value)
  if not value then return nil end
  local until_us, credit, at, strikes, why = string.match(value, '^(%S+) (%S+) (%S+) ([^%s|]+)|(.*)$')
  until_us, credit, at, strikes = finite(until_us), finite(credit), finite(at), finite(strikes)
  if not (until_us and credit and at and strikes) then return nil end
  return { until_us = until_us, credit = credit, at = at, strikes = strikes, why = why }
end

local function refusal_text(r)
  return table.concat({ text(r.until_us), text(r.credit), text(r.at), text(r.strikes) }, ' ') .. '|' .. r.why
end

-- Reads a throttle's bucket, a hash of `spent_to debt used limited_us limited_to stopped kept
-- refusal grants`. `kept` is the time at which its time to live was set, in unix seconds; `stored`
-- are the texts of the fields.
local function bucket(key)
  local h = redis.pcall('HMGET', key, 'spent_to', 'debt', 'used', 'limited_us', 'limited_to', 'stopped', 'kept', 'refusal', 'grants')
  if h.err then
    -- Only a person can have put another type there; the bucket counts as lost.
    redis.call('DEL', key)
    h = {}
  end
  return {
    key = key, stored = h,
    spent_to = finite(h[1]), debt = finite(h[2]) or 0, used = finite(h[3]) or 0,
    limited_us = finite(h[4]) or 0, limited_to = finite(h[5]) or 0, stopped = h[6] == '1',
    kept = h[7] and tonumber(h[7]), refusal = parse_refusal(h[8]), grants = h[9] or nil,
    refusal_changed = false, grants_changed = false, remembered = 0, empty_s = 0,
  }
end

-- Writes changed fields. The time to live is renewed at most once an hour, unless a debt must
-- outlast it: a week is left then, which is enough for a debt of a day.
local changed_fields = {}
local NUMBERS = { 'spent_to', 'debt', 'used', 'limited_us', 'limited_to' }
local function keep_bucket(b)
  local fields, n, stored = changed_fields, 0, b.stored
  for i = 1, 5 do
    local name, earlier = NUMBERS[i], stored[i]
    local value = b[name]
    if value ~= (earlier and tonumber(earlier) or i > 1 and 0 or nil) then
      fields[n + 1], fields[n + 2] = name, value
      n = n + 2
    end
  end
  if b.stopped ~= (stored[6] == '1') then
    fields[n + 1], fields[n + 2] = 'stopped', b.stopped and '1' or '0'
    n = n + 2
  end
  if b.refusal_changed then
    if b.refusal then
      fields[n + 1], fields[n + 2] = 'refusal', refusal_text(b.refusal)
      n = n + 2
    else
      redis.call('HDEL', b.key, 'refusal')
    end
  end
  if b.grants_changed then
    fields[n + 1], fields[n + 2] = 'grants', b.grants
    n = n + 2
  end
  if n == 0 then return end
  local seconds = math.floor(now / 1e6)
  local ahead = b.spent_to and math.max(math.ceil((b.spent_to - now) / 1e6), 0) or 0
  if b.refusal then ahead = math.max(ahead, math.ceil((b.refusal.until_us - now) / 1e6)) end
  ahead = math.max(ahead, b.remembered, b.empty_s)
  local due = not b.kept or ahead > DAY or seconds - b.kept >= HOUR or seconds < b.kept
  if due then
    -- Grants that this call did not change count on; what they refuse is written without them.
    if b.grants and b.remembered == 0 then ahead = math.max(ahead, math.ceil(windows_span(parse_grants(b.grants)))) end
    fields[n + 1], fields[n + 2] = 'kept', seconds
    n = n + 2
  end
  redis.call('HSET', b.key, unpack(fields, 1, n))
  if due then redis.call('EXPIRE', b.key, math.min(WEEK + HOUR + 2 * ahead, 1e12)) end
end

local function drain(b, stopped)
  b.spent_to = math.max(b.spent_to or now, now)
  b.stopped = stopped
end

-- Cancels a debt, which leaves the bucket empty.
local function forgive(b)
  if b.spent_to then b.spent_to = math.min(b.spent_to, now) end
  b.debt = 0
end

-- The time since a stopped throttle was last asked refills nothing.
local function open_stored(b, rps, depth, cost, most)
  local spent_to = b.spent_to
  if b.stopped then spent_to = math.max(spent_to or now, now) end
  return open(spent_to, b.debt, rps, depth, false, cost, most)
end

-- A bucket that expired before it has a token would begin with one.
local function close_stored(b, o)
  b.spent_to, b.debt, b.stopped = o.spent_to, o.debt, false
  b.empty_s = math.ceil((o.spent_to + o.interval - now) / 1e6)
end

-- Writes the grants that windows remember into a bucket.
local function close_windows(b, open)
  b.grants, b.grants_changed, b.remembered = grants_text(open, ''), true, math.ceil(windows_span(open))
end

-- Parses a key's bucket, a string `spent_to`, or `spent_to debt` if there is a debt, and a bar and
-- the grants of its windows if it has any. It expires when the bucket is full and no grant counts.
-- Returns the two and the byte from which the grants are packed, which is behind the end without any.
local function parse_key(value)
  if not value then return nil, 0, 1 end
  local bar, grants_at = string.find(value, '|', 1, true), #value + 2
  if bar then value, grants_at = string.sub(value, 1, bar - 1), bar + 1 end
  local plain = finite(value)
  if plain then return plain, 0, grants_at end
  local spent_to, debt = string.match(value, '^(%S+) (%S+)$')
  return finite(spent_to), finite(debt) or 0, grants_at
end

local function bucket_text(spent_to, debt)
  return debt == 0 and text(spent_to) or text(spent_to) .. ' ' .. text(debt)
end

-- Returns what stands for a key's bucket, its windows, or both: a text, or a number that is to be
-- written as it is.
local function key_text(b, windows)
  if #windows > 0 then return grants_text(windows, (b and bucket_text(b.spent_to, b.debt) or '') .. '|') end
  return b.debt == 0 and b.spent_to or bucket_text(b.spent_to, b.debt)
end

-- Stores the text of a key's bucket and windows for as long as they have an effect.
local function keep_key(key, value, b, windows)
  local ttl = b and math.ceil((b.spent_to + b.tau - now) / 1000) or 0
  ttl = math.max(ttl, math.ceil(windows_span(windows) * 1000))
  redis.call('SET', key, value, 'PX', math.min(math.max(ttl, shortest_ttl_ms), 1e15))
end

-- Returns true for an external caller, which counts as running no more jobs than it was granted
-- here.
local function is_guest(who) return string.sub(who, 1, 5) == 'http:' end

-- Reads the holders under a concurrency limit, a hash of `jobs expires_ms` by their name. Returns
-- the number of jobs that `who` may begin beyond `held` and beside the others, the number that it
-- counts as running, and true if the greatest number of names is recorded and its own is not among
-- them. Lapsed and impossible reports are dropped.
local function room_of(key, who, limit, held, write)
  local words = redis.pcall('HGETALL', key)
  if words.err then
    if write then redis.call('DEL', key) end
    words = {}
  end
  local others, lapsed, own, names = 0, {}, nil, 0
  for i = 1, #words, 2 do
    local jobs, expires = string.match(words[i + 1], '^(%d+) (%d+)$')
    expires = tonumber(expires or '')
    if not expires or expires <= now_ms or expires > now_ms + HOUR * 1000 then
      lapsed[#lapsed + 1] = words[i]
    else
      names = names + 1
      if words[i] == who then own = tonumber(jobs) else others = others + tonumber(jobs) end
    end
  end
  if write then
    for i = 1, #lapsed, 1000 do redis.call('HDEL', key, unpack(lapsed, i, math.min(i + 999, #lapsed))) end
  end
  if is_guest(who) then held = math.min(held, own or 0) end
  if not own and names >= MAX_HOLDERS then return 0, held, true end
  return math.max(math.max(limit - others, 0) - held, 0), held, false
end

local function say(key, who, jobs, ttl)
  if jobs <= 0 then
    redis.pcall('HDEL', key, who)
    return
  end
  local held = string.format('%.0f %.0f', jobs, now_ms + ttl)
  local added = redis.pcall('HSET', key, who, held)
  if type(added) == 'table' then
    if is_of_type(added) then redis.call('DEL', key) end
    added = redis.call('HSET', key, who, held)
  end
  if added == 1 and redis.call('HLEN', key) > MAX_HOLDERS then redis.call('HDEL', key, who) end
  if redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, math.max(2 * ttl, shortest_ttl_ms))
  end
end

-- acquire, peek, acquire_and_peek: KEYS (knobs, bucket, holds) per level, root first, then pauses,
-- then for each letter of `extra`, in the order b p l k, one key per lane: its bucket, its pause, its
-- learned state, its holds; ARGV verb, now, levels, lanes, extra, who, ttl, held (empty without a
-- holder), the expected parent of each level, then for each run of equal lanes: count, want, cost,
-- keyed 0|1, held. acquire_and_peek, without a holder, only looks at the last run, after it has served
-- and stored the others.
--
-- The ask in progress is kept outside of the functions, which are then made once and not for each
-- call. The lists have an entry for each level, of which each call writes all. The function around
-- them is for the script, to which a variable of the whole text costs more the earlier it is.
local acquire = (function()
  local levels, write, leaf, most, held, who
  local chain, stored, probes, opened, windowed, rooms, holding, full, waits = {}, {}, {}, {}, {}, {}, {}, {}, {}
  local begun, reply, at
  local lessons, known_lessons, buckets, holds, seen, key_rooms, key_holds, pauses, lane

  -- Adds the outcome of some lanes to the reply. A count below 0 is that of lanes with learned state.
  local function tell(count, granted, wait, limit, detail, learned)
    wait = math.min(wait, MAX_WAIT)
    if learned then count = -count end
    if at > 11 and reply[at] == detail and reply[at - 1] == limit and reply[at - 2] == wait and reply[at - 3] == granted
      and (reply[at - 4] < 0) == (count < 0) then
      reply[at - 4] = reply[at - 4] + count
      return
    end
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5] = count, granted, wait, limit, detail
    at = at + 5
  end

  -- A lane that wants nothing has nothing to wait for.
  local function tell_nothing(count, want, wait, limit, detail)
    if want == 0 then tell(count, 0, 0, '', '') else tell(count, 0, wait, limit, detail) end
  end

  -- Returns the units that a level allows; `wait_at` returns the time until it allows the next one,
  -- and true if its windows cause the wait.
  local function units_at(i, cost)
    local u = opened[i] and units(opened[i], cost) or math.huge
    if not chain[i].borrows or i == 1 then return u end
    return u + (opened[i - 1] and spare_units(opened[i - 1], cost) or math.huge)
  end
  local function wait_at(i, cost)
    local own = opened[i] and wait_for(opened[i], cost) or 0
    if chain[i].borrows and i > 1 then
      own = opened[i - 1] and math.min(own, spare_wait(opened[i - 1], cost)) or 0
    end
    local w = own
    for j = 1, #windowed[i] do w = math.max(w, window_wait(windowed[i][j], cost)) end
    return math.ceil(w), w > own
  end

  -- Serves `count` lanes of the same want and cost in one step; `own` is the key's bucket, `room`
  -- its concurrency limit, `learned` its learned state, `place` the limit that its bucket stands
  -- for.
  local function serve(count, want, cost, own, room, learned, place, own_windows)
    local wanted = count * want
    local granted = wanted
    for i = 1, levels do
      if opened[i] then granted = math.min(granted, units_at(i, cost)) end
      if rooms[i] then granted = math.min(granted, rooms[i]) end
      if probes[i] then granted = math.min(granted, probe_left(probes[i])) end
    end
    if own then granted = math.min(granted, units(own, cost)) end
    for i = 1, levels do
      local windows = windowed[i]
      for j = 1, #windows do granted = math.min(granted, window_units(windows[j], cost)) end
    end
    for j = 1, own_windows and #own_windows or 0 do granted = math.min(granted, window_units(own_windows[j], cost)) end
    if room then granted = math.min(granted, room.left) end
    local credit = held and learned and probe_left(learned)
    if credit then granted = math.min(granted, credit) end
    if granted > 0 then
      begun = begun + granted
      for i = 1, levels do
        local o = opened[i]
        if o then
          -- The level above pays for borrowed units.
          local taken = chain[i].borrows and math.min(granted, units(o, cost)) or granted
          charge(o, taken * (cost * o.interval))
        end
        stored[i].used = stored[i].used + granted * cost
        if rooms[i] then rooms[i] = rooms[i] - granted end
        if probes[i] then
          probe_take(probes[i], granted)
          stored[i].refusal_changed = true
        end
      end
      if own then charge(own, granted * (cost * own.interval)) end
      for i = 1, levels do
        local windows = windowed[i]
        for j = 1, #windows do
          window_take(windows[j], granted * cost)
          windows.changed = true
        end
      end
      for j = 1, own_windows and #own_windows or 0 do window_take(own_windows[j], granted * cost) end
      if room then room.left, room.granted = room.left - granted, room.granted + granted end
      if credit then
        probe_take(learned, granted)
        learned.changed = true
      end
    end
    if granted == wanted then
      tell(count, want, 0, '', '', learned)
      return granted
    end
    local wait, limit, detail = 0, '', ''
    for i = 1, levels do
      local w, by_windows = wait_at(i, cost)
      if w > wait then wait, limit, detail = w, by_windows and 'windows' or 'level', i end
    end
    local w = own and math.ceil(wait_for(own, cost)) or 0
    for j = 1, own_windows and #own_windows or 0 do w = math.max(w, math.ceil(window_wait(own_windows[j], cost))) end
    if w > wait then wait, limit, detail = w, place, '' end
    wait = math.min(wait, MAX_WAIT)
    if wait < CROWDED_WAIT then
      local crowded = nil
      for i = levels, 1, -1 do
        if rooms[i] == 0 then crowded = i end
      end
      if crowded then
        wait, limit, detail = CROWDED_WAIT, full[crowded] and 'holders' or 'concurrency', crowded
      elseif room and room.left == 0 then
        wait, limit, detail = CROWDED_WAIT, 'key_concurrency', ''
      else
        local probing = nil
        for i = levels, 1, -1 do
          if probes[i] and probe_left(probes[i]) == 0 then probing = i end
        end
        if probing then
          wait, limit, detail = CROWDED_WAIT, 'probing', probing
        elseif held and learned and probe_left(learned) == 0 then
          wait, limit, detail = CROWDED_WAIT, 'key_probing', ''
        end
      end
    end
    if limit == 'learned' and math.abs(now - learned.wanted_at) >= 1e6 then
      learned.wanted_at, learned.changed = now, true
    end
    if limit == 'level' or limit == 'windows' then waits[detail] = math.max(waits[detail] or 0, wait) end
    local whole = math.floor(granted / want)
    local rest = granted - whole * want
    local left = count - whole
    if whole > 0 then tell(whole, want, 0, '', '', learned) end
    if rest > 0 then
      tell(1, rest, wait, limit, detail, learned)
      left = left - 1
    end
    if left > 0 then tell(left, 0, wait, limit, detail, learned) end
    return granted
  end

  -- Returns the learned state of a lane's key; lanes of one key share it.
  local function lesson(lane)
    local value = lessons and not leaf.naive and lessons[lane]
    if not value then return nil end
    local key = KEYS[lessons.at + lane]
    if known_lessons[key] == nil then known_lessons[key] = parse_learned(value) or false end
    return known_lessons[key] or nil
  end

  -- Serves a lane whose key has limits of its own.
  local function serve_bound(lane, want, cost, keyed, keyed_held, learned)
    local room = nil
    if holds and keyed then
      local key = KEYS[holds + lane]
      room = key_rooms[key]
      if not room then
        local left, holds_now = room_of(key, who, leaf.key_concurrency, keyed_held, write)
        room = { left = left, granted = 0, held = holds_now, key = key }
        key_rooms[key], key_holds[#key_holds + 1] = room, room
      end
    end
    local rps, depth, place = keyed and leaf.key_rps or -1, leaf.key_depth, 'key'
    local learned_rps = learned and leaf.learns and learned_rate(learned) or -1
    if learned_rps == 0 then
      tell_nothing(1, want, rests_to(learned) - now, 'learned', '')
      return
    end
    if slower(rps, learned_rps) ~= rps then rps, depth, place = learned_rps, learned_depth(learned), 'learned' end
    local limits = keyed and leaf.key_windows or NO_WINDOWS
    if rps < 0 and #limits == 0 then
      serve(1, want, cost, nil, room, learned, place)
      return
    end
    local key = KEYS[buckets.at + lane]
    local value = seen and seen[key] or buckets[lane]
    local spent_to, debt, grants_at = parse_key(value)
    local own = rps >= 0 and open(spent_to, debt, rps, depth, true, cost, most) or nil
    -- From fifty a second down each unit is spaced from the time at which the one before it began.
    if own and place == 'learned' and depth == 0 and learned.begun <= now then own.spent_to = math.max(own.spent_to, learned.begun) end
    local own_windows = #limits > 0 and open_windows(limits, value, grants_at) or NO_WINDOWS
    local granted = serve(1, want, cost, own, room, learned, place, own_windows)
    -- The clamp is stored even without a grant: clamped on reading alone, the debt would move along
    -- with the clock for ever.
    if granted > 0 or (own and spent_to and spent_to > own.spent_to) or own_windows.clamped then
      own = own or spent_to and { spent_to = spent_to, debt = debt, tau = 0 }
      local later = key_text(own, own_windows)
      if seen then seen[key] = type(later) == 'number' and text(later) or later end
      if write then keep_key(key, later, own, own_windows) end
    end
  end

  -- Serves lanes without limits of their own. Consecutive ones of the same want are served together.
  local alike, alike_want, alike_cost = 0, 0, 0
  local function serve_alike()
    if alike > 0 then serve(alike, alike_want, alike_cost) end
    alike = 0
  end
  local function join(count, want, cost)
    if want ~= alike_want or cost ~= alike_cost then serve_alike() end
    alike, alike_want, alike_cost = alike + count, want, cost
  end

  -- Serves the lanes of the runs from the argument `from` on, up to the argument `to`.
  local function serve_runs(from, to)
    for run = from, to, 5 do
      local count, want, cost = tonumber(ARGV[run]), tokens_of(run + 1), math.min(cost_of(run + 2) * leaf.cost_factor, most)
      local keyed = ARGV[run + 3] == '1'
      local bound = keyed and (leaf.key_rps >= 0 or holds or #leaf.key_windows > 0)
      if not bound and not pauses then
        join(count, want, cost)
        lane = lane + count
      else
        for _ = 1, count do
          lane = lane + 1
          local pause = pauses and pauses[lane]
          local until_ms = pause and tonumber(string.match(pause, '^(%d+)|'))
          local learned = lesson(lane)
          if until_ms and until_ms * 1000 > now then
            serve_alike()
            tell_nothing(1, want, until_ms * 1000 - now, 'paused', pause)
          elseif not bound and not learned then
            join(1, want, cost)
          elseif keyed and leaf.key_rps == 0 then
            serve_alike()
            tell_nothing(1, want, STOPPED_WAIT, 'key', '')
          else
            serve_alike()
            serve_bound(lane, want, cost, keyed, tonumber(ARGV[run + 4]), learned)
          end
        end
      end
    end
    serve_alike()
  end

  -- Returns the limits that the reply states: '' if they are the usual ones.
  local function stated_limits(over_limit, lowest, window_rps, highest)
    local limits = ''
    local over = over_limit == 'drop' or over_limit == 'merge'
    local has_windows = window_rps >= 0 or leaf.key_window_rps >= 0
    local has_more = has_windows or leaf.cost_factor ~= 1
    if over or lowest >= 0 or leaf.key_concurrency >= 0 or highest ~= PLAIN_COST or has_more then
      limits = string.format('%.0f %.0f %s %.17g', lowest, leaf.key_concurrency, over and over_limit or 'wait', highest)
    end
    if has_more then limits = limits .. string.format(' %.17g %.17g %.17g', window_rps, leaf.key_window_rps, leaf.cost_factor) end
    return limits
  end

  -- Returns the rate of a level as the reply states it; a person may have written blanks around it.
  local function stated_rate(k)
    return k.borrows and string.match(k.texts[1], '%S+') .. 'b' or k.texts[1]
  end

  -- Returns the rates in force of all levels and the limits that the reply states.
  local function stated_knobs(unknown)
    if levels == 1 and leaf then
      -- They follow from the knobs alone, which are remembered.
      leaf.stated = leaf.stated or stated_limits(leaf.texts[18], leaf.concurrency, leaf.window_rps, leaf.most)
      return stated_rate(leaf), leaf.stated
    end
    local rates, lowest, window_rps = {}, -1, -1
    for i = 1, levels do
      local k = chain[i]
      rates[i] = k and stated_rate(k) or '0'
      if k then window_rps, lowest = slower(window_rps, k.window_rps), slower(lowest, k.concurrency) end
    end
    rates = table.concat(rates, ' ')
    if not leaf then return rates, '-1 -1 wait 1000000000' end
    return rates, stated_limits(leaf.texts[18], lowest, window_rps, unknown and MAX_COST or most)
  end

  return function(writes, peeks)
    local lanes, extra = tonumber(ARGV[4]), ARGV[5]
    levels, write, most, begun, alike = tonumber(ARGV[3]), writes, MAX_COST, 0, 0
    who, held = ARGV[6], tonumber(ARGV[8])
    local ttl, stopped, unknown = tonumber(ARGV[7]), nil, nil
    for i = 1, levels do
      local k = knobs(KEYS[3 * i - 2])
      local parent = k and k.parent or ''
      if parent ~= ARGV[8 + i] then return { 'chain', i, parent } end
      chain[i] = k
      if not k then
        unknown = unknown or i
      else
        if k.rps == 0 then stopped = stopped or i end
        most = math.min(most, k.most)
      end
    end
    leaf = chain[levels]
    local first, base = 9 + levels, 3 * levels + 1
    local needed, paused, watched = extra, nil, false
    if not unknown and not stopped then
      for i = 1, levels do
        local b = bucket(KEYS[3 * i - 1])
        local refusal = b.refusal
        stored[i] = b
        if refusal and refusal.until_us > now then paused = paused or i end
        local probe = refusal and probe_left(refusal) and refusal or nil
        watched = watched or probe ~= nil
        -- The probe limit does not bind work that runs already, which would wait for its own end.
        probes[i] = held and probe or nil
      end
    end
    if not unknown and not stopped and not paused then
      needed = (leaf.key_rps > 0 or #leaf.key_windows > 0) and 'b' or ''
      if redis.call('EXISTS', KEYS[base]) == 1 then needed = 'bpl' end
      if held and leaf.key_concurrency >= 0 then needed = needed .. 'k' end
      if needed ~= extra then
        for letter in string.gmatch(needed, '.') do
          if not string.find(extra, letter, 1, true) then return { 'keys', needed } end
        end
      end
    end

    local rates, limits = stated_knobs(unknown)
    if leaf then
      local t = leaf.texts
      -- The last five make room for the outcome of the lanes.
      reply = {
        'ok', now, t[11] or '0', t[12] or '', t[15] or '', watched and not paused and needed .. 'w' or needed, t[3], t[5], t[6], rates, limits,
        nil, nil, nil, nil, nil,
      }
    else
      reply = { 'ok', now, '0', '', '', needed, '1', '-1', '1', rates, limits }
    end
    at = 11

    if unknown or stopped then
      local detail = unknown or stopped
      if not unknown and chain[stopped].bears_nothing then
        local why = redis.call('HGET', KEYS[3 * stopped - 2], 'capacity_reason')
        detail = string.format('%.0f|', stopped) .. (why and why ~= '' and #why <= LONGEST_WHY and why or 'its capacity is 0')
      end
      for run = first, #ARGV, 5 do
        local want = tonumber(ARGV[run + 1])
        tell_nothing(tonumber(ARGV[run]), want, STOPPED_WAIT, unknown and 'unknown' or 'stopped', detail)
      end
      if write and not unknown then
        for i = 1, levels do
          if chain[i].rps == 0 then
            local b = bucket(KEYS[3 * i - 1])
            drain(b, true)
            if i == stopped then
              b.limited_us = b.limited_us + (STOPPED_WAIT - math.max(b.limited_to - now, 0))
              b.limited_to = now + STOPPED_WAIT
            end
            keep_bucket(b)
          end
        end
      end
      return reply
    end

    if paused then
      local refusal = stored[paused].refusal
      local detail = string.format('%.0f %.0f|', paused, math.floor(refusal.until_us / 1000)) .. refusal.why
      for run = first, #ARGV, 5 do
        tell_nothing(tonumber(ARGV[run]), tonumber(ARGV[run + 1]), refusal.until_us - now, 'level_paused', detail)
      end
      for i = 1, levels do
        local b = stored[i]
        if write and b.refusal and b.refusal.until_us > now then
          drain(b, true)
          keep_bucket(b)
        end
      end
      return reply
    end

    local peeked = peeks and #ARGV - 4 or #ARGV + 1
    local highest_cost = 0
    for run = first, peeked - 1, 5 do highest_cost = math.max(highest_cost, math.min(cost_of(run + 2) * leaf.cost_factor, most)) end
    for i = 1, levels do
      local k = chain[i]
      opened[i] = k.rps > 0 and open_stored(stored[i], k.rps, k.depth, highest_cost, most)
      windowed[i] = NO_WINDOWS
      if #k.windows > 0 then
        windowed[i] = open_windows(k.windows, stored[i].grants, 1)
        windowed[i].changed = windowed[i].clamped
      end
      rooms[i], holding[i], full[i], waits[i] = nil, nil, nil, nil
      if held and k.concurrency >= 0 then
        rooms[i], holding[i], full[i] = room_of(KEYS[3 * i], who, k.concurrency, held, write)
      end
    end

    -- Each kind that was passed has one key per lane; only needed kinds are read.
    local place = base
    buckets, holds, lessons, pauses = nil, nil, nil, nil
    if lanes > 0 then
      for i = 1, #extra do
        local letter = string.sub(extra, i, i)
        if extra == needed or string.find(needed, letter, 1, true) then
          if letter == 'k' then
            holds, key_rooms, key_holds = place, {}, {}
          else
            local found = redis.call('MGET', unpack(KEYS, place + 1, place + lanes))
            found.at = place
            if letter == 'b' then
              buckets = found
            elseif letter == 'l' then
              lessons, known_lessons = found, {}
            else
              pauses = found
            end
          end
        end
        place = place + lanes
      end
    end
    -- A key that two lanes have is read once.
    seen = lanes > 1 and {} or nil

    lane = 0
    serve_runs(first, peeked - 1)

    for i = 1, levels do
      local b, o = stored[i], opened[i]
      local has_more = not o or units(o, highest_cost) >= 1 or chain[i].borrows
      for j = 1, #windowed[i] do has_more = has_more and window_units(windowed[i][j], highest_cost) >= 1 end
      if windowed[i].changed then close_windows(b, windowed[i]) end
      if o then close_stored(b, o) end
      local pending = math.max(b.limited_to - now, 0)
      if waits[i] then
        b.limited_us = b.limited_us + (waits[i] - pending)
        b.limited_to = now + waits[i]
      elseif has_more then
        b.limited_us = b.limited_us - pending
        b.limited_to = b.limited_to - pending
      end
      if write then
        keep_bucket(b)
        if rooms[i] then say(KEYS[3 * i], who, holding[i] + begun, ttl) end
      end
    end
    if write and holds then
      for _, room in ipairs(key_holds) do say(room.key, who, room.held + room.granted, ttl) end
    end
    if write and lessons then
      for key, learned in pairs(known_lessons) do
        if learned and learned.changed then redis.call('SET', key, learned_text(learned), 'KEEPTTL') end
      end
    end
    if peeks then
      write = false
      local cost = math.min(cost_of(peeked + 2) * leaf.cost_factor, most)
      for i = 1, levels do
        opened[i] = opened[i] and open_stored(stored[i], chain[i].rps, chain[i].depth, cost, most)
      end
      serve_runs(peeked, #ARGV)
    end
    return reply
  end
end)()

-- A script needs none of the functions below for these.
if not IS_LIBRARY and verb == 'acquire' then return acquire(true) end
if not IS_LIBRARY and verb == 'peek' then return acquire(false) end
if not IS_LIBRARY and verb == 'acquire_and_peek' then return acquire(true, true) end

-- Returns the reply to a call whose levels are no longer the chain, or nil. Each level has two
-- keys, the first its knobs.
local function chain_changed(levels)
  for i = 1, levels do
    local found = redis.pcall('HGET', KEYS[2 * i - 1], 'parent')
    local parent = name_of(type(found) == 'string' and found)
    if parent ~= ARGV[3 + i] then return { 'chain', i, parent } end
  end
  return nil
end

-- hold: KEYS (knobs, holds) per level, then the holds of each key; ARGV verb, now, levels, the
-- expected parent of each level, who, ttl, held, then held of each key.
local function hold()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local who, ttl, held = ARGV[4 + levels], tonumber(ARGV[5 + levels]), tonumber(ARGV[6 + levels])
  local function tell(key, jobs)
    if is_guest(who) and jobs > 0 then
      local word = redis.pcall('HGET', key, who)
      local granted, expires = string.match(type(word) == 'string' and word or '', '^(%d+) (%d+)$')
      expires = tonumber(expires or '')
      if not expires or expires <= now_ms or expires > now_ms + HOUR * 1000 then granted = 0 end
      jobs = math.min(jobs, tonumber(granted))
    end
    say(key, who, jobs, ttl)
  end
  local key_limit = -1
  for i = 1, levels do
    local h = redis.pcall('HMGET', KEYS[2 * i - 1], 'concurrency', 'key_concurrency')
    key_limit = -1
    if not h.err then
      if limit_of(h[1]) >= 0 then tell(KEYS[2 * i], held) end
      key_limit = limit_of(h[2])
    end
  end
  if key_limit >= 0 then
    for i = 1, #KEYS - 2 * levels do tell(KEYS[2 * levels + i], tonumber(ARGV[6 + levels + i])) end
  end
  return { 'ok' }
end

-- refund: KEYS (knobs, bucket) per level, then the buckets of keys in the order of repayment; ARGV
-- verb, now, levels, the expected parent of each level, then for each run of equal grants: count,
-- units, cost, the time that one unit was charged at the key (0 for no key), whole 0|1, and if
-- whole the same time for each level, root first. If the number of levels differs from that of the
-- grant, its charges belong to other throttles, and only the key is repaid.
local function refund()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local found = redis.pcall('HGET', KEYS[2 * levels - 1], 'cost_factor')
  if type(found) ~= 'string' or #found > LONGEST_FIELD then found = '1' end
  local factor = number(found, 0.001, 1000) or 1
  local buckets, at, key = {}, 4 + levels, 2 * levels
  for i = 1, levels do buckets[i] = bucket(KEYS[2 * i]) end
  while at <= #ARGV do
    local count, n, cost, time = tonumber(ARGV[at]), tokens_of(at + 1), cost_of(at + 2) * factor, finite(ARGV[at + 3]) or 0
    local whole = ARGV[at + 4] == '1'
    at = at + 5
    if whole then
      for i = 1, levels do
        local b, back = buckets[i], n * (finite(ARGV[at]) or 0)
        for _ = 1, count do
          if b.spent_to then b.spent_to = b.spent_to - back end
          b.used = b.used - n * cost
        end
        if b.grants then
          local known = parse_grants(b.grants)
          for j = 1, #known do
            for _ = 1, count do window_give_back(known[j], n * cost) end
          end
          close_windows(b, known)
        end
        at = at + 1
      end
    end
    if time > 0 then
      for _ = 1, count do
        key = key + 1
        local value = text_at(KEYS[key])
        local spent_to, debt, grants_at = parse_key(value)
        if spent_to then
          redis.call('SET', KEYS[key], bucket_text(spent_to - n * time, debt) .. string.sub(value, grants_at - 1), 'KEEPTTL')
        end
      end
    end
  end
  for i = 1, levels do keep_bucket(buckets[i]) end
  return { 'ok' }
end

-- settle: KEYS (knobs, bucket) per level, then the bucket of each charged key; ARGV verb, now,
-- levels, the expected parents, then for each charge: tokens (below 0 returns), keyed 0|1. Charges
-- nothing if a level does not exist.
local function settle()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local chain, most, factor = {}, MAX_COST, 1
  for i = 1, levels do
    chain[i] = knobs(KEYS[2 * i - 1])
    if not chain[i] then return { 'unknown', i } end
    most = math.min(most, chain[i].most)
  end
  factor = chain[levels].cost_factor
  for i = 1, levels do
    local k, b = chain[i], bucket(KEYS[2 * i])
    for at = 4 + levels, #ARGV, 2 do
      local tokens = tokens_of(at) * factor
      if k.rps > 0 then
        local o = open_stored(b, k.rps, k.depth, 1, most)
        tokens = settle_open(o, tokens)
        close_stored(b, o)
      end
      b.used = b.used + tokens
      if #k.windows > 0 then
        local open = open_windows(k.windows, b.grants, 1)
        windows_settle(open, tokens_of(at) * factor)
        close_windows(b, open)
      end
    end
    keep_bucket(b)
  end
  local leaf, place = chain[levels], 2 * levels
  for at = 4 + levels, #ARGV, 2 do
    if ARGV[at + 1] == '1' then
      place = place + 1
      if leaf.key_rps > 0 or #leaf.key_windows > 0 then
        local value = text_at(KEYS[place])
        local spent_to, debt, grants_at = parse_key(value)
        local o = leaf.key_rps > 0 and open(spent_to, debt, leaf.key_rps, leaf.key_depth, true, 1, most) or nil
        if o then settle_open(o, tokens_of(at) * factor) end
        local open = open_windows(leaf.key_windows, value, grants_at)
        windows_settle(open, tokens_of(at) * factor)
        o = o or spent_to and { spent_to = spent_to, debt = debt, tau = 0 }
        keep_key(KEYS[place], key_text(o, open), o, open)
      end
    end
  end
  return { 'ok' }
end

-- Pauses a key, keeping the later of two ends, and returns the end.
local function pause_key(key, zset, until_ms, why)
  local existing = text_at(key)
  local old = existing and tonumber(string.match(existing, '^(%d+)|'))
  if old and old >= until_ms then return old end
  redis.call('SET', key, string.format('%.0f|', until_ms) .. why, 'PX', math.max(until_ms - now_ms, shortest_ttl_ms))
  note(zset, key, until_ms)
  return until_ms
end

-- pause: KEYS pause, pauses; ARGV verb, now, milliseconds from now, why. Returns the end.
local function pause() return { 'ok', pause_key(KEYS[1], KEYS[2], now_ms + tonumber(ARGV[3]), ARGV[4]) } end

-- Returns the strikes before a refusal; jobs that were under way together count once.
local function strikes_before(known, pause_end)
  if not known then return 0 end
  if pause_end > now then return math.max(known.strikes - 1, 0) end
  return known.strikes
end

local FIRST_PAUSE, KNOWN_PAUSE, SHORTEST_PAUSE, MAX_DOUBLINGS, MAX_KNOWN_DOUBLINGS, JITTER = 1e6, 100000, 50000, 8, 11, 0.1
local KEY_PAUSE, WIDE_PAUSE, QUOTA_REST = 86400e6, 900e6, 3600e6

-- Returns the end of a pause after a refusal, in unix milliseconds, from ARGV[3], the stated delay
-- in microseconds (empty for none), and ARGV[4], a number from 0 to 1 for the jitter. It is shorter
-- if the rate is known, and never longer than `most` microseconds.
local function refused_until(strikes, known, most)
  local doubled, said = 2 ^ math.min(strikes, MAX_DOUBLINGS), tonumber(ARGV[3])
  local unstated = known and KNOWN_PAUSE * 2 ^ math.min(strikes, MAX_KNOWN_DOUBLINGS) or FIRST_PAUSE * doubled
  local plain = said and math.max(said, SHORTEST_PAUSE * doubled) or unstated
  return math.ceil((now + math.floor(math.min(plain * (1 + JITTER * tonumber(ARGV[4])), most))) / 1000)
end

-- Returns the rate at which the curve settles after a refusal with a pause to `until_us`, and the
-- share by which it begins below; `configured` is the key's own rate, 0 or below for none.
local function found(l, until_us, configured)
  local before, tried = l.settle, curve(l)
  if tried > 0 then tried = slower(tried, configured > 0 and configured or -1) end
  local guess, known, row, answer = l.cut == GUESS, has_known_rate(l), l.strikes > 0, tonumber(ARGV[3])
  -- A guess doubles while it is counted, and is refused somewhere on the way.
  local span, share, part = now - l.lately_from, USED, FOUND
  if guess then share, part = GUESS_USED, GUESS_FOUND end
  local near = before > 0 and not row and span >= 1e6 and l.lately * 1e6 >= share * tried * span
  -- The count goes on through refusals in a row: a server that counts in windows has allowed so
  -- much in all that time. Its window ends between this refusal and the end of the pause.
  local counted_to = until_us
  if answer then
    if until_us - now >= 1e6 then counted_to = until_us - ROUNDED_UP end
  elseif row then
    counted_to = (now + until_us) / 2
  end
  local counted, mean = counted_to - l.since, 0
  if l.done > 0 and counted > 0 then mean = l.done * 1e6 / counted end
  -- The pause was shorter than the rest of the server's window, and the mean still fits.
  if row and known and mean >= USED * before then return math.min(before, mean), l.cut end
  -- One refusal takes no more than its share, because times without work are not refusals.
  local most = CUT
  if row then
    most = ROW_CUT
  elseif not guess then
    most = CUT * math.min(math.max(span / COUNTED, l.lately / COUNTED_TOKENS, LEAST_PART), 1)
  end
  local least, settle = before * (1 - most), nil
  if near then
    -- The rate in force is what the server allows; of a stated delay the part counts that is no
    -- rounding.
    local stated = answer and math.max(until_us - now - 1e6, 0) or 0
    settle = math.max(tried * part * span / (span + stated), least)
  elseif mean > 0 then
    settle = math.max(mean, least)
  elseif before > 0 then
    settle = least
  else
    settle = math.max(configured, 0)
  end
  local moved = math.abs(settle - before)
  local same, cut = moved < NEAR * before, nil
  if near and moved < SURE * before then
    cut = SURE_CUT
  elseif near and same or moved < SURE * before then
    cut = NEAR_CUT
  elseif near or same or row and known or before == 0 and l.done == 0 then
    cut = CUT
  else
    cut = GUESS
  end
  if settle > 0 then settle = math.max(settle, 1e-6) end
  return settle, cut
end

-- refused: another server refused a job. KEYS knobs, pause, learned, pauses; ARGV verb, now, stated
-- delay, jitter, why, keyed 0|1, 1 if the server sheds load regardless of the caller, from which no
-- rate is learned, 1 if the server is not trusted: jobs without a key go to many such servers, so
-- it stops only the refused job unless the throttle trusts more. Returns the end of the pause,
-- then 1 and a delay in microseconds if only the refused job must wait, else two zeros.
local function refused()
  local k = knobs(KEYS[1])
  local breadth, most = trust(KEYS[1])
  local is_alone = k and k.naive or ARGV[8] == '1' and ARGV[6] ~= '1' and breadth == 0
  local l = parse_learned(text_at(KEYS[3]))
  local until_ms = refused_until(strikes_before(l, l and l.grows_from), l and has_known_rate(l), most or KEY_PAUSE)
  if is_alone then return { 'ok', until_ms, 1, math.max(until_ms * 1000 - now, 0) } end
  until_ms = pause_key(KEYS[2], KEYS[4], until_ms, ARGV[5])
  l = l or new_learned()
  local until_us = until_ms * 1000
  l.refused = l.refused + 1
  -- A job that was under way when the others were refused adds no information.
  if l.grows_from <= now then
    if (not k or k.learns) and ARGV[7] ~= '1' then
      l.settle, l.cut = found(l, until_us, k and ARGV[6] == '1' and k.key_rps or -1)
    end
    l.strikes = l.strikes + 1
    l.lately = 0
  end
  l.grows_from = math.max(l.grows_from, until_us)
  l.lately_from = l.grows_from
  l.credit, l.at = 1, l.grows_from
  keep_learned(KEYS[3], KEYS[4], l)
  return { 'ok', until_ms, 0, 0 }
end

-- refused_all: another server refused a job for a whole throttle. KEYS knobs, bucket, and the knobs
-- of the job's throttle if the server is not trusted; ARGV verb, now, stated delay, jitter, why,
-- and then `throttle` or `account`. Returns the values of refused, or `untrusted` and the widest
-- trusted scope as a number.
local function refused_all()
  if KEYS[3] then
    local breadth = trust(KEYS[3])
    if breadth < (BREADTH[ARGV[6] or ''] or 2) then return { 'untrusted', breadth } end
  end
  local k, b = knobs(KEYS[1]), bucket(KEYS[2])
  local _, most = trust(KEYS[1])
  local r = b.refusal
  local until_ms = refused_until(strikes_before(r, r and r.until_us), false, most or WIDE_PAUSE)
  if k and k.naive then return { 'ok', until_ms, 1, math.max(until_ms * 1000 - now, 0) } end
  local until_us = until_ms * 1000
  if not r or r.until_us <= now or r.until_us < until_us then
    local strikes = 1
    if r then strikes = r.until_us > now and r.strikes or r.strikes + 1 end
    r = { until_us = until_us, credit = 1, at = until_us, strikes = strikes, why = ARGV[5] }
    b.refusal, b.refusal_changed = r, true
  end
  drain(b, true)
  keep_bucket(b)
  return { 'ok', math.floor(r.until_us / 1000), 0, 0 }
end

-- ended: KEYS (knobs, bucket) per level, then pauses, then learned of each key; ARGV verb, now,
-- levels, the expected parent of each level, then for each key: jobs that succeeded, their tokens,
-- jobs that failed, the reported rest of a quota and the microseconds for which it lasts (both
-- empty for none), the microseconds since the last of them began (empty if unknown), keyed 0|1, or -
-- without a key if the server is not trusted.
local function ended()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local first, zset = 4 + levels, KEYS[2 * levels + 1]
  local succeeded, failed = 0, 0
  for at = first, #ARGV, 7 do succeeded, failed = succeeded + tonumber(ARGV[at]), failed + tonumber(ARGV[at + 2]) end
  for i = 1, levels do
    local b = bucket(KEYS[2 * i])
    local r = b.refusal
    if r and r.until_us <= now then
      if succeeded > 0 then r.strikes = 0 end
      probe_answered(r, succeeded, failed, true)
      if r.credit < 0 then b.refusal = nil end
      b.refusal_changed = true
      keep_bucket(b)
    end
  end
  local k = knobs(KEYS[2 * levels - 1])
  local learns = not k or k.learns
  local breadth, most = trust(KEYS[2 * levels - 1])
  local lane = 2 * levels + 1
  for at = first, #ARGV, 7 do
    lane = lane + 1
    local l = parse_learned(text_at(KEYS[lane]))
    local remaining, reset = learns and tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    -- Jobs without a key go to many untrusted servers, and a report of one does not hold for the
    -- others.
    if ARGV[at + 6] == '-' and breadth == 0 then remaining = nil end
    if remaining and not l then l = new_learned() end
    local configured = k and ARGV[at + 6] == '1' and k.key_rps or -1
    local ago = tonumber(ARGV[at + 5])
    if l then
      local good, tokens, bad = tonumber(ARGV[at]), tokens_of(at + 1) * (k and k.cost_factor or 1), tonumber(ARGV[at + 2])
      if now >= l.grows_from then
        if good > 0 then
          if l.strikes > 0 then
            if l.cut == GUESS then
              -- A server that counts in windows has shown a whole one.
              if l.grows_from - l.since >= COUNTED and l.done >= COUNTED_TOKENS then
                l.cut = NEAR_CUT
              elseif l.strikes >= COUNTED_ROW then
                l.cut = CUT
              end
            end
            l.done, l.since = 0, l.grows_from
          end
          l.strikes, l.done = 0, l.done + tokens
          local span = now - l.since
          if span > 2e6 * period(l) then l.done, l.since = l.done / 2, now - span / 2 end
          l.lately, span = l.lately + tokens, now - l.lately_from
          if span > 2e6 * LATELY * period(l) then l.lately, l.lately_from = l.lately / 2, now - span / 2 end
        end
        probe_answered(l, good, bad, l.settle > 0 or not learns or configured > 0)
      end
      if ago then l.begun = math.min(math.max(l.begun, now - ago), now) end
      if remaining then told(l, remaining, reset, most or QUOTA_REST) end
      if learned_over(l, configured) then
        redis.call('DEL', KEYS[lane])
        redis.pcall('ZREM', zset, KEYS[lane])
      else
        keep_learned(KEYS[lane], zset, l)
      end
    end
  end
  return { 'ok' }
end

-- resume: KEYS pause, pauses, learned; returns 1 if there was a pause. The learned state is deleted
-- with it.
local function resume()
  local existing = text_at(KEYS[1])
  local old = existing and tonumber(string.match(existing, '^(%d+)|'))
  redis.call('DEL', KEYS[1], KEYS[3])
  redis.pcall('ZREM', KEYS[2], KEYS[1], KEYS[3])
  return { 'ok', old and old * 1000 > now and 1 or 0 }
end

-- set: KEYS knobs, bucket; ARGV verb, now, if_seq, term, if_rps (empty for no condition; `=` before
-- the text of if_rps, `concurrency=` before that of if_concurrency), create 0|1, absent_only 0|1,
-- by, why, then (field, `=text` or `-`) pairs; `?text` changes nothing, but the field must stand so.
local function set()
  local key = KEYS[1]
  local before = redis.call('HGETALL', key)
  local stands = {}
  for i = 1, #before, 2 do stands[before[i]] = before[i + 1] end
  if #before == 0 and ARGV[6] ~= '1' then return { 'unknown' } end
  local seq = math.floor(number(stands.seq, 0, 1e12) or 0)
  local term = math.floor(number(stands.term, 0, 1e12) or 0)
  if ARGV[3] ~= '' and seq ~= tonumber(ARGV[3]) then
    return { 'conflict', string.format('seq is %.0f, not %s', seq, ARGV[3]) }
  end
  if ARGV[4] ~= '' and term > tonumber(ARGV[4]) then
    return { 'conflict', string.format('term %.0f has written since term %s', term, ARGV[4]) }
  end
  if ARGV[5] ~= '' then
    local field, expected = string.match(ARGV[5], '^(%l*)=(.*)$')
    if field == '' then field = 'rps' end
    if (stands[field] or '') ~= expected then
      return { 'conflict', string.format('%s is %s, not %s', field, string.sub(stands[field] or 'missing', 1, 40), string.sub(expected, 1, 40)) }
    end
  end
  for i = 10, #ARGV, 2 do
    local field, expected = ARGV[i], string.match(ARGV[i + 1], '^%?(.*)$')
    if expected and stands[field] ~= expected then
      return { 'conflict', string.format('%s is no longer %s', field, expected) }
    end
  end
  local after, changed, resumed, named = {}, #before == 0, false, {}
  for field, value in pairs(stands) do after[field] = value end
  for i = 10, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    if string.sub(value, 1, 1) ~= '?' and (ARGV[7] ~= '1' or stands[field] == nil) then
      after[field] = string.sub(value, 1, 1) == '=' and string.sub(value, 2) or nil
      changed, named[field] = true, true
      resumed = resumed or field == 'paused'
      if field == 'mode' and after.mode ~= 'auto' and after.mode ~= nil then after.valid_until = nil end
    end
  end
  -- A change of `capacity` includes its reason, so the old reason goes.
  if named.capacity and not named.capacity_reason and ARGV[7] ~= '1' then after.capacity_reason = nil end
  -- A change of `mode` cancels the end of the old one.
  if named.mode and not named.manual_until_ms and ARGV[7] ~= '1' then after.manual_until_ms = nil end
  local min, max = number(after.min, 1e-6, 1e9) or 0.1, number(after.max, 1e-6, 1e9) or 1000
  if min > max and (after.min ~= stands.min or after.max ~= stands.max) then
    return { 'min_above_max', text(min), text(max) }
  end
  if changed then
    local earlier = knobs(key)
    -- LimitLion reads these three or none, so all three are always there.
    after.rps = after.rps or after.safe_rps or '1'
    after.burst = after.burst or '1'
    after.window = after.window or '1'
    after.seq = string.format('%.0f', seq + 1)
    after.at = string.format('%.0f', math.floor(now / 1000))
    after.by, after.why = ARGV[8], ARGV[9]
    -- What `by` and `why` tell of; if the knobs differ from it, they were changed past this script.
    after.written = after.rps .. ' ' .. (after.paused or '-') .. ' ' .. (after.concurrency or '-') .. ' ' .. #after.why .. ' ' .. after.by
    if ARGV[4] ~= '' then after.term = ARGV[4] end
    for field, value in pairs(after) do
      if value ~= stands[field] then redis.call('HSET', key, field, value) end
    end
    for field in pairs(stands) do
      if after[field] == nil then redis.call('HDEL', key, field) end
    end
    local later = knobs(key)
    local b = bucket(KEYS[2])
    if (earlier and earlier.rps == 0) or later.rps == 0 then drain(b, later.rps == 0) end
    -- A manual resume begins with an empty bucket and without a debt, because no debt outlives a
    -- time without a limit.
    resumed = resumed and not is_true(after.paused)
    if resumed or (earlier and earlier.rps < 0 and later.rps > 0) then forgive(b) end
    keep_bucket(b)
    -- The effect of a refusal ends with the pause.
    if resumed then redis.pcall('HDEL', KEYS[2], 'refusal') end
  end
  local meter = bucket(KEYS[2])
  return {
    'ok', now, before, redis.call('HGETALL', key), text(meter.used), text(meter.limited_us), text(meter.limited_to),
  }
end

-- capacity: KEYS knobs, bucket; ARGV verb, now, `=` and the capacity (or `-` to remove it), why.
-- Conditional writes do not see it: neither seq nor the last author changes.
local function set_capacity()
  local key, value, why = KEYS[1], string.match(ARGV[3], '^=(.*)$'), nil
  if redis.call('EXISTS', key) == 0 then return { 'unknown' } end
  if value and ARGV[4] ~= '' then why = ARGV[4] end
  local stands = redis.call('HMGET', key, 'capacity', 'capacity_reason')
  if (stands[1] or nil) == value and (stands[2] or nil) == why then return { 'ok' } end
  local earlier = knobs(key)
  if value then redis.call('HSET', key, 'capacity', value) else redis.call('HDEL', key, 'capacity') end
  if why then redis.call('HSET', key, 'capacity_reason', why) else redis.call('HDEL', key, 'capacity_reason') end
  local later = knobs(key)
  local is_stopped = later and later.rps == 0 or false
  if earlier.rps == 0 or is_stopped then
    local b = bucket(KEYS[2])
    drain(b, is_stopped)
    keep_bucket(b)
  end
  return { 'ok' }
end

-- look: KEYS knobs, then the pause of each key, then its learned state; ARGV verb, now. Returns for
-- each key: the end of its pause in unix milliseconds (empty for none) and its reason, the learned
-- rate (below 0 for none) and the one at which it settled (0 for none), 1 if no job has succeeded
-- since the pause after a refusal, refusals.
local function look()
  local k, reply, n = knobs(KEYS[1]), { 'ok' }, (#KEYS - 1) / 2
  local found = redis.call('MGET', unpack(KEYS, 2))
  for i = 1, n do
    local until_ms, why = string.match(found[i] or '', '^(%d+)|(.*)$')
    if not until_ms or tonumber(until_ms) * 1000 <= now then until_ms, why = '', '' end
    local l = parse_learned(found[n + i])
    local refused, rate, settle, probing = l and l.refused or 0, -1, 0, 0
    if k and k.naive then l = nil end
    if l and (not k or k.learns) then rate, settle = learned_rate(l), l.settle end
    if l and l.strikes > 0 and l.credit >= 0 and l.grows_from <= now then probing = 1 end
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3] = until_ms, why, text(rate)
    reply[at + 4], reply[at + 5], reply[at + 6] = text(settle), probing, text(refused)
  end
  return reply
end

-- usage: KEYS knobs, bucket, bucket of the key; ARGV verb, now. Returns the time and then, for the
-- windows of the throttle and for those of the key, their number and for each its limit, its span,
-- and the grants that count: the times and the tokens in turn, oldest first, packed as doubles.
local function usage()
  local k = knobs(KEYS[1])
  if not k then return { 'unknown' } end
  local value = text_at(KEYS[3])
  local _, _, grants_at = parse_key(value)
  local reply = { 'ok', text(now) }
  for _, open in ipairs({ open_windows(k.windows, bucket(KEYS[2]).grants, 1), open_windows(k.key_windows, value, grants_at) }) do
    reply[#reply + 1] = #open
    for i = 1, #open do
      local w = open[i]
      local earlier, last = packed_grants(w)
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = text(w.limit), text(w.span), earlier .. last
    end
  end
  return reply
end

local function answer()
  if verb == 'acquire' then return acquire(true) end
  if verb == 'peek' then return acquire(false) end
  if verb == 'acquire_and_peek' then return acquire(true, true) end
  if verb == 'hold' then return hold() end
  if verb == 'refund' then return refund() end
  if verb == 'settle' then return settle() end
  if verb == 'pause' then return pause() end
  if verb == 'refused' then return refused() end
  if verb == 'refused_all' then return refused_all() end
  if verb == 'ended' then return ended() end
  if verb == 'resume' then return resume() end
  if verb == 'set' then return set() end
  if verb == 'capacity' then return set_capacity() end
  if verb == 'look' then return look() end
  if verb == 'usage' then return usage() end
  return redis.error_reply('unknown verb ' .. tostring(verb))
end

if not IS_LIBRARY then return answer() end
redis.register_function('flyball_throttle', function(keys, args)
  begin(keys, args)
  return answer()
end)
