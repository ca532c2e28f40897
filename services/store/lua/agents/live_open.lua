-- Open a live session.
-- Invariants: a session is opened once; the same request again gives it another key while it is open or waits for
-- its reward. At most `max_sessions` sessions are open, waiting or ready.
-- KEYS sessions sessions_open sessions_waiting sessions_ready order run
-- ARGV id max_sessions key fields...
-- Reply '' opened, 'again' opened before, 'full', 'run' (the run is over, or is being cancelled), or how the session
-- has ended; 'lapsed' if it ended with its run
local known = hash_fields(sessions, 'idle', 'state')
if known.idle then
  local present = redis.call('ZSCORE', sessions_open, id) or redis.call('ZSCORE', sessions_waiting, id)
  if not present then return known.state or 'lapsed' end
  redis.call('HSET', sessions, 'key:0', key)
  return 'again'
end
local state = redis.call('HGET', run, 'state')
if not state or final(state) or state == 'cancelling' then return 'run' end
local count = redis.call('ZCARD', sessions_open) + redis.call('ZCARD', sessions_waiting)
  + redis.call('ZCARD', sessions_ready)
if count >= tonumber(max_sessions) then return 'full' end
redis.call('HSET', sessions, 'key:0', key, unpack(fields))
local times = hash_fields(sessions, 'idle', 'kept')
redis.call('PEXPIRE', sessions, tonumber(times.idle) + tonumber(times.kept))
redis.call('ZADD', sessions_open, now_ms() + tonumber(times.idle), id)
redis.call('HINCRBY', order, 'sessions_opened', 1)
return ''
