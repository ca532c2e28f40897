-- Open a session for an application.
-- Invariants: a session is opened once; the same request again gives it another key, as long as it is open or
-- waits for its reward. At most `most` sessions are open, wait, or are ready.
-- KEYS session open waiting ready order run   ARGV id most key field value...
-- Reply '' for a new one, 'again', 'full', 'run' (which opens none: it is over, or will be), or how one that is known
-- has come to its end; 'lapsed' with its run
local session, open, waiting, ready, order, run = unpack(KEYS)
local known = redis.call('HMGET', session, 'idle', 'state')
if known[1] then
  local here = redis.call('ZSCORE', open, ARGV[1]) or redis.call('ZSCORE', waiting, ARGV[1])
  if not here then return known[2] or 'lapsed' end
  redis.call('HSET', session, 'key:0', ARGV[3])
  return 'again'
end
local state = redis.call('HGET', run, 'state')
if not state or final(state) or state == 'cancelling' then return 'run' end
if redis.call('ZCARD', open) + redis.call('ZCARD', waiting) + redis.call('ZCARD', ready) >= tonumber(ARGV[2]) then
  return 'full'
end
redis.call('HSET', session, 'key:0', ARGV[3], unpack(ARGV, 4))
local times = redis.call('HMGET', session, 'idle', 'kept')
redis.call('PEXPIRE', session, tonumber(times[1]) + tonumber(times[2]))
redis.call('ZADD', open, now_ms() + tonumber(times[1]), ARGV[1])
redis.call('HINCRBY', order, 'sessions_opened', 1)
return ''
