-- Give a worker calls to work on, those that wait longest first, each until a deadline that it prolongs.
-- Invariants: a call has one worker at a time, and waits again when its deadline has passed. The worker that
-- session_call.lua has chosen for it may take it earlier than others. Calls of attempts that are no longer
-- held, and of live sessions that are not open, are forgotten. `calls_load` then has how many calls the worker
-- holds.
-- O(calls that are due, 256 at most). KEYS attempts calls calls_due calls_ended calls_load sessions_open
-- ARGV worker count claim_ms head_start_ms held at_once   Reply {id, call, id, call, ...}
local attempts, calls, due, log, loads, open = unpack(KEYS)
local worker, count, claim, start = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now, reply = now_ms(), {}
local found = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 256)
for i = 1, #found, 2 do
  if #reply >= 2 * count then break end
  local id, since = found[i], tonumber(found[i + 1])
  local c = redis.call('HMGET', calls, id, id .. ':worker')
  local attempt = string.match(id, '^[^/]*')
  if not c[1] or not (redis.call('ZSCORE', attempts, attempt) or redis.call('ZSCORE', open, attempt)) then
    end_call(calls, due, log, id)
  elseif c[2] == '' or c[2] == worker or now - since >= start then
    redis.call('HSET', calls, id .. ':worker', worker)
    redis.call('ZADD', due, now + claim, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = c[1]
  end
end
local held, known, _, at = tonumber(ARGV[5]) + #reply / 2, load_of(redis.call('HGET', loads, worker))
-- A worker asks four times a second: what says nothing new is not written.
if known ~= held or now - tonumber(at) >= 1000 then
  redis.call('HSET', loads, worker, held .. ' ' .. ARGV[6] .. ' ' .. now)
end
return reply
