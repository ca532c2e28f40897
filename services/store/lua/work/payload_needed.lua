-- Ask which payloads outside Redis may still be needed: the payload of a held attempt, which may still complete,
-- of a group in the stream, and of a partial. A payload that is unneeded now stays unneeded.
-- O(payloads asked for).
-- KEYS attempts blobs partials
-- ARGV payloads...
--   payloads: task, attempt, task, attempt, …
-- Reply 1 or 0 for each
local reply = {}
for i = 1, #payloads, 2 do
  local task, attempt = payloads[i], payloads[i + 1]
  local needed = redis.call('ZSCORE', attempts, attempt)
  for _, kept in ipairs({redis.call('HGET', blobs, task) or '', redis.call('HGET', partials, task) or ''}) do
    needed = needed or string.sub(kept, 1, 4) == '\0\0\0\0' and string.find(kept, attempt, 1, true)
  end
  reply[#reply + 1] = needed and 1 or 0
end
return reply
