-- End a session. Its turns in work are not recorded any more.
-- Invariants: a session ends once; with the last one a worker is asked to score and complete the group.
-- KEYS sessions attempts calls calls_due calls_asked calls_ended   ARGV attempt index finish_id finish_call
-- Reply '', also for one that has ended before, or why not: as sessions_go_on
local sessions, attempts, calls, due, asked, ended = unpack(KEYS)
local attempt, index = ARGV[1], ARGV[2]
if redis.call('HEXISTS', sessions, 'ended:' .. index) == 1 then return '' end
local refusal = sessions_go_on(sessions, attempts, attempt, index)
if refusal ~= '' then return refusal end
redis.call('HSET', sessions, 'ended:' .. index, now_ms())
end_busy_calls(sessions, calls, due, ended, attempt, index)
if redis.call('HINCRBY', sessions, 'open', -1) <= 0 then
  redis.call('HSET', sessions, 'state', 'ended')
  add_call(calls, due, asked, ARGV[3], ARGV[4], redis.call('HGET', sessions, 'worker:' .. index))
end
return ''
