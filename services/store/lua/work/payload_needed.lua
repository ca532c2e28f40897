-- Ask which payloads outside Redis may still be needed: the payload of a held attempt, which may still complete,
-- and of a group in the stream. A payload that is unneeded now stays unneeded.
-- O(payloads asked for).
-- KEYS attempts blobs
-- ARGV payloads...
--   payloads: task, attempt, task, attempt, …
-- Reply 1 or 0 for each
local reply = {}
for i = 1, #payloads, 2 do
  local kept = redis.call('HGET', blobs, payloads[i])
  local named = kept and string.sub(kept, 1, 4) == '\0\0\0\0' and string.find(kept, payloads[i + 1], 1, true)
  reply[#reply + 1] = (named or redis.call('ZSCORE', attempts, payloads[i + 1])) and 1 or 0
end
return reply
