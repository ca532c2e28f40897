-- Lease rows of the run's open evaluation to a worker.
-- Invariants: a row is in exactly one place: not yet leased, returned, held by one attempt, or answered. At most
-- `evaluation_workers` of the run's workers (0: any number) have a seat. A worker gets rows only with a seat, and
-- only while it serves the version of the evaluation.
-- Seats: a seat lapses like a lease. An idle worker takes a seat at once, a busy worker once the evaluation has
-- been open for a second. A `reserved` worker only evaluates: it has a seat in any case, also between evaluations.
-- A worker with a seat that serves another version gets the request alone, and then loads its version.
-- A run that ends, is paused, or was asked to pause, leases nothing.
-- O(rows leased and lapsed).
-- KEYS evaluation evaluation_requests evaluation_seats evaluation_returned evaluation_attempts evaluation_held run
-- ARGV worker version kind count ttl_ms known_id names...
--   kind: 'idle', 'busy' or 'reserved'. names: of the attempts
-- Reply {} or {id, json(request) or '' if known_id is id, attempt, row, ...}
local now, ttl = now_ms(), tonumber(ttl_ms)
local e = hash_fields(evaluation, 'id', 'version', 'rows', 'next', 'opened')
if not e.id and kind ~= 'reserved' then return {} end
local r = hash_fields(run, 'state', 'evaluation_workers', 'paused_by')
if not r.state or (r.paused_by or '') ~= '' or r.state == 'cancelling' or r.state == 'paused' or final(r.state) then return {} end

-- A reserved worker asks several times a second; a write for each question would fill Redis' log.
local seat = tonumber(redis.call('ZSCORE', evaluation_seats, worker) or '0')
if kind == 'reserved' and seat < now + ttl / 2 then redis.call('ZADD', evaluation_seats, now + ttl, worker) end
if not e.id then return {} end
bound_deadlines(evaluation_seats, now, ttl)
redis.call('ZREMRANGEBYSCORE', evaluation_seats, '-inf', now)
for _, row in ipairs(end_lapsed(evaluation_attempts, evaluation_held, now, ttl)) do
  redis.call('LPUSH', evaluation_returned, row)
end

local reply = {e.id, e.id ~= known_id and redis.call('HGET', evaluation_requests, e.id) or ''}
if append_granted(reply, evaluation_held, names) then return reply end

local rows, next_row = tonumber(e.rows), tonumber(e.next)
if next_row >= rows and redis.call('LLEN', evaluation_returned) == 0 then return {} end
if not redis.call('ZSCORE', evaluation_seats, worker) then
  local limit = tonumber(r.evaluation_workers or '0')
  if limit > 0 and redis.call('ZCARD', evaluation_seats) >= limit then return {} end
  if limit > 0 and kind == 'busy' and now - tonumber(e.opened) < 1000 then return {} end
end
redis.call('ZADD', evaluation_seats, now + ttl, worker)
if version ~= e.version then return reply end

for i = 1, tonumber(count) do
  local row = redis.call('LPOP', evaluation_returned)
  if not row then
    if next_row >= rows then break end
    row = tostring(next_row)
    next_row = next_row + 1
  end
  grant(evaluation_attempts, evaluation_held, names[i], now + ttl, row)
  reply[#reply + 1] = names[i]
  reply[#reply + 1] = row
end
redis.call('HSET', evaluation, 'next', next_row)
return reply
