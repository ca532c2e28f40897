-- Give a worker calls to answer, longest waiting first, each until a deadline that the worker prolongs.
-- Invariants: a call has one worker at a time, and waits again once its deadline has passed. For `head_start_ms` only
-- the worker that session_call.lua chose may claim it. Calls of attempts that are no longer held, and of live sessions
-- that are not open, are forgotten. `calls_load` then has the number of calls that the worker holds.
-- O(calls that are due, at most 256).
-- KEYS attempts calls calls_due calls_ended calls_load sessions_open
-- ARGV worker count claim_ms head_start_ms held at_once
-- Reply {id, call, id, call, ...}
local now, reply = now_ms(), {}
local due = redis.call('ZRANGEBYSCORE', calls_due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 256)
for i = 1, #due, 2 do
  if #reply >= 2 * count then break end
  local id, since = due[i], tonumber(due[i + 1])
  local call, holder = redis.call('HGET', calls, id), redis.call('HGET', calls, id .. ':worker')
  local attempt = string.match(id, '^[^/]*')
  if not call or not (redis.call('ZSCORE', attempts, attempt) or redis.call('ZSCORE', sessions_open, attempt)) then
    end_call(calls, calls_due, calls_ended, id)
  elseif holder == '' or holder == worker or now - since >= tonumber(head_start_ms) then
    redis.call('HSET', calls, id .. ':worker', worker)
    redis.call('ZADD', calls_due, now + claim_ms, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = call
  end
end
local held, known, _, at = held + #reply / 2, load_of(redis.call('HGET', calls_load, worker))
-- A worker asks four times a second: an unchanged load is written once a second.
if known ~= held or now - tonumber(at) >= 1000 then
  redis.call('HSET', calls_load, worker, held .. ' ' .. at_once .. ' ' .. now)
end
return reply
