-- End a session. Its unfinished turns are not recorded.
-- Invariants: a session ends once. When the last one ends, a worker is asked to score and complete the group.
-- KEYS sessions attempts calls calls_due calls_asked calls_ended
-- ARGV attempt index finish_id finish_call
-- Reply '' (also if it has ended before), or why not: as sessions_go_on
if redis.call('HEXISTS', sessions, 'ended:' .. index) == 1 then return '' end
local refusal = sessions_go_on(sessions, attempts, attempt, index)
if refusal ~= '' then return refusal end
redis.call('HSET', sessions, 'ended:' .. index, now_ms())
end_busy_calls(sessions, calls, calls_due, calls_ended, attempt, index)
if redis.call('HINCRBY', sessions, 'open', -1) <= 0 then
  redis.call('HSET', sessions, 'state', 'ended')
  add_call(calls, calls_due, calls_asked, finish_id, finish_call, redis.call('HGET', sessions, 'worker:' .. index))
end
return ''
