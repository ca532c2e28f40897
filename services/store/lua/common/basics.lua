-- Shared by all scripts: time, states of a run, and a Redis without memory.

-- Milliseconds since 1970 by Redis' own clock, so hosts need not agree on the time.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Whether the caller is a learner that was replaced: its fencing token is old, and it may change nothing.
local function fenced(run, token)
  return redis.call('HGET', run, 'fencing_token') ~= token
end

-- Let a script run although Redis is at its `maxmemory`: Redis refuses a script's first write if that may
-- grow, and no later one. PERSIST is a write that changes nothing. Only for scripts that hardly grow.
local function also_when_full(key)
  redis.call('PERSIST', key)
end

-- Whether a run in this state has ended.
local function final(state)
  return state == 'succeeded' or state == 'failed' or state == 'cancelled'
end

-- The words of a text, as a set.
local function words(text)
  local set = {}
  for word in string.gmatch(text or '', '%S+') do set[word] = true end
  return set
end

-- The fields of a hash with these names, by name; false for a missing field.
local function hash_fields(key, ...)
  local fields, names = {}, {...}
  for i, value in ipairs(redis.call('HMGET', key, ...)) do fields[names[i]] = value end
  return fields
end
