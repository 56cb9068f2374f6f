-- Flyball's throttles: the law of the bucket for Redis 6 or newer and Valkey.
-- It is the law of bucket.rs, holds.rs and serve.rs, operation by operation; docs/reference/throttle-protocol.md tells how to
-- call it.
--
-- Every key is passed in KEYS. ARGV[1] is the verb, ARGV[2] the time in unix microseconds for tests, empty to use the
-- server's clock. Numbers that must not lose digits travel as text, whole ones as integers. This runs once for a hundred
-- lanes, thousands of times a second: what is not needed is neither read nor written, and numbers go into commands as they
-- are, for Redis writes them with all their digits.

local verb, given_now = ARGV[1], ARGV[2]
local now
if given_now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(given_now)
end
local now_ms = math.floor(now / 1000)

local STOPPED_WAIT, CROWDED_WAIT = 500000, 50000
local MAX_WAIT = 1e15
local SLACK = 0.5
local WEEK, HOUR = 604800, 3600
-- With a clock of the tests no key may expire by the real one.
local SHORTEST_TTL_MS = given_now ~= '' and 3600000 or 1

local function text(number) return string.format('%.17g', number) end

-- A number in its range, or nil for anything else: hex, inf, nan, words.
local function number(value, low, high, zero, unlimited)
  if not value or not string.find(value, '^[%s%d.eE+-]+$') then return nil end
  local n = tonumber(value)
  if n and ((n >= low and n <= high) or (zero and n == 0) or (unlimited and n == -1)) then return n end
  return nil
end

-- A limit of concurrency, below 0 for none; nonsense lets one job run.
local function limit_of(value)
  if not value then return -1 end
  local n = number(value, 0, 1e6, true, true)
  return n and math.floor(n) == n and n or 1
end

-- The slower of two rates; below 0 is unlimited.
local function slower(a, b)
  if a < 0 then return b end
  if b < 0 then return a end
  return math.min(a, b)
end

-- The knobs of one throttle as they are in force now, or nil where there are none. `texts` are the numbers as they stand in
-- the hash, or their defaults, in the order of the fields.
local function knobs(key)
  local h = redis.pcall('HMGET', key, 'rps', 'burst', 'window', 'safe_rps', 'key_rps', 'key_burst', 'mode',
    'valid_until', 'paused', 'parent', 'seq', 'on_store_loss', 'concurrency', 'key_concurrency', 'weight')
  if h.err then return nil end
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
  local key_burst = read(6, '1', 0, 1e4)
  if not rps and not h[1] and redis.call('EXISTS', key) == 0 then return nil end
  local function at_most_safe()
    if slower(rps, safe) ~= rps then rps, h[1] = safe, h[4] end
  end
  if not rps then
    rps, h[1] = safe, h[4]
  elseif careful then
    at_most_safe()
  end
  if h[8] then
    local lease = number(h[8], 0, 9e15)
    local kept = h[7] == 'manual' or h[7] == 'shadow' or h[7] == 'off'
    if lease and not kept and now / 1000 > math.floor(lease) then at_most_safe() end
  end
  local p = h[9]
  if p == '1' or p == 'true' or p == 'yes' or p == 'on' then rps, h[1] = 0, '0' end
  return {
    rps = rps, depth = burst * window * 1e6, key_rps = key_rps, key_depth = key_burst * window * 1e6,
    parent = h[10] or '', concurrency = limit_of(h[13]), key_concurrency = limit_of(h[14]), texts = h,
  }
end

-- A bucket opened under a rate above 0, clamped to what can be true.
local function open(spent_to, debt, rps, depth, full, cost)
  local b = { interval = 1e6 / rps, debt = debt or 0 }
  b.tau = math.max(depth, 2 * b.interval)
  local begin = full and now - b.tau or now - b.interval
  local highest = now + b.tau + (10 * cost + b.debt) * b.interval
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

local function wait_for(b, cost) return math.min(cost * b.interval, b.tau) - (now - b.spent_to) end

-- The throttle's bucket is a hash of `spent_to debt used limited_us limited_to stopped kept`; `kept` is when its time to live
-- was set, in unix seconds. `was` is what stands there.
local function bucket(key)
  local h = redis.pcall('HMGET', key, 'spent_to', 'debt', 'used', 'limited_us', 'limited_to', 'stopped', 'kept')
  if h.err then
    -- Only a person can have put something else there; the bucket counts as lost.
    redis.call('DEL', key)
    h = {}
  end
  local b = {
    spent_to = tonumber(h[1] or ''), debt = tonumber(h[2] or '') or 0, used = tonumber(h[3] or '') or 0,
    limited_us = tonumber(h[4] or '') or 0, limited_to = tonumber(h[5] or '') or 0, stopped = h[6] == '1',
  }
  b.key, b.kept = key, tonumber(h[7] or '')
  b.was = { spent_to = b.spent_to, debt = b.debt, used = b.used, limited_us = b.limited_us, limited_to = b.limited_to }
  b.was.stopped = b.stopped
  return b
