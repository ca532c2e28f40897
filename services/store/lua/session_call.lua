-- Ask for the next turn of a session.
-- Invariants: a session works on one turn at a time; the same request (by its digest) is one call, however
-- often it comes, and gets the answer that is recorded. A call renews the lease of its attempt. A group
-- whose oldest token no batch may train any more is told so, and its `state` is stale from then on.
-- KEYS sessions attempts calls calls_due calls_log run
-- ARGV attempt index digest turn call
-- Reply 'waiting' or 'answered', or why not: 'ended', 'busy', 'history' (it has another number of turns),
-- 'stale', or as sessions_go_on
local sessions, attempts, calls, due, log, run = unpack(KEYS)
local attempt, index, digest, turn = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('HEXISTS', sessions, 'asked:' .. index .. ':' .. digest) == 1 then return 'answered' end
local refusal = sessions_go_on(sessions, attempts, attempt)
if refusal ~= '' then return refusal end
local s = redis.call('HMGET', sessions, 'ended:' .. index, 'busy:' .. index, 'turns:' .. index, 'oldest',
  'lineage', 'worker')
local r = redis.call('HMGET', run, 'version', 'lineage', 'max_staleness')
if s[4] and s[5] == r[2] and tonumber(r[1] or '0') - tonumber(s[4]) > tonumber(r[3]) then
  redis.call('HSET', sessions, 'state', 'stale')
  return 'stale'
end
if s[1] then return 'ended' end
if s[2] == digest then return 'waiting' end
if s[2] then return 'busy' end
if tonumber(s[3] or '0') ~= turn then return 'history' end
redis.call('HSET', sessions, 'busy:' .. index, digest)
redis.call('HDEL', sessions, 'failed:' .. index .. ':' .. digest)
add_call(calls, due, log, attempt .. '/' .. index .. '/' .. digest, ARGV[5], s[6])
return 'waiting'
