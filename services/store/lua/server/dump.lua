-- Copy keys of one run, or of one pool, at one moment.
-- O(bytes): copying a run with a full stream blocks Redis for that long.
-- KEYS ...
-- ARGV numbers...
--   numbers: of the keys that are copied field by field, if they are hashes
-- Reply {DUMP or {field, value, ...} or false, ...}, in the order of KEYS
local by_field, reply = {}, {}
for _, number in ipairs(numbers) do by_field[tonumber(number)] = true end
for i, key in ipairs(KEYS) do
  if by_field[i] and redis.call('TYPE', key).ok == 'hash' then
    reply[i] = redis.call('HGETALL', key)
  else
    reply[i] = redis.call('DUMP', key)
  end
end
return reply
