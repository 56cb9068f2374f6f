-- Flyball's throttles: the law of the bucket for Redis 6 or newer and Valkey.
-- It is the law of bucket.rs and tree.rs, operation by operation; docs/reference/throttle-protocol.md tells how to call it.
--
-- Every key is passed in KEYS. ARGV[1] is the verb, ARGV[2] the time in unix microseconds for tests, empty to use the
-- server's clock. Numbers that must not lose digits travel as text.

local verb, given_now = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if given_now ~= '' then now = tonumber(given_now) end

local STOPPED_WAIT = 500000
local MAX_WAIT = 1e15
local SLACK = 0.5
local WEEK = 604800
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

-- The slower of two rates; below 0 is unlimited.
local function slower(a, b)
  if a < 0 then return b end
  if b < 0 then return a end
  return math.min(a, b)
end

-- The knobs of one throttle as they are in force now, or nil where there are none.
local function knobs(key)
  local h = redis.pcall('HMGET', key, 'rps', 'burst', 'window', 'safe_rps', 'key_rps', 'key_burst', 'mode',
    'valid_until', 'paused', 'parent', 'seq', 'on_store_loss')
  if h.err then return nil end
  local careful = false
  local function read(i, default, low, high, zero, unlimited)
    if not h[i] then return default end
    local n = number(h[i], low, high, zero, unlimited)
    if not n then careful = true end
    return n or default
  end
  local rps = number(h[1], 1e-6, 1e9, true, true)
  local safe = read(4, 1, 1e-6, 1e9, true, false)
  local burst = read(2, 1, 0, 1e4)
  local window = read(3, 1, 0.001, 86400)
  local key_rps = read(5, -1, 1e-6, 1e9, true, true)
  local key_burst = read(6, 1, 0, 1e4)
  if not rps and not h[1] and redis.call('EXISTS', key) == 0 then return nil end
  if not rps then
    rps = safe
  elseif careful then
    rps = slower(rps, safe)
  end
  local lease = number(h[8], 0, 9e15)
  if lease then lease = math.floor(lease) end
  local kept = h[7] == 'manual' or h[7] == 'shadow' or h[7] == 'off'
  if lease and not kept and now / 1000 > lease then rps = slower(rps, safe) end
  local p = h[9]
  if p == '1' or p == 'true' or p == 'yes' or p == 'on' then rps = 0 end
  return {
    rps = rps, depth = burst * window * 1e6, key_rps = key_rps, key_depth = key_burst * window * 1e6,
    parent = h[10] or '', seq = h[11] or '0', on_store_loss = h[12] or '', window = window,
  }
end

local function interval(rps) return rps > 0 and 1e6 / rps or 0 end

-- A bucket opened under a rate above 0, clamped to what can be true.
local function open(spent_to, debt, rps, depth, full, cost)
  local b = { interval = 1e6 / rps, debt = debt or 0 }
  b.tau = math.max(depth, 2 * b.interval)
  local begin = full and now - b.tau or now - b.interval
  local highest = now + b.tau + (10 * cost + b.debt) * b.interval
  b.spent_to = math.max(math.min(spent_to or begin, highest), now - b.tau)
  return b
end

local function is_full(b) return b.spent_to <= now - b.tau + SLACK end

local function units(b, cost)
  local n = math.floor((now - b.spent_to + SLACK) / (cost * b.interval))
  if n < 1 and is_full(b) then return 1 end
  return math.max(n, 0)
end

local function charge(b, time)
  b.spent_to = b.spent_to + time
  b.debt = math.max((b.spent_to - now) / b.interval, 0)
end

local function wait_for(b, cost) return math.min(cost * b.interval, b.tau) - (now - b.spent_to) end

-- The throttle's bucket is a hash of `spent_to debt stopped used limited_us limited_to`.
local function bucket(key)
  local h = redis.pcall('HMGET', key, 'spent_to', 'debt', 'used', 'limited_us', 'limited_to', 'stopped')
  if h.err then
    -- Only a person can have put something else there; the bucket counts as lost.
    redis.call('DEL', key)
    h = {}
  end
  return {
    key = key, stopped = h[6] == '1', spent_to = tonumber(h[1] or ''), debt = tonumber(h[2] or '') or 0, used = tonumber(h[3] or '') or 0,
    limited_us = tonumber(h[4] or '') or 0, limited_to = tonumber(h[5] or '') or 0,
  }
end