end

local NUMBERS = { 'used', 'spent_to', 'debt', 'limited_us', 'limited_to' }

-- Writes what has changed. The time to live is set again at most once an hour, unless a debt has to outlast it.
local function keep_bucket(b)
  local fields, n, was = {}, 0, b.was
  for i = 1, 5 do
    local name = NUMBERS[i]
    if b[name] ~= was[name] then
      fields[n + 1], fields[n + 2] = name, b[name]
      n = n + 2
    end
  end
  if b.stopped ~= was.stopped then
    fields[n + 1], fields[n + 2] = 'stopped', b.stopped and '1' or '0'
    n = n + 2
  end
  if n == 0 then return end
  local seconds = math.floor(now / 1e6)
  local ahead = b.spent_to and math.max(math.ceil((b.spent_to - now) / 1e6), 0) or 0
  local due = not b.kept or ahead > 0 or seconds - b.kept >= HOUR or seconds < b.kept
  if due then fields[n + 1], fields[n + 2] = 'kept', seconds end
  redis.call('HSET', b.key, unpack(fields))
  if due then redis.call('EXPIRE', b.key, math.min(WEEK + HOUR + 2 * ahead, 1e12)) end
end

local function drain(b, stopped)
  b.spent_to = math.max(b.spent_to or now, now)
  b.stopped = stopped
end

-- What passed since a stopped throttle was last asked is no refill.
local function open_stored(b, rps, depth, cost)
  local spent_to = b.spent_to
  if b.stopped then spent_to = math.max(spent_to or now, now) end
  return open(spent_to, b.debt, rps, depth, false, cost)
end

local function close_stored(b, o)
  b.spent_to, b.debt, b.stopped = o.spent_to, o.debt, false
end

-- The key's bucket is a string `spent_to`, or `spent_to debt` where there is one, that expires when the bucket is full.
local function parse_key(value)
  if not value then return nil, 0 end
  local plain = tonumber(value)
  if plain then return plain, 0 end
  local spent_to, debt = string.match(value, '^(%S+) (%S+)$')
  return tonumber(spent_to or ''), tonumber(debt or '') or 0
end

local function key_text(spent_to, debt) return debt == 0 and spent_to or text(spent_to) .. ' ' .. text(debt) end

local function keep_key(key, b)
  local ttl = math.min(math.max(math.ceil((b.spent_to + b.tau - now) / 1000), SHORTEST_TTL_MS), 1e15)
  redis.call('SET', key, key_text(b.spent_to, b.debt), 'PX', ttl)
end

-- Those who run jobs under a limit of concurrency are a hash of `jobs expires_ms` by their name. Answers how many `who` may
-- run besides the others; what has lapsed, or cannot have been said, is dropped.
local function share_of(key, who, limit, write)
  local words = redis.pcall('HGETALL', key)
  if words.err then
    if write then redis.call('DEL', key) end
    return limit
  end
  local others, lapsed = 0, {}
  for i = 1, #words, 2 do
    local jobs, expires = string.match(words[i + 1], '^(%d+) (%d+)$')
    expires = tonumber(expires or '')
    if not expires or expires <= now_ms or expires > now_ms + HOUR * 1000 then
      lapsed[#lapsed + 1] = words[i]
    elseif words[i] ~= who then
      others = others + tonumber(jobs)
    end
  end
  if write then
    for i = 1, #lapsed, 1000 do redis.call('HDEL', key, unpack(lapsed, i, math.min(i + 999, #lapsed))) end
  end
  return math.max(limit - others, 0)
end

local function say(key, who, jobs, ttl)
  if jobs <= 0 then
    redis.call('HDEL', key, who)
    return
  end
  redis.call('HSET', key, who, string.format('%.0f %.0f', jobs, now_ms + ttl))
  if redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, math.max(2 * ttl, SHORTEST_TTL_MS))
  end
end

