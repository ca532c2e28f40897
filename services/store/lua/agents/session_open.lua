-- Make the sessions of an attempt, under the name that a client gave its group, if there is one (KEYS 2).
-- Invariant: a name has one attempt. Another one takes its place only where the caller names the attempt
-- that had it, whose sessions are lost.
-- KEYS sessions [named]   ARGV attempt before seconds_kept field value...   Reply the attempt with the name
local sessions, named = KEYS[1], KEYS[2]
if named then
  local has = redis.call('GET', named) or ''
  if has ~= ARGV[2] then return has end
  redis.call('SET', named, ARGV[1], 'EX', ARGV[3])
end
redis.call('HSET', sessions, unpack(ARGV, 4))
redis.call('EXPIRE', sessions, ARGV[3])
return ARGV[1]