local function keep_bucket(b)
  local fields = { 'used', text(b.used), 'limited_us', text(b.limited_us), 'limited_to', text(b.limited_to) }
  local ttl = WEEK
  if b.spent_to then
    fields[7], fields[8], fields[9], fields[10] = 'spent_to', text(b.spent_to), 'debt', text(b.debt)
    fields[11], fields[12] = 'stopped', b.stopped and '1' or '0'
    ttl = math.min(WEEK + 2 * math.max(math.ceil((b.spent_to - now) / 1e6), 0), 1e12)
  end
  redis.call('HSET', b.key, unpack(fields))
  redis.call('EXPIRE', b.key, string.format('%.0f', ttl))
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

local function refused(b, wait)
  b.limited_us = b.limited_us + (wait - math.max(b.limited_to - now, 0))
  b.limited_to = now + wait
end

local function relieved(b)
  local pending = math.max(b.limited_to - now, 0)
  b.limited_us = b.limited_us - pending
  b.limited_to = b.limited_to - pending
end

-- The key's bucket is a string `spent_to debt` that expires when the bucket is full.
local function parse_key(value)
  if not value then return nil, 0 end
  local spent_to, debt = string.match(value, '^(%S+) (%S+)$')
  return tonumber(spent_to or value), tonumber(debt or '') or 0
end

local function keep_key(key, b)
  local ttl = math.min(math.max(math.ceil((b.spent_to + b.tau - now) / 1000), SHORTEST_TTL_MS), 1e15)
  redis.call('SET', key, text(b.spent_to) .. ' ' .. text(b.debt), 'PX', string.format('%.0f', ttl))
end

-- acquire, peek: KEYS (knobs, bucket) per level, root first, then (key bucket, pause) per lane;
-- ARGV verb, now, levels, lanes, the parent that each level is expected to name, then (want, cost, keyed 0|1) per lane.
local function acquire(write)
  local levels, lanes = tonumber(ARGV[3]), tonumber(ARGV[4])
  local chain, stopped, unknown = {}, nil, nil
  for i = 1, levels do
    local k = knobs(KEYS[2 * i - 1])
    local parent = k and k.parent or ''
    if parent ~= ARGV[4 + i] then return { 'chain', tostring(i), parent } end
    if not k then
      unknown = unknown or i
    else
      if k.rps == 0 then stopped = stopped or i end
      chain[i] = k
    end
  end
  local leaf = chain[levels] or { rps = 0, seq = '0', on_store_loss = '', window = 1, key_rps = -1, key_depth = 0 }
  local slowest, intervals = -1, {}
  for i = 1, levels do
    slowest = slower(slowest, chain[i] and chain[i].rps or 0)
    intervals[i] = text(chain[i] and interval(chain[i].rps) or 0)
  end
  local reply = {
    'ok', text(now), text(leaf.rps), leaf.seq, leaf.on_store_loss, text(leaf.window), text(slowest),
    text(leaf.key_rps), text(leaf.key_depth), table.concat(intervals, ' '), text(interval(leaf.key_rps)),
  }
  local function tell(granted, wait, limit, detail)
    local n = #reply
    reply[n + 1], reply[n + 2] = string.format('%.0f', granted), string.format('%.0f', math.min(wait, MAX_WAIT))
    reply[n + 3], reply[n + 4] = limit, detail
  end
  local first = 5 + levels

  if unknown or stopped then
    for lane = 0, lanes - 1 do
      if tonumber(ARGV[first + 3 * lane]) == 0 then
        tell(0, 0, '', '')
      else
        tell(0, STOPPED_WAIT, unknown and 'unknown' or 'stopped', tostring(unknown or stopped))
      end
    end
    if write and not unknown then
      for i = 1, levels do
        if chain[i].rps == 0 then
          local b = bucket(KEYS[2 * i])
          drain(b, true)
          if i == stopped then refused(b, STOPPED_WAIT) end
          keep_bucket(b)
        end
      end
    end
    return reply
  end

  local dearest = 0
  for lane = 0, lanes - 1 do dearest = math.max(dearest, tonumber(ARGV[first + 1 + 3 * lane])) end
  local stored, opened = {}, {}
  for i = 1, levels do
    stored[i] = bucket(KEYS[2 * i])
    opened[i] = chain[i].rps > 0 and open_stored(stored[i], chain[i].rps, chain[i].depth, dearest)
  end
  local lane_keys = {}
  for i = 2 * levels + 1, #KEYS do lane_keys[#lane_keys + 1] = KEYS[i] end
  local found = #lane_keys > 0 and redis.call('MGET', unpack(lane_keys)) or {}
  local seen, waits = {}, {}

  for lane = 0, lanes - 1 do
    local want, cost = tonumber(ARGV[first + 3 * lane]), tonumber(ARGV[first + 1 + 3 * lane])
    local keyed = ARGV[first + 2 + 3 * lane] == '1'
    local key, pause = lane_keys[2 * lane + 1], found[2 * lane + 2]
    local until_ms = pause and tonumber(string.match(pause, '^(%d+)|'))
    if until_ms and until_ms * 1000 > now then
      if want == 0 then tell(0, 0, '', '') else tell(0, until_ms * 1000 - now, 'paused', pause) end
    elseif keyed and leaf.key_rps == 0 then
      if want == 0 then tell(0, 0, '', '') else tell(0, STOPPED_WAIT, 'key', '') end
    else
      local own, was
      if keyed and leaf.key_rps > 0 then
        was = seen[key]
        if not was then
          local spent_to, debt = parse_key(found[2 * lane + 1])
          was = { spent_to = spent_to, debt = debt }
        end
        own = open(was.spent_to, was.debt, leaf.key_rps, leaf.key_depth, true, cost)
      end
      local granted = want
      for i = 1, levels do
        if opened[i] then granted = math.min(granted, units(opened[i], cost)) end
      end
      if own then granted = math.min(granted, units(own, cost)) end
      if granted > 0 then
        for i = 1, levels do
          if opened[i] then charge(opened[i], granted * (cost * opened[i].interval)) end
          stored[i].used = stored[i].used + granted * cost
        end
        if own then charge(own, granted * (cost * own.interval)) end
      end
      -- A clamp is kept as well: clamped on reading alone, it would move along with the clock for ever.
      if own and (granted > 0 or (was.spent_to and was.spent_to > own.spent_to)) then
        seen[key] = own
        if write then keep_key(key, own) end
      end
      local wait, limit, detail = 0, '', ''
      if granted < want then
        for i = 1, levels do
          local w = opened[i] and math.ceil(wait_for(opened[i], cost)) or 0
          if w > wait then wait, limit, detail = w, 'level', tostring(i) end
        end
        local w = own and math.ceil(wait_for(own, cost)) or 0
        if w > wait then wait, limit, detail = w, 'key', '' end
        wait = math.min(wait, MAX_WAIT)
        if limit == 'level' then
          local i = tonumber(detail)
          waits[i] = math.max(waits[i] or 0, wait)
        end
      end
      tell(granted, wait, limit, detail)
    end
  end

  for i = 1, levels do
    local b = stored[i]
    local has_more = not opened[i] or units(opened[i], dearest) >= 1
    if opened[i] then close_stored(b, opened[i]) end
    if waits[i] then
      refused(b, waits[i])
    elseif has_more then
      relieved(b)
    end
    if write then keep_bucket(b) end
  end
  return reply
