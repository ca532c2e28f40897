-- Keep a response of a session: its entries, and the new end of its conversation, if it has one.
-- Invariants: an entry that is kept stays as it is. A conversation goes on to `after` only from `before`. Entries
-- count as bytes of the session's turns, and are kept as long as the session.
-- KEYS sessions responses
-- ARGV index conversation before after fields...
--   fields: the name and the value of each entry
-- Reply 1, or 0 if the conversation stands elsewhere
local added = 0
for i = 1, #fields, 2 do
  if redis.call('HSETNX', responses, fields[i], fields[i + 1]) == 1 then added = added + #fields[i + 1] end
end
local moved = 1
if conversation ~= '' then
  local field = 'end:' .. conversation
  local last = redis.call('HGET', responses, field) or ''
  if last == before then redis.call('HSET', responses, field, after) elseif last ~= after then moved = 0 end
end
local left = redis.call('PTTL', sessions)
if left > 0 then redis.call('HINCRBY', sessions, 'bytes:' .. index, added) end
redis.call('PEXPIRE', responses, math.max(left, 3600000))
return moved
