-- Ask for a turn of a session.
-- Invariants: the same request (by its digest) is one call, however often it comes, and gets the answer that is
-- recorded. `busy:…` has the digests of a session's calls without an answer. A call renews the attempt's lease. A
-- group becomes stale when no later batch may train its oldest token; live sessions are answered all the same.
-- The worker that played the session's last turn, which has its tokens cached, may claim the call first. Before the
-- first turn, or once that worker no longer asks for calls, the worker with the lowest load may.
-- A session at its turns or `max_bytes` is spent: its agent gets an empty answer, and the session is truncated. A live
-- session is full, because its application can ask another server.
-- O(calls of the session at once); without such a worker also O(workers of the run).
-- KEYS sessions deadlines calls calls_due calls_asked run calls_load
-- ARGV attempt index digest at_once call
-- Reply 'waiting' or 'answered', or why not: 'ended', 'busy' (`at_once` calls wait), 'spent', 'full' (also if too many
-- calls failed or found the session spent), 'stale', or as sessions_go_on
local FAILURES = 4 -- per turn, so a session's failed calls are bounded too
if redis.call('HEXISTS', sessions, 'asked:' .. index .. ':' .. digest) == 1 then return 'answered' end
local refusal = sessions_go_on(sessions, deadlines, attempt, index)
if refusal ~= '' then return refusal end
local s = hash_fields(sessions, 'oldest', 'lineage', 'max_turns', 'max_bytes', 'reward_ms')
local session = session_fields(sessions, index, 'ended', 'busy', 'turns', 'bytes', 'failures', 'worker')
local r = hash_fields(run, 'version', 'lineage', 'max_staleness')
if s.oldest and not s.reward_ms and s.lineage == r.lineage
  and tonumber(r.version or '0') - tonumber(s.oldest) > tonumber(r.max_staleness) then
  redis.call('HSET', sessions, 'state', 'stale')
  return 'stale'
end
if session.ended then return 'ended' end
local busy = words(session.busy)
if busy[digest] then return 'waiting' end
local count = 0
for _ in pairs(busy) do count = count + 1 end
if tonumber(session.failures or '0') >= FAILURES * tonumber(s.max_turns) then return 'full' end
local heavy = s.max_bytes and tonumber(session.bytes or '0') >= tonumber(s.max_bytes)
if heavy or tonumber(session.turns or '0') + count >= tonumber(s.max_turns) then
  if s.reward_ms then return 'full' end
  redis.call('HSET', sessions, 'spent:' .. index, 1)
  redis.call('HINCRBY', sessions, 'failures:' .. index, 1)
  return 'spent'
end
if count >= tonumber(at_once) then return 'busy' end
redis.call('HSET', sessions, 'busy:' .. index, (session.busy and session.busy .. ' ' or '') .. digest)
redis.call('HDEL', sessions, 'failed:' .. index .. ':' .. digest)
local first = session.worker
if not (first and load_of(redis.call('HGET', calls_load, first))) then
  local all, least = redis.call('HGETALL', calls_load), nil
  first = nil
  for i = 1, #all, 2 do
    local held, capacity = load_of(all[i + 1])
    if not held then
      redis.call('HDEL', calls_load, all[i])
    elseif not least or held / capacity < least then
      first, least = all[i], held / capacity
    end
  end
end
if first then
  -- The call counts as the worker's load from now on.
  local held, capacity, at = load_of(redis.call('HGET', calls_load, first))
  redis.call('HSET', calls_load, first, held + 1 .. ' ' .. capacity .. ' ' .. at)
end
add_call(calls, calls_due, calls_asked, attempt .. '/' .. index .. '/' .. digest, call, first)
return 'waiting'