end

-- The answer to a call whose levels are not the chain any more, or nil.
local function chain_changed(levels)
  for i = 1, levels do
    local found = redis.pcall('HGET', KEYS[2 * i - 1], 'parent')
    local parent = type(found) == 'string' and found or ''
    if parent ~= ARGV[3 + i] then return { 'chain', tostring(i), parent } end
  end
  return nil
end

-- refund: KEYS (knobs, bucket) per level, then the key's bucket; ARGV verb, now, levels, the parent that each level is
-- expected to name, units, cost, the time that one unit was charged at the key, then the same for each level, root
-- first. If the number of levels is another than at the grant, its charges belong to others: only the key is repaid.
local function refund()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local first = 4 + levels
  local n, cost, time = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  if #ARGV == first + 2 + levels then
    for i = 1, levels do
      local b = bucket(KEYS[2 * i])
      if b.spent_to then b.spent_to = b.spent_to - n * tonumber(ARGV[first + 2 + i]) end
      b.used = b.used - n * cost
      keep_bucket(b)
    end
  end
  local key = KEYS[2 * levels + 1]
  if time > 0 then
    local spent_to, debt = parse_key(redis.call('GET', key))
    if spent_to then redis.call('SET', key, text(spent_to - n * time) .. ' ' .. text(debt), 'KEEPTTL') end
  end
  return { 'ok' }
end

-- settle: KEYS as refund; ARGV verb, now, levels, the expected parents, tokens (below 0 returns), keyed 0|1.
local function settle()
  local levels = tonumber(ARGV[3])
  local changed = chain_changed(levels)
  if changed then return changed end
  local tokens, keyed, leaf = tonumber(ARGV[4 + levels]), ARGV[5 + levels] == '1', nil
  for i = 1, levels do
    local k = knobs(KEYS[2 * i - 1])
    if not k then return { 'unknown', tostring(i) } end
    local b = bucket(KEYS[2 * i])
    if k.rps > 0 then
      local o = open_stored(b, k.rps, k.depth, 1)
      charge(o, tokens * o.interval)
      close_stored(b, o)
    end
    b.used = b.used + tokens
    keep_bucket(b)
    leaf = k
  end
  if keyed and leaf.key_rps > 0 then
    local key = KEYS[2 * levels + 1]
    local spent_to, debt = parse_key(redis.call('GET', key))
    local o = open(spent_to, debt, leaf.key_rps, leaf.key_depth, true, 1)
    charge(o, tokens * o.interval)
    keep_key(key, o)
  end
  return { 'ok' }
