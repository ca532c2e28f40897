-- Give a worker calls to work on, those that wait longest first, each until a deadline that it prolongs.
-- Invariants: a call has one worker at a time, and waits again when its deadline has passed. The worker that
-- has sampled for a group before, and has its tokens cached, may take its calls earlier than others.
-- Calls of attempts that are no longer held are forgotten.
-- O(calls that are due, 256 at most). KEYS attempts calls calls_due calls_log
-- ARGV worker count claim_ms head_start_ms   Reply {id, call, id, call, ...}
local attempts, calls, due, log = unpack(KEYS)
local worker, count, claim, start = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now, reply = now_ms(), {}
local found = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 256)
for i = 1, #found, 2 do
  if #reply >= 2 * count then break end
  local id, since = found[i], tonumber(found[i + 1])
  local c = redis.call('HMGET', calls, id, id .. ':worker')
  if not c[1] or not redis.call('ZSCORE', attempts, string.match(id, '^[^/]*')) then
    end_call(calls, due, log, id)
  elseif c[2] == '' or c[2] == worker or now - since >= start then
    redis.call('HSET', calls, id .. ':worker', worker)
    redis.call('ZADD', due, now + claim, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = c[1]
  end
end
return reply
