-- Make the sessions of an attempt, under the name that the client gave its group, if it gave one.
-- Invariant: a name has one attempt. Another attempt replaces it only if the caller names the attempt that had the
-- name, whose sessions are lost.
-- KEYS sessions ...
--   the key of the group's name, if it has a name
-- ARGV attempt before seconds_kept fields...
-- Reply the attempt that has the name now
local named = KEYS[2]
if named then
  local holder = redis.call('GET', named) or ''
  if holder ~= before then return holder end
  redis.call('SET', named, attempt, 'EX', seconds_kept)
end
redis.call('HSET', sessions, unpack(fields))
redis.call('EXPIRE', sessions, seconds_kept)
return attempt