end

-- pause: KEYS pause; ARGV verb, now, milliseconds from now, why. The later of two ends wins; answers the end.
local function pause()
  local delay = tonumber(ARGV[3])
  local until_ms = math.floor(now / 1000) + delay
  local existing = redis.call('GET', KEYS[1])
  local old = existing and tonumber(string.match(existing, '^(%d+)|'))
  if old and old >= until_ms then return { 'ok', string.format('%.0f', old) } end
  local value = string.format('%.0f|', until_ms) .. ARGV[4]
  redis.call('SET', KEYS[1], value, 'PX', string.format('%.0f', math.max(delay, SHORTEST_TTL_MS)))
  return { 'ok', string.format('%.0f', until_ms) }
end

-- resume: KEYS pause; answers 1 if there was a pause.
local function resume()
  local existing = redis.call('GET', KEYS[1])
  local old = existing and tonumber(string.match(existing, '^(%d+)|'))
  redis.call('DEL', KEYS[1])
  return { 'ok', old and old * 1000 > now and '1' or '0' }
end

-- set: KEYS knobs, bucket, names; ARGV verb, now, name, if_seq, term, if_rps (empty for no condition; `=` before the
-- text of if_rps), create 0|1, absent_only 0|1, by, why, then (field, `=text` or `-`) pairs.
local function set()
  local key, name = KEYS[1], ARGV[3]
  local before = redis.call('HGETALL', key)
  local stands = {}
  for i = 1, #before, 2 do stands[before[i]] = before[i + 1] end
  if #before == 0 and ARGV[7] ~= '1' then return { 'unknown' } end
  local seq = math.floor(number(stands.seq, 0, 9e15) or 0)
  local term = math.floor(number(stands.term, 0, 9e15) or 0)
  if ARGV[4] ~= '' and seq ~= tonumber(ARGV[4]) then
    return { 'conflict', string.format('seq is %.0f, not %s', seq, ARGV[4]) }
  end
  if ARGV[5] ~= '' and term > tonumber(ARGV[5]) then
    return { 'conflict', string.format('term %.0f has written since term %s', term, ARGV[5]) }
  end
  if ARGV[6] ~= '' and '=' .. (stands.rps or '') ~= ARGV[6] then
    return { 'conflict', string.format('rps is %s, not %s', stands.rps or 'missing', string.sub(ARGV[6], 2)) }
  end
  local after, changed = {}, #before == 0
  for field, value in pairs(stands) do after[field] = value end
  for i = 11, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    if ARGV[8] ~= '1' or stands[field] == nil then
      after[field] = string.sub(value, 1, 1) == '=' and string.sub(value, 2) or nil
      changed = true
      if field == 'mode' and after.mode ~= 'auto' and after.mode ~= nil then after.valid_until = nil end
    end
  end
  local min, max = number(after.min, 1e-6, 1e9) or 0.1, number(after.max, 1e-6, 1e9) or 1000
  if min > max and (after.min ~= stands.min or after.max ~= stands.max) then
    return { 'min_above_max', text(min), text(max) }
  end
  redis.call('SADD', KEYS[3], name)
  if changed then
    local earlier = knobs(key)
    -- LimitLion reads these three or none, so all three are always there.
    after.rps = after.rps or after.safe_rps or '1'
    after.burst = after.burst or '1'
    after.window = after.window or '1'
    after.seq = string.format('%.0f', seq + 1)
    after.at = string.format('%.0f', math.floor(now / 1000))
    after.by, after.why = ARGV[9], ARGV[10]
    if ARGV[5] ~= '' then after.term = ARGV[5] end
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
    'ok', text(now), before, redis.call('HGETALL', key), text(meter.used), text(meter.limited_us), text(meter.limited_to),
  }
end

if verb == 'acquire' then return acquire(true) end
if verb == 'peek' then return acquire(false) end
if verb == 'refund' then return refund() end
if verb == 'settle' then return settle() end
if verb == 'pause' then return pause() end
if verb == 'resume' then return resume() end
if verb == 'set' then return set() end
return redis.error_reply('unknown verb ' .. tostring(verb))
