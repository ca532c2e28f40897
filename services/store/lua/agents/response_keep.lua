-- Keep a response of a session, or items that its agent adds: the entries, and the new end of the conversation.
-- Invariants: an entry that is kept stays as it is. A conversation goes on to `after` only from `before`. Entries
-- count as bytes of the session's turns, and are kept as long as the session. Items change nothing if the session
-- would have more than its `max_bytes`, or if the conversation ends elsewhere.
-- KEYS sessions responses
-- ARGV index conversation before after are_items fields...
--   fields: the name and the value of each entry
-- Reply 'kept', 'elsewhere' if the conversation ends elsewhere, or 'full'
local ending, moves, last = 'end:' .. conversation, conversation ~= '', ''
if moves then last = redis.call('HGET', responses, ending) or '' end
local elsewhere = moves and last ~= before and last ~= after
if are_items == '1' then
  local size = 0
  for i = 1, #fields, 2 do
    if redis.call('HEXISTS', responses, fields[i]) == 0 then size = size + #fields[i + 1] end
  end
  local s = hash_fields(sessions, 'max_bytes', 'bytes:' .. index)
  if s.max_bytes and size > 0 and tonumber(s['bytes:' .. index] or '0') + size > tonumber(s.max_bytes) then
    return 'full'
  end
  if elsewhere then return 'elsewhere' end
end
local added = 0
for i = 1, #fields, 2 do
  if redis.call('HSETNX', responses, fields[i], fields[i + 1]) == 1 then added = added + #fields[i + 1] end
end
if moves and last == before then redis.call('HSET', responses, ending, after) end
local left = redis.call('PTTL', sessions)
if left > 0 then redis.call('HINCRBY', sessions, 'bytes:' .. index, added) end
redis.call('PEXPIRE', responses, math.max(left, 3600000))
return elsewhere and 'elsewhere' or 'kept'