-- acquire, peek: KEYS (knobs, bucket, holds) per level, root first, then pauses, then for each letter of `extra`, in the
-- order b p k, one key per lane: its bucket, its pause, its holds;
-- ARGV verb, now, levels, lanes, extra, who, ttl, held (empty for nobody), the parent that each level is expected to name,
-- then for each run of lanes that are alike: how many, want, cost, keyed 0|1, held.
local function acquire(write)
  local levels, lanes, extra = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
  local who, ttl, held = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
  local chain, stopped, unknown = {}, nil, nil
  for i = 1, levels do
    local k = knobs(KEYS[3 * i - 2])
    local parent = k and k.parent or ''
    if parent ~= ARGV[8 + i] then return { 'chain', i, parent } end
    if not k then
      unknown = unknown or i
    else
      if k.rps == 0 then stopped = stopped or i end
      chain[i] = k
    end
  end
  local leaf, first, base = chain[levels], 9 + levels, 3 * levels + 1
  local needed = extra
  if not unknown and not stopped then
    needed = leaf.key_rps > 0 and 'b' or ''
    if redis.call('EXISTS', KEYS[base]) == 1 then needed = needed .. 'p' end
    if held and leaf.key_concurrency >= 0 then needed = needed .. 'k' end
    for letter in string.gmatch(needed, '.') do
      if not string.find(extra, letter, 1, true) then return { 'keys', needed } end
    end
  end

  local rates, lowest = {}, -1
  for i = 1, levels do
    rates[i] = chain[i] and chain[i].texts[1] or '0'
    if chain[i] then lowest = slower(lowest, chain[i].concurrency) end
  end
  local reply
  if leaf then
    local t = leaf.texts
    local limits = ''
    if lowest >= 0 or leaf.key_concurrency >= 0 then limits = string.format('%.0f %.0f', lowest, leaf.key_concurrency) end
    reply = {
      'ok', now, t[11] or '0', t[12] or '', t[15] or '', needed, t[3], t[5], t[6], levels == 1 and rates[1] or table.concat(rates, ' '),
      limits,
    }
  else
    reply = { 'ok', now, '0', '', '', needed, '1', '-1', '1', table.concat(rates, ' '), '' }
  end
  local at = 11
  local function tell(count, granted, wait, limit, detail)
    wait = math.min(wait, MAX_WAIT)
    if at > 11 and reply[at] == detail and reply[at - 1] == limit and reply[at - 2] == wait and reply[at - 3] == granted then
      reply[at - 4] = reply[at - 4] + count
      return
    end
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5] = count, granted, wait, limit, detail
    at = at + 5
  end
  -- Who wants nothing has nothing to wait for.
  local function tell_nothing(count, want, wait, limit, detail)
    if want == 0 then tell(count, 0, 0, '', '') else tell(count, 0, wait, limit, detail) end
  end

  if unknown or stopped then
    for run = first, #ARGV, 5 do
      local want = tonumber(ARGV[run + 1])
      tell_nothing(tonumber(ARGV[run]), want, STOPPED_WAIT, unknown and 'unknown' or 'stopped', unknown or stopped)
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

  local dearest = 0
  for run = first, #ARGV, 5 do dearest = math.max(dearest, tonumber(ARGV[run + 2])) end
  local stored, opened, rooms, waits, begun = {}, {}, {}, {}, 0
  for i = 1, levels do
    local k = chain[i]
    stored[i] = bucket(KEYS[3 * i - 1])
    opened[i] = k.rps > 0 and open_stored(stored[i], k.rps, k.depth, dearest)
    if held and k.concurrency >= 0 then
      rooms[i] = math.max(share_of(KEYS[3 * i], who, k.concurrency, write) - held, 0)
    end
  end

  -- Serves `count` lanes that want and cost the same, in one step; `own` is the key's bucket, `room` its limit.
  local function serve(count, want, cost, own, room)
    local wanted = count * want
    local granted = wanted
    for i = 1, levels do
      if opened[i] then granted = math.min(granted, units(opened[i], cost)) end
      if rooms[i] then granted = math.min(granted, rooms[i]) end
    end
    if own then granted = math.min(granted, units(own, cost)) end
    if room then granted = math.min(granted, room.left) end
    if granted > 0 then
      begun = begun + granted
      for i = 1, levels do
        if opened[i] then charge(opened[i], granted * (cost * opened[i].interval)) end
        stored[i].used = stored[i].used + granted * cost
        if rooms[i] then rooms[i] = rooms[i] - granted end
      end
      if own then charge(own, granted * (cost * own.interval)) end
      if room then room.left, room.granted = room.left - granted, room.granted + granted end
    end
    if granted == wanted then
      tell(count, want, 0, '', '')
      return granted
    end
    local wait, limit, detail = 0, '', ''
    for i = 1, levels do
      local w = opened[i] and math.ceil(wait_for(opened[i], cost)) or 0
      if w > wait then wait, limit, detail = w, 'level', i end
    end
    local w = own and math.ceil(wait_for(own, cost)) or 0
    if w > wait then wait, limit, detail = w, 'key', '' end
    wait = math.min(wait, MAX_WAIT)
    if wait < CROWDED_WAIT then
      local crowded = nil
      for i = levels, 1, -1 do
        if rooms[i] == 0 then crowded = i end
      end
      if crowded then
        wait, limit, detail = CROWDED_WAIT, 'concurrency', crowded
      elseif room and room.left == 0 then
        wait, limit, detail = CROWDED_WAIT, 'key_concurrency', ''
      end
    end
    if limit == 'level' then waits[detail] = math.max(waits[detail] or 0, wait) end
    local full = math.floor(granted / want)
    local rest = granted - full * want
    local left = count - full
    if full > 0 then tell(full, want, 0, '', '') end
    if rest > 0 then
      tell(1, rest, wait, limit, detail)
      left = left - 1
    end
    if left > 0 then tell(left, 0, wait, limit, detail) end
    return granted
  end

  -- One key per lane of each kind that was passed; only what is needed is read.
  local place, buckets, pauses, holds = base, nil, nil, nil
  for letter in string.gmatch(extra, '.') do
    if string.find(needed, letter, 1, true) and lanes > 0 then
      if letter == 'k' then
        holds = place
      else
        local found = redis.call('MGET', unpack(KEYS, place + 1, place + lanes))
        if letter == 'b' then buckets, found.at = found, place else pauses = found end
      end
    end
    place = place + lanes
  end

  local seen, key_rooms, key_holds = {}, {}, {}
  local function serve_bound(lane, want, cost, keyed_held)
    local room = nil
    if holds then
      local key = KEYS[holds + lane]
      room = key_rooms[key]
      if not room then
        local left = math.max(share_of(key, who, leaf.key_concurrency, write) - keyed_held, 0)
        room = { left = left, granted = 0, held = keyed_held, key = key }
        key_rooms[key], key_holds[#key_holds + 1] = room, room
      end
    end
    if not buckets then
      serve(1, want, cost, nil, room)
      return
    end
    local key, spent_to, debt = KEYS[buckets.at + lane], nil, nil
    local earlier = seen[key]
    if earlier then
      spent_to, debt = earlier.spent_to, earlier.debt
    else
      spent_to, debt = parse_key(buckets[lane])
    end
    local own = open(spent_to, debt, leaf.key_rps, leaf.key_depth, true, cost)
    local granted = serve(1, want, cost, own, room)
    -- A clamp is kept as well: clamped on reading alone, it would move along with the clock for ever.
    if granted > 0 or (spent_to and spent_to > own.spent_to) then
      seen[key] = own
      if write then keep_key(key, own) end
    end
  end

  -- Lanes that follow each other, want the same and have nothing of their own to be asked are served together.
  local alike, alike_want, alike_cost = 0, 0, 0
  local function serve_alike()
    if alike > 0 then serve(alike, alike_want, alike_cost) end
    alike = 0
  end
  local function join(count, want, cost)
    if want ~= alike_want or cost ~= alike_cost then serve_alike() end
    alike, alike_want, alike_cost = alike + count, want, cost
  end
  local lane = 0
  for run = first, #ARGV, 5 do
    local count, want, cost = tonumber(ARGV[run]), tonumber(ARGV[run + 1]), tonumber(ARGV[run + 2])
    local bound = ARGV[run + 3] == '1' and (leaf.key_rps >= 0 or holds)
    if not bound and not pauses then
      join(count, want, cost)
      lane = lane + count
    else
      for _ = 1, count do
        lane = lane + 1
        local pause = pauses and pauses[lane]
        local until_ms = pause and tonumber(string.match(pause, '^(%d+)|'))
        if until_ms and until_ms * 1000 > now then
          serve_alike()
          tell_nothing(1, want, until_ms * 1000 - now, 'paused', pause)
        elseif not bound then
          join(1, want, cost)
        elseif leaf.key_rps == 0 then
          serve_alike()
          tell_nothing(1, want, STOPPED_WAIT, 'key', '')
        else
          serve_alike()
          serve_bound(lane, want, cost, tonumber(ARGV[run + 4]))
        end
      end
    end
  end
  serve_alike()

  for i = 1, levels do
    local b, o = stored[i], opened[i]
    local has_more = not o or units(o, dearest) >= 1
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
      if rooms[i] then say(KEYS[3 * i], who, held + begun, ttl) end
    end
  end
  if write then
    for _, room in ipairs(key_holds) do say(room.key, who, room.held + room.granted, ttl) end
  end
  return reply
end

if verb == 'acquire' then return acquire(true) end
if verb == 'peek' then return acquire(false) end

-- The answer to a call whose levels are not the chain any more, or nil. Each level has two keys, the first its knobs.
local function chain_changed(levels)
  for i = 1, levels do
    local found = redis.pcall('HGET', KEYS[2 * i - 1], 'parent')
    local parent = type(found) == 'string' and found or ''
    if parent ~= ARGV[3 + i] then return { 'chain', i, parent } end
  end
  return nil
end

-- hold: KEYS (knobs, holds) per level, then the holds of each key; ARGV verb, now, levels, the parent that each level is
-- expected to name, who, ttl, held, then held of each key.
local function hold()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local who, ttl, held = ARGV[4 + levels], tonumber(ARGV[5 + levels]), tonumber(ARGV[6 + levels])
  local key_limit = -1
  for i = 1, levels do
    local h = redis.pcall('HMGET', KEYS[2 * i - 1], 'concurrency', 'key_concurrency')
    key_limit = -1
    if not h.err then
      if limit_of(h[1]) >= 0 then say(KEYS[2 * i], who, held, ttl) end
      key_limit = limit_of(h[2])
    end
  end
  if key_limit >= 0 then
    for i = 1, #KEYS - 2 * levels do say(KEYS[2 * levels + i], who, tonumber(ARGV[6 + levels + i]), ttl) end
  end
  return { 'ok' }
end

-- refund: KEYS (knobs, bucket) per level, then the buckets of keys in the order in which they are repaid; ARGV verb, now,
-- levels, the parent that each level is expected to name, then for each run of grants that are alike: how many, units, cost,
-- the time that one unit was charged at the key (0 for no key), whole 0|1, and if whole the same time for each level, root
-- first. If the number of levels is another than at the grant, its charges belong to others: only the key is repaid.
local function refund()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local buckets, at, key = {}, 4 + levels, 2 * levels
  for i = 1, levels do buckets[i] = bucket(KEYS[2 * i]) end
  while at <= #ARGV do
    local count, n, cost, time = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local whole = ARGV[at + 4] == '1'
    at = at + 5
    if whole then
      for i = 1, levels do
        local b, back = buckets[i], n * tonumber(ARGV[at])
        for _ = 1, count do
          if b.spent_to then b.spent_to = b.spent_to - back end
          b.used = b.used - n * cost
        end
        at = at + 1
      end
    end
    if time > 0 then
      for _ = 1, count do
        key = key + 1
        local spent_to, debt = parse_key(redis.call('GET', KEYS[key]))
        if spent_to then redis.call('SET', KEYS[key], key_text(spent_to - n * time, debt), 'KEEPTTL') end
      end
    end
  end
  for i = 1, levels do keep_bucket(buckets[i]) end
  return { 'ok' }
end

-- settle: KEYS (knobs, bucket) per level, then the bucket of each key that is charged; ARGV verb, now, levels, the expected
-- parents, then for each charge: tokens (below 0 returns), keyed 0|1. Charges nothing if a level does not exist.
local function settle()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local chain = {}
  for i = 1, levels do
    chain[i] = knobs(KEYS[2 * i - 1])
    if not chain[i] then return { 'unknown', i } end
  end
  for i = 1, levels do
    local k, b = chain[i], bucket(KEYS[2 * i])
    for at = 4 + levels, #ARGV, 2 do
      local tokens = tonumber(ARGV[at])
      if k.rps > 0 then
        local o = open_stored(b, k.rps, k.depth, 1)
        charge(o, tokens * o.interval)
        close_stored(b, o)
      end
      b.used = b.used + tokens
    end
    keep_bucket(b)
  end
  local leaf, place = chain[levels], 2 * levels
  for at = 4 + levels, #ARGV, 2 do
    if ARGV[at + 1] == '1' then
      place = place + 1
      if leaf.key_rps > 0 then
        local spent_to, debt = parse_key(redis.call('GET', KEYS[place]))
        local o = open(spent_to, debt, leaf.key_rps, leaf.key_depth, true, 1)
        charge(o, tonumber(ARGV[at]) * o.interval)
        keep_key(KEYS[place], o)
      end
    end
  end
  return { 'ok' }
end

-- pause: KEYS pause, pauses; ARGV verb, now, milliseconds from now, why. The later of two ends wins; answers the end.
-- `pauses` holds the names of all pauses of a throttle by their end and is gone with the last: while there are none, acquire
-- need not look for each lane's.
local function pause()
  local delay = tonumber(ARGV[3])
  local until_ms = now_ms + delay
  local existing = redis.call('GET', KEYS[1])
  local old = existing and tonumber(string.match(existing, '^(%d+)|'))
  if old and old >= until_ms then return { 'ok', old } end
  local value = string.format('%.0f|', until_ms) .. ARGV[4]
  redis.call('SET', KEYS[1], value, 'PX', math.max(delay, SHORTEST_TTL_MS))
  if redis.call('TYPE', KEYS[2]).ok ~= 'zset' then redis.call('DEL', KEYS[2]) end
  -- A clock that steps back makes a pause of the last hours last again, and it must still be found.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms - 2 * HOUR * 1000)
  redis.call('ZADD', KEYS[2], until_ms, KEYS[1])
  local last = tonumber(redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
  redis.call('PEXPIRE', KEYS[2], math.max(last - now_ms, SHORTEST_TTL_MS))
  return { 'ok', until_ms }
end

-- resume: KEYS pause, pauses; answers 1 if there was a pause.
local function resume()
  local existing = redis.call('GET', KEYS[1])
  local old = existing and tonumber(string.match(existing, '^(%d+)|'))
  redis.call('DEL', KEYS[1])
  redis.pcall('ZREM', KEYS[2], KEYS[1])
  return { 'ok', old and old * 1000 > now and 1 or 0 }
end

-- set: KEYS knobs, bucket; ARGV verb, now, if_seq, term, if_rps (empty for no condition; `=` before the
-- text of if_rps), create 0|1, absent_only 0|1, by, why, then (field, `=text` or `-`) pairs.
local function set()
  local key = KEYS[1]
  local before = redis.call('HGETALL', key)
  local stands = {}
  for i = 1, #before, 2 do stands[before[i]] = before[i + 1] end
  if #before == 0 and ARGV[6] ~= '1' then return { 'unknown' } end
  local seq = math.floor(number(stands.seq, 0, 9e15) or 0)
  local term = math.floor(number(stands.term, 0, 9e15) or 0)
  if ARGV[3] ~= '' and seq ~= tonumber(ARGV[3]) then
    return { 'conflict', string.format('seq is %.0f, not %s', seq, ARGV[3]) }
  end
  if ARGV[4] ~= '' and term > tonumber(ARGV[4]) then
    return { 'conflict', string.format('term %.0f has written since term %s', term, ARGV[4]) }
  end
  if ARGV[5] ~= '' and '=' .. (stands.rps or '') ~= ARGV[5] then
    return { 'conflict', string.format('rps is %s, not %s', stands.rps or 'missing', string.sub(ARGV[5], 2)) }
  end
  local after, changed = {}, #before == 0
  for field, value in pairs(stands) do after[field] = value end
  for i = 10, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    if ARGV[7] ~= '1' or stands[field] == nil then
      after[field] = string.sub(value, 1, 1) == '=' and string.sub(value, 2) or nil
      changed = true
      if field == 'mode' and after.mode ~= 'auto' and after.mode ~= nil then after.valid_until = nil end
    end
  end
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
    if ARGV[4] ~= '' then after.term = ARGV[4] end
    for field, value in pairs(after) do
      if value ~= stands[field] then redis.call('HSET', key, field, value) end
    end
    for field in pairs(stands) do
      if after[field] == nil then redis.call('HDEL', key, field) end
    end
    local later = knobs(key)
    if (earlier and earlier.rps == 0) or later.rps == 0 then
      local b = bucket(KEYS[2])
      drain(b, later.rps == 0)
      keep_bucket(b)
    end
  end
  local meter = bucket(KEYS[2])
  return {
    'ok', now, before, redis.call('HGETALL', key), text(meter.used), text(meter.limited_us), text(meter.limited_to),
  }
end

if verb == 'hold' then return hold() end
if verb == 'refund' then return refund() end
if verb == 'settle' then return settle() end
if verb == 'pause' then return pause() end
if verb == 'resume' then return resume() end
if verb == 'set' then return set() end
return redis.error_reply('unknown verb ' .. tostring(verb))
