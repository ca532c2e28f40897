-- Lease rows of the run's open evaluation.
-- Invariants: all answers come from one version: the first lease pins it to the version the
-- worker serves, at or after the one asked for. When the pinned version can no longer be served
-- (nothing held, and a worker with a newer one, or of a newer lineage, asks), the evaluation
-- starts over with that one. A run that ends leases nothing.
-- O(rows leased and lapsed).
-- KEYS evaluation returned attempts held results run
-- ARGV worker lineage version count ttl_ms attempt...
-- Reply {evaluation id, attempt, row, ...} or {}
local evaluation, returned, attempts, held, results, run = unpack(KEYS)
local e = redis.call('HMGET', evaluation, 'id', 'state', 'min_version', 'pinned', 'rows', 'next')
if not e[1] or e[2] ~= 'open' then return {} end
local r = redis.call('HMGET', run, 'lineage', 'state')
if r[1] ~= ARGV[2] or r[2] == 'cancelling' or final(r[2]) then return {} end
local version, now = tonumber(ARGV[3]), now_ms()
if version < tonumber(e[3]) then return {} end

-- Where Redis' clock has gone back, no lease lasts longer for it than a minute.
local ttl = tonumber(ARGV[5])
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', attempts, now + ttl + 60001, '+inf')) do
  redis.call('ZADD', attempts, now + ttl, attempt)
end
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', attempts, '-inf', now)) do
  redis.call('LPUSH', returned, redis.call('HGET', held, attempt))
  redis.call('HDEL', held, attempt)
  redis.call('ZREM', attempts, attempt)
end

-- A call repeated because its reply was lost: the same answer, not more rows under the same names.
local reply = {e[1]}
for i = 6, #ARGV do
  local row = redis.call('HGET', held, ARGV[i])
  if not row then break end
  reply[#reply + 1] = ARGV[i]
  reply[#reply + 1] = row
end
if #reply > 1 then return reply end

local pin, rows, next_row = ARGV[2] .. ':' .. ARGV[3], tonumber(e[5]), tonumber(e[6])
if e[4] and e[4] ~= pin then
  local lineage, pinned = string.match(e[4], '^(.*):(%d+)$')
  if lineage == ARGV[2] and tonumber(pinned) > version then return {} end
  if redis.call('ZCARD', attempts) > 0 then return {} end
  redis.call('DEL', returned, results)
  next_row = 0
end
redis.call('HSET', evaluation, 'pinned', pin)

for i = 1, tonumber(ARGV[4]) do
  local row = redis.call('LPOP', returned)
  if not row then
    if next_row >= rows then break end
    row = tostring(next_row)
    next_row = next_row + 1
  end
  local attempt = ARGV[5 + i]
  redis.call('ZADD', attempts, now + ttl, attempt)
  redis.call('HSET', held, attempt, row)
  reply[#reply + 1] = attempt
  reply[#reply + 1] = row
end
redis.call('HSET', evaluation, 'next', next_row)
return reply
