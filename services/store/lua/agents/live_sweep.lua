-- End live sessions that had no call for their idle time, and discard sessions whose reward did not come in time.
-- Invariant: place_ended_session (common/sessions.lua).
-- O(sessions that end, at most 256 of each kind).
-- KEYS sessions_open sessions_waiting sessions_ready order calls calls_due calls_ended
-- ARGV prefix
--   prefix: of the keys of sessions
-- Reply the number of sessions
local count = 0
for _, from in ipairs({sessions_open, sessions_waiting}) do
  local due = redis.call('ZRANGEBYSCORE', from, '-inf', now_ms(), 'WITHSCORES', 'LIMIT', 0, 256)
  for i = 1, #due, 2 do
    local id, deadline = due[i], due[i + 1]
    local session = prefix .. id
    local ended = redis.call('HGET', session, 'ended') or deadline
    end_busy_calls(session, calls, calls_due, calls_ended, id, 0)
    place_ended_session(session, sessions_open, sessions_waiting, sessions_ready, order, id, tonumber(ended))
    count = count + 1
  end
end
return count
