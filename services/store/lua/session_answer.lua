-- Record a turn, or why there is none (ARGV[11]): what an agent is answered is in Redis before.
-- Invariants: a session's turn is recorded once, by whichever worker comes first; none is recorded for an
-- attempt that is no longer held. `oldest` is the oldest version that has sampled for the group, as far
-- as it is of the lineage that sampled first.
-- KEYS sessions attempts calls calls_due calls_log
-- ARGV attempt index digest turn worker blob standing version lineage call_id failure
-- Reply 1 recorded, now or before; 0 not
local sessions, attempts, calls, due, log = unpack(KEYS)
local attempt, index, digest, turn = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local s = redis.call('HMGET', sessions, 'busy:' .. index, 'turns:' .. index, 'oldest', 'lineage')
local wanted = s[1] == digest and (s[2] or '0') == turn and sessions_go_on(sessions, attempts, attempt) == ''
end_call(calls, due, log, ARGV[10])
if not wanted then
  -- The reply to the first call may have been lost.
  return redis.call('HGET', sessions, 'asked:' .. index .. ':' .. digest) == turn and 1 or 0
end
redis.call('HDEL', sessions, 'busy:' .. index)
if ARGV[11] ~= '' then
  redis.call('HSET', sessions, 'failed:' .. index .. ':' .. digest, ARGV[11])
  return 1
end
redis.call('HSET', sessions, 'turn:' .. index .. ':' .. turn, ARGV[6], 'standing:' .. index, ARGV[7],
  'asked:' .. index .. ':' .. digest, turn, 'turns:' .. index, tonumber(turn) + 1, 'worker', ARGV[5])
if not s[3] then
  redis.call('HSET', sessions, 'oldest', ARGV[8], 'lineage', ARGV[9])
elseif s[4] == ARGV[9] and tonumber(ARGV[8]) < tonumber(s[3]) then
  redis.call('HSET', sessions, 'oldest', ARGV[8])
end
return 1
