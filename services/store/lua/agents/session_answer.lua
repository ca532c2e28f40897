-- Record a turn, or why there is none (ARGV[12]): what an agent is answered is in Redis before.
-- Invariants: a request is answered once, by whichever worker comes first; nothing is recorded for an attempt
-- that is no longer held. Turns are numbered as they are recorded, so that a turn's parent has a lower number.
-- `history:…` has the number of the last turn of the conversation that has this history, `parents:…` that of
-- each turn's parent in order, −1 for none. `oldest` is the oldest version that has sampled for the group, as
-- far as it is of the lineage that sampled first. `bytes` is what a session's turns weigh.
-- O(turns of the session). KEYS sessions attempts calls calls_due calls_ended
-- ARGV attempt index digest worker blob history parent length version lineage call_id failure
-- Reply {1, the turn's number} recorded; {1} recorded before, or the failure is; {0} neither
local sessions, attempts, calls, due, log = unpack(KEYS)
local attempt, index, digest = ARGV[1], ARGV[2], ARGV[3]
local s = redis.call('HMGET', sessions, 'busy:' .. index, 'turns:' .. index, 'oldest', 'lineage',
  'lengths:' .. index, 'parents:' .. index)
local busy = words(s[1])
local wanted = busy[digest] and sessions_go_on(sessions, attempts, attempt, index) == ''
end_call(calls, due, log, ARGV[11])
if not wanted then
  -- The reply to the first call may have been lost.
  return {redis.call('HEXISTS', sessions, 'asked:' .. index .. ':' .. digest)}
end
busy[digest] = nil
local rest = {}
for one in pairs(busy) do rest[#rest + 1] = one end
if #rest > 0 then
  redis.call('HSET', sessions, 'busy:' .. index, table.concat(rest, ' '))
else
  redis.call('HDEL', sessions, 'busy:' .. index)
end
if ARGV[12] ~= '' then
  redis.call('HSET', sessions, 'failed:' .. index .. ':' .. digest, ARGV[12])
  redis.call('HINCRBY', sessions, 'failures:' .. index, 1)
  return {1}
end
local turn = s[2] or '0'
redis.call('HSET', sessions, 'turn:' .. index .. ':' .. turn, ARGV[5], 'asked:' .. index .. ':' .. digest, turn,
  'history:' .. index .. ':' .. ARGV[6], turn, 'turns:' .. index, tonumber(turn) + 1,
  'parents:' .. index, (s[6] and s[6] .. ' ' or '') .. ARGV[7], 'worker:' .. index, ARGV[4])
redis.call('HINCRBY', sessions, 'bytes:' .. index, #ARGV[5])
if ARGV[8] ~= '' and not words(s[5])[ARGV[8]] then
  redis.call('HSET', sessions, 'lengths:' .. index, (s[5] and s[5] .. ' ' or '') .. ARGV[8])
end
if not s[3] then
  redis.call('HSET', sessions, 'oldest', ARGV[9], 'lineage', ARGV[10])
elseif s[4] == ARGV[10] and tonumber(ARGV[9]) < tonumber(s[3]) then
  redis.call('HSET', sessions, 'oldest', ARGV[9])
end
return {1, tonumber(turn)}
