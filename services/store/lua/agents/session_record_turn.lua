-- Record a turn, or the failure of its call, before the agent gets the answer.
-- Invariants: a request is answered once, by the first worker. Nothing is recorded for an attempt that is no longer
-- held. Turns are numbered in the order of recording, so a turn's parent has a lower number.
-- Fields: `history:…` is the number of the last turn of the conversation with this history. `parents:…` lists the
-- parent of each turn, −1 for none. `oldest` is the oldest version that sampled for the group, within the lineage
-- that sampled first. `bytes:…` is the size of a session's turns.
-- O(turns of the session).
-- KEYS sessions deadlines calls calls_due calls_ended
-- ARGV attempt index digest worker blob history parent length version lineage call_id failure
--   failure: '' for a turn
-- Reply {1, the turn's number} recorded, {1} recorded before or a failure, {0} not recorded
local s = hash_fields(sessions, 'oldest', 'lineage')
local session = session_fields(sessions, index, 'busy', 'turns', 'lengths', 'parents')
local busy = words(session.busy)
local wanted = busy[digest] and sessions_go_on(sessions, deadlines, attempt, index) == ''
end_call(calls, calls_due, calls_ended, call_id)
if not wanted then
  -- The reply to the first call may have been lost.
  return {redis.call('HEXISTS', sessions, 'asked:' .. index .. ':' .. digest)}
end
busy[digest] = nil
local still_busy = {}
for other in pairs(busy) do still_busy[#still_busy + 1] = other end
if #still_busy > 0 then
  redis.call('HSET', sessions, 'busy:' .. index, table.concat(still_busy, ' '))
else
  redis.call('HDEL', sessions, 'busy:' .. index)
end
if failure ~= '' then
  redis.call('HSET', sessions, 'failed:' .. index .. ':' .. digest, failure)
  redis.call('HINCRBY', sessions, 'failures:' .. index, 1)
  return {1}
end
local turn = session.turns or '0'
redis.call('HSET', sessions, 'turn:' .. index .. ':' .. turn, blob, 'asked:' .. index .. ':' .. digest, turn,
  'history:' .. index .. ':' .. history, turn, 'turns:' .. index, tonumber(turn) + 1,
  'parents:' .. index, (session.parents and session.parents .. ' ' or '') .. parent, 'worker:' .. index, worker)
redis.call('HINCRBY', sessions, 'bytes:' .. index, #blob)
if length ~= '' and not words(session.lengths)[length] then
  redis.call('HSET', sessions, 'lengths:' .. index,
    (session.lengths and session.lengths .. ' ' or '') .. length)
end
if not s.oldest then
  redis.call('HSET', sessions, 'oldest', version, 'lineage', lineage)
elseif s.lineage == lineage and tonumber(version) < tonumber(s.oldest) then
  redis.call('HSET', sessions, 'oldest', version)
end
return {1, tonumber(turn)}
