-- Ask for a turn of a session.
-- Invariants: the same request (by its digest) is one call, however often it comes, and gets the answer that
-- is recorded; `busy` has the digests of a session's calls without one. A call renews the lease of its
-- attempt. A group whose oldest token no batch may train any more is told so, and its `state` is stale from
-- then on; a live session is answered all the same, for its user's sake. The worker that played the session's
-- last turn, which has its tokens cached, may take the call first. If there is none, or it asks for no calls,
-- that is the one with the fewest calls for its size; the call counts there from now on.
-- O(calls of the session at once); of a session without such a worker also O(workers of the run).
-- KEYS sessions attempts calls calls_due calls_asked run calls_load
-- ARGV attempt index digest at_once call
-- Reply 'waiting' or 'answered', or why not: 'ended', 'busy' (so many at once), 'full' (with those in work it
-- has all its turns, or they weigh `max_bytes`, or too many calls were refused), 'stale', or as sessions_go_on
local FAILURES = 4 -- for each turn: a session's refused calls are bounded too
local sessions, attempts, calls, due, asked, run, loads = unpack(KEYS)
local attempt, index, digest = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', sessions, 'asked:' .. index .. ':' .. digest) == 1 then return 'answered' end
local refusal = sessions_go_on(sessions, attempts, attempt, index)
if refusal ~= '' then return refusal end
local s = redis.call('HMGET', sessions, 'ended:' .. index, 'busy:' .. index, 'turns:' .. index, 'oldest',
  'lineage', 'worker:' .. index, 'max_turns', 'failures:' .. index, 'reward_ms',
  'bytes:' .. index, 'max_bytes')
local r = redis.call('HMGET', run, 'version', 'lineage', 'max_staleness')
if s[4] and not s[9] and s[5] == r[2] and tonumber(r[1] or '0') - tonumber(s[4]) > tonumber(r[3]) then
  redis.call('HSET', sessions, 'state', 'stale')
  return 'stale'
end
if s[1] then return 'ended' end
local busy = words(s[2])
if busy[digest] then return 'waiting' end
local count = 0
for _ in pairs(busy) do count = count + 1 end
if tonumber(s[3] or '0') + count >= tonumber(s[7]) then return 'full' end
if tonumber(s[8] or '0') >= FAILURES * tonumber(s[7]) then return 'full' end
if s[11] and tonumber(s[10] or '0') >= tonumber(s[11]) then return 'full' end
if count >= tonumber(ARGV[4]) then return 'busy' end
redis.call('HSET', sessions, 'busy:' .. index, (s[2] and s[2] .. ' ' or '') .. digest)
redis.call('HDEL', sessions, 'failed:' .. index .. ':' .. digest)
local first = s[6]
if not (first and load_of(redis.call('HGET', loads, first))) then
  local all, least = redis.call('HGETALL', loads), nil
  first = nil
  for i = 1, #all, 2 do
    local held, at_once = load_of(all[i + 1])
    if not held then
      redis.call('HDEL', loads, all[i])
    elseif not least or held / at_once < least then
      first, least = all[i], held / at_once
    end
  end
end
if first then
  local held, at_once, at = load_of(redis.call('HGET', loads, first))
  redis.call('HSET', loads, first, held + 1 .. ' ' .. at_once .. ' ' .. at)
end
add_call(calls, due, asked, attempt .. '/' .. index .. '/' .. digest, ARGV[5], first)
return 'waiting'
