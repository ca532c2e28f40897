-- An application ends its session. Its turns in work are not recorded any more.
-- Invariant: as of place_ended_session. KEYS session open waiting ready order calls calls_due calls_ended   ARGV id
-- Reply '', also for one that has ended before, or why not: 'gone', 'lapsed' (its run has ended)
local session, open, waiting, ready, order, calls, due, log = unpack(KEYS)
local s = redis.call('HMGET', session, 'idle', 'state')
if not s[1] then return 'gone' end
if s[2] then return '' end
local idle_at = redis.call('ZSCORE', open, ARGV[1])
if not idle_at then return 'lapsed' end
end_busy_calls(session, calls, due, log, ARGV[1], 0)
place_ended_session(session, open, waiting, ready, order, ARGV[1], math.min(now_ms(), tonumber(idle_at)))
return ''
