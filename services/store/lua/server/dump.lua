-- All keys of one run, or of one pool, at one moment: nothing else runs meanwhile.
-- O(bytes): a run with a full stream holds Redis for as long as it takes to copy that once.
-- KEYS what is copied   ARGV which of them are hashes to be given field by field, by number
-- Reply {DUMP or {field, value, ...} or false, ...}, in the order of KEYS
local by_field, reply = {}, {}
for _, number in ipairs(ARGV) do by_field[tonumber(number)] = true end
for i, key in ipairs(KEYS) do
  if by_field[i] and redis.call('TYPE', key).ok == 'hash' then
    reply[i] = redis.call('HGETALL', key)
  else
    reply[i] = redis.call('DUMP', key)
  end
end
return reply
