-- End a live session. Its unfinished turns are not recorded.
-- Invariant: place_ended_session (common/sessions.lua).
-- KEYS sessions sessions_open sessions_waiting sessions_ready order calls calls_due calls_ended
-- ARGV id
-- Reply '' (also if it has ended before), or why not: 'gone', or 'lapsed' (its run has ended)
local s = hash_fields(sessions, 'idle', 'state')
if not s.idle then return 'gone' end
if s.state then return '' end
local idle_at = redis.call('ZSCORE', sessions_open, id)
if not idle_at then return 'lapsed' end
end_busy_calls(sessions, calls, calls_due, calls_ended, id, 0)
local ended = math.min(now_ms(), tonumber(idle_at))
place_ended_session(sessions, sessions_open, sessions_waiting, sessions_ready, order, id, ended)
return ''
