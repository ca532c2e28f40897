-- Lease rows of the run's open evaluation.
-- Invariants: a row is in exactly one of: not yet leased, returned, held by one attempt, answered.
-- At most `evaluation_workers` of the run (0: any number) have a seat, which lapses like a lease.
-- An idle worker takes one at once, a busy one when the evaluation has been open for a second. A
-- worker that only evaluates has one in any case, `reserved`, also between two evaluations.
-- A worker gets rows only while it serves the version that is evaluated; with a seat and another
-- version it gets the request alone, and loads that version. A run that ends leases nothing.
-- O(rows leased and lapsed).
-- KEYS evaluation requests seats returned attempts held run
-- ARGV worker version 'idle'|'busy'|'reserved' count ttl_ms known_id attempt...
-- Reply {} or {id, json(request) or '' where known_id is id, attempt, row, ...}
local evaluation, requests, seats, returned, attempts, held, run = unpack(KEYS)
local e = redis.call('HMGET', evaluation, 'id', 'version', 'rows', 'next', 'opened')
local reserved = ARGV[3] == 'reserved'
if not e[1] and not reserved then return {} end
local r = redis.call('HMGET', run, 'state', 'evaluation_workers')
if not r[1] or r[1] == 'cancelling' or r[1] == 'paused' or final(r[1]) then return {} end

local now, ttl = now_ms(), tonumber(ARGV[5])
-- Such a worker asks several times a second: a write for each would fill the log of Redis.
local seat = tonumber(redis.call('ZSCORE', seats, ARGV[1]) or '0')
if reserved and seat < now + ttl / 2 then redis.call('ZADD', seats, now + ttl, ARGV[1]) end
if not e[1] then return {} end
-- Where Redis' clock has gone back, no lease lasts longer for it than a minute.
for _, key in ipairs({attempts, seats}) do
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, now + ttl + 60001, '+inf')) do
    redis.call('ZADD', key, now + ttl, member)
  end
end
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', attempts, '-inf', now)) do
  redis.call('LPUSH', returned, redis.call('HGET', held, attempt))
  redis.call('HDEL', held, attempt)
  redis.call('ZREM', attempts, attempt)
end
redis.call('ZREMRANGEBYSCORE', seats, '-inf', now)

local reply = {e[1], ''}
if e[1] ~= ARGV[6] then reply[2] = redis.call('HGET', requests, e[1]) end
-- A call repeated because its reply was lost: the same answer, not more rows under the same names.
for i = 7, #ARGV do
  local row = redis.call('HGET', held, ARGV[i])
  if not row then break end
  reply[#reply + 1] = ARGV[i]
  reply[#reply + 1] = row
end
if #reply > 2 then return reply end

local rows, next_row = tonumber(e[3]), tonumber(e[4])
if next_row >= rows and redis.call('LLEN', returned) == 0 then return {} end
if not redis.call('ZSCORE', seats, ARGV[1]) then
  local limit = tonumber(r[2] or '0')
  if limit > 0 and redis.call('ZCARD', seats) >= limit then return {} end
  if limit > 0 and ARGV[3] == 'busy' and now - tonumber(e[5]) < 1000 then return {} end
end
redis.call('ZADD', seats, now + ttl, ARGV[1])
if ARGV[2] ~= e[2] then return reply end

for i = 1, tonumber(ARGV[4]) do
  local row = redis.call('LPOP', returned)
  if not row then
    if next_row >= rows then break end
    row = tostring(next_row)
    next_row = next_row + 1
  end
  local attempt = ARGV[6 + i]
  redis.call('ZADD', attempts, now + ttl, attempt)
  redis.call('HSET', held, attempt, row)
  reply[#reply + 1] = attempt
  reply[#reply + 1] = row
end
redis.call('HSET', evaluation, 'next', next_row)
return reply
