-- Which payloads outside of Redis somebody may still need: of an attempt that is held, which may hand
-- its group in, and of a group in the stream. Any other will never be needed: an attempt that has
-- ended hands nothing in. A question, at one moment.
-- O(payloads asked for). KEYS attempts blobs   ARGV task attempt task attempt ...
-- Reply 1 or 0 for each
local attempts, blobs = unpack(KEYS)
local reply = {}
for i = 1, #ARGV, 2 do
  local kept = redis.call('HGET', blobs, ARGV[i])
  local named = kept and string.sub(kept, 1, 4) == '\0\0\0\0' and string.find(kept, ARGV[i + 1], 1, true)
  reply[#reply + 1] = (named or redis.call('ZSCORE', attempts, ARGV[i + 1])) and 1 or 0
end
return reply
